"""Whatever bytes a `.Gbx` file holds, it is read or refused: no other error, no hang, no memory without bound."""

import contextlib
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import lzallright
import pytest

from trackmania_rl.gbx import reading
from trackmania_rl.gbx.challenge import read_challenge, read_checkpoint_positions
from trackmania_rl.gbx.reading import GbxError, parse_gbx, read_gbx
from trackmania_rl.gbx.replay import read_replay

MOST_BYTES = 200 << 20


def gbx(
    body: bytes, *, layout: bytes = b"BUCR", class_id: int = 0x03043000, unpacked_bytes: int | None = None
) -> bytes:
    """A well-formed file around a body; `unpacked_bytes` is what it says of the body's size."""
    packed = lzallright.LZOCompressor().compress(body)
    head = b"GBX" + struct.pack("<H", 6) + b"BUCR" + struct.pack("<III", class_id, 4, 0) + struct.pack("<II", 1, 0)
    return head + struct.pack("<II", len(body) if unpacked_bytes is None else unpacked_bytes, len(packed)) + packed


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin with GBX"),
        (b"PK\x03\x04" * 10, "does not begin with GBX"),
        (b"GBX\x09\x00BUCR" + bytes(9), "version 9; supported are 3 to 6"),
        (b"GBX\x06\x00TUCR" + bytes(9), "written as 'TUC'"),
        (gbx(b"\x01\xde\xca\xfa", unpacked_bytes=1 << 31), "at most"),
        (gbx(b"\x01\xde\xca\xfa", unpacked_bytes=5), "a packed part of 4 bytes says it has 5"),
        (gbx(b"\x02" * 3), "begins 3 bytes before the end"),
    ],
)
def test_faults_are_named(data: bytes, message: str) -> None:
    with pytest.raises(GbxError, match=message):
        parse_gbx(data, Path("some.Gbx"))


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (
            'exever="3.3.0" exebuild="2026-02-02_17_51" title="TMStadium" lightmap="0"',
            r"Trackmania 2020 .version 3\.3\.0",
        ),
        ('exever="3.0.0" exebuild="2013-11-05_10_31" title="TMCanyon"', "ManiaPlanet"),
        ('exever="3.0.0"', "ManiaPlanet"),
    ],
)
def test_later_games_are_named_by_the_header_of_a_file_that_parses(program: str, name: str, shared_data: Path) -> None:
    original = (shared_data / "tracks" / "test.Challenge.Gbx").read_bytes()
    old = b'version="TMc.6" exever="2.11.26"'
    assert original.count(old) == 1
    grown = int.from_bytes(original[13:17], "little") + len(program) - len(old)
    changed = original[:13] + grown.to_bytes(4, "little") + original[17:].replace(old, program.encode())
    with pytest.raises(GbxError, match=f"a map of {name}.*supported are"):
        parse_gbx(changed, Path("new.Map.Gbx"))


def test_other_files_than_maps_and_replays_are_named(tmp_path: Path, shared_data: Path) -> None:
    with pytest.raises(GbxError, match="no such file"):
        read_gbx(tmp_path / "absent.Gbx")
    with pytest.raises(GbxError, match=str(tmp_path)):
        read_gbx(tmp_path)
    (tmp_path / "damaged.Challenge.Gbx").write_bytes(b"GBX")
    with pytest.raises(GbxError, match=r"damaged\.Challenge\.Gbx: not a readable"):
        read_checkpoint_positions(tmp_path / "damaged.Challenge.Gbx")
    with pytest.raises(GbxError, match="not of a map"):
        read_checkpoint_positions(shared_data / "replays" / "mydli_20.14.Replay.gbx")
    with pytest.raises(GbxError, match="no race is in it: it is a map"):
        read_replay(shared_data / "tracks" / "A01-Race.Challenge.Gbx")


def test_a_count_that_never_ends_is_cut_off() -> None:
    """A list of 4 billion empty texts, each of which costs four bytes of a large body."""
    body = struct.pack("<II", 0x0301B000, 0xFFFFFFFF) + bytes(12 << 20)
    with pytest.raises(GbxError, match=r"values|before the end"):
        parse_gbx(gbx(body), Path("list.Gbx"))


def test_a_ghost_cannot_unpack_without_bound() -> None:
    bomb = zlib.compress(bytes(300 << 20))
    body = struct.pack("<III", 0x0303F005, reading.MAX_UNPACKED_BYTES, len(bomb)) + bomb + bytes(64)
    tracemalloc.start()
    with contextlib.suppress(GbxError):
        parse_gbx(gbx(body, class_id=0x03092000), Path("bomb.Gbx"))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < MOST_BYTES


def test_nodes_within_nodes_within_nodes_end() -> None:
    body = b"".join(struct.pack("<Iii", 0x03043026, index, 0x03043000) for index in range(1, 5_000))
    with pytest.raises(GbxError, match="RecursionError"):
        parse_gbx(gbx(body), Path("deep.Gbx"))


def mutated(original: bytes, rng: random.Random) -> bytes:
    """A copy with stretches cut out, overwritten or doubled, or cut off at an end."""
    data = bytearray(original)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((0, 1, 4, 4, rng.randrange(200), len(data)))
        data[at : at + length] = rng.choice(
            (b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4), rng.randbytes(1), data[at : at + 100])
        )
    return bytes(data)


def mutated_body(original: bytes, rng: random.Random) -> bytes:
    """A file whose body was damaged before it was packed, so that the damage gets past the unpacking."""
    body = bytes(parse_gbx(original, Path("original.Gbx")).content.data)
    return gbx(mutated(body, rng), class_id=int.from_bytes(original[9:13], "little"))


@pytest.mark.parametrize("n_files", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_damaged_files_are_read_or_refused(tmp_path: Path, shared_data: Path, n_files: int) -> None:
    rng = random.Random(0)
    originals = [path.read_bytes() for path in sorted(shared_data.glob("*/*bx"))]
    path = tmp_path / "damaged.Gbx"
    for number in range(n_files):
        damage = (mutated, mutated_body)[number % 2]
        path.write_bytes(damage(originals[number % len(originals)], rng))
        for read in (read_challenge, read_replay):
            try:
                read(path)
            except GbxError as error:
                assert "damaged.Gbx" in str(error)  # noqa: PT017  # the error's text is what is tested, whichever came
