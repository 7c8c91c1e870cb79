"""Two hundred damaged and hostile checkpoints: each is refused by name, in no time and without memory.

Damage is random: flipped bits, cut files, swapped files, links, pipes, missing files. A stranger's checkpoint has check
sums that fit what he wrote, so it is its sizes, shapes and structure that must not deceive.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.checkpoints import CheckpointError, CheckpointStore, memory_rows, read_checkpoint
from trackmania_rl.checkpoints.manifest import canonical_bytes
from trackmania_rl.experience_replay.ring_buffer import RingBuffer

from .conftest import IMAGE_SIZE_PX, N_FLOATS, assert_same, make_state, ring_of, rows, with_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it")

N_RANDOM = 160
WITHIN_S = 2.0
MOST_BYTES = 200 << 20

Mutate = Callable[[Path, random.Random], object]


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose rows are in three files."""
    row_bytes = RingBuffer.bytes_per_row(N_FLOATS, IMAGE_SIZE_PX)
    monkeypatch.setattr(memory_rows, "SMALL_SEGMENT_BYTES", row_bytes)
    monkeypatch.setattr(memory_rows, "SEGMENT_BYTES", 4 * row_bytes)
    (tmp_path / "good").mkdir()
    ring = RingBuffer(12, N_FLOATS, IMAGE_SIZE_PX)
    ring.append(rows(0, 11))
    return CheckpointStore(tmp_path / "good").save(with_rows(make_state(1), ring), 0)


def _any_file(folder: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(file for file in folder.parent.rglob("*") if file.is_file()))


def _flip_a_bit(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _cut_short(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def _add_bytes(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.randrange(1, 100)))


def _overwrite(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    content = file.read_bytes()
    at = rng.randrange(len(content))
    file.write_bytes(content[:at] + bytes(byte ^ 0xFF for byte in content[at : at + 40]) + content[at + 40 :])


def _swap(folder: Path, rng: random.Random) -> None:
    one, other = _any_file(folder, rng), _any_file(folder, rng)
    while other == one:
        other = _any_file(folder, rng)
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


def _delete(folder: Path, rng: random.Random) -> None:
    _any_file(folder, rng).unlink()


def _link(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    target = file.with_name("elsewhere")
    file.rename(target)
    file.symlink_to(target)


def _device(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    file.unlink()
    file.symlink_to("/dev/zero")


def _pipe(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    file.unlink()
    os.mkfifo(file)


def _folder(folder: Path, rng: random.Random) -> None:
    file = _any_file(folder, rng)
    file.unlink()
    file.mkdir()


RANDOM: tuple[Mutate, ...] = (
    *(_flip_a_bit, _flip_a_bit, _flip_a_bit, _flip_a_bit, _cut_short, _cut_short, _add_bytes, _overwrite),
    *(_swap, _delete, _link, _device, _pipe, _folder),
)


def _forged(change: Callable[[dict[str, Any]], object]) -> Mutate:
    """A manifest that says something else, with the check sum that goes with it."""

    def forge(folder: Path, _: random.Random) -> None:
        file = folder / "manifest.json"
        manifest = json.loads(file.read_bytes())["manifest"]
        change(manifest)
        file.write_bytes(canonical_bytes(manifest))

    return forge


def _of_content(name: str, content: Callable[[bytes], bytes]) -> Mutate:
    """A file that holds something else, with the size and check sum that go with it."""

    def forge(folder: Path, rng: random.Random) -> None:
        new = content((folder / name).read_bytes())
        (folder / name).write_bytes(new)
        entry = {"bytes": len(new), "crc32": zlib.crc32(new)}
        _forged(lambda manifest: manifest["files"].update({name: entry}))(folder, rng)

    return forge


def _of_state(text: str) -> Mutate:
    return _of_content("state.json", lambda _: text.encode())


def _header_of(content: Callable[[dict[str, Any]], object]) -> Mutate:
    """A file of tensors whose header says something else."""

    def forge(old: bytes) -> bytes:
        n_bytes = int.from_bytes(old[:8], "little")
        header = json.loads(old[8 : 8 + n_bytes])
        content(header)
        new = json.dumps(header).encode()
        return len(new).to_bytes(8, "little") + new + old[8 + n_bytes :]

    return _of_content("online.safetensors", forge)


def _sparse(folder: Path, rng: random.Random) -> None:
    """A file of 40 GB that takes no room."""
    with (folder / "tensors.safetensors").open("r+b") as file:
        file.truncate(40 << 30)
    _forged(lambda manifest: manifest["files"]["tensors.safetensors"].update(bytes=40 << 30))(folder, rng)


HUGE = 1 << 40
FORGED: dict[str, Mutate] = {
    "huge tensor": _forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[HUGE])),
    "huge shape": _forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[HUGE] * 16)),
    "many dimensions": _forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[1] * 1000)),
    "negative shape": _forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[-2, -3])),
    "other dtype": _forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(dtype="int32")),
    "unknown dtype": _forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(dtype="object")),
    "no such tensor": _forged(lambda m: m["tensors"]["online.safetensors"].pop("weight")),
    "huge file": _forged(lambda m: m["files"]["online.safetensors"].update(bytes=HUGE)),
    "larger than anything": _forged(lambda m: m["files"]["online.safetensors"].update(bytes=1 << 70)),
    "file elsewhere": _forged(lambda m: m["files"].update({"../good.json": m["files"]["state.json"]})),
    "absolute file": _forged(lambda m: m["files"].update({"/etc/passwd": m["files"]["state.json"]})),
    "no state": _forged(lambda m: m["files"].pop("state.json")),
    "no files": _forged(lambda m: m.update(files={})),
    "files of texts": _forged(lambda m: m.update(files="all")),
    "unknown entry": _forged(lambda m: m.update(run="this")),
    "another format": _forged(lambda m: m.update(format_version=4)),
    "a format of text": _forged(lambda m: m.update(format_version="3" * 100_000)),
    "huge counts": _forged(lambda m: m.update(frames=1 << 100)),
    "huge rows": _forged(lambda m: m["rows"].update(end_row=HUGE)),
    "rows of a huge shape": _forged(lambda m: m["rows"]["columns"]["frames"].update(shape=[1, HUGE, 3])),
    "rows that overlap": _forged(lambda m: m["rows"]["segments"].append(m["rows"]["segments"][0])),
    "rows elsewhere": _forged(lambda m: m["rows"]["segments"][0].update(file="../000001/state.json")),
    "huge rows of one file": _forged(lambda m: m["rows"]["segments"][-1].update(end_row=HUGE, bytes=HUGE * 42)),
    "rows before all": _forged(lambda m: m["rows"].update(first_row=-5)),
    "very many rows of nothing": _forged(
        lambda m: m["rows"].update(segments=m["rows"]["segments"] * 20_000, first_row=0, end_row=0)
    ),
    "more rows than there are": _forged(lambda m: m["rows"]["columns"]["rewards"].update(shape=[2])),
    "nested manifest": lambda folder, _: (folder / "manifest.json").write_text("[" * 50_000 + "]" * 50_000),
    "endless manifest": lambda folder, _: (folder / "manifest.json").write_text("[" + "{}," * 5_000_000 + "{}]"),
    "large manifest": lambda folder, _: (folder / "manifest.json").write_text('{"a": "' + "x" * (40 << 20) + '"}'),
    "a manifest of bytes": lambda folder, _: (folder / "manifest.json").write_bytes(b"\xff\xfe" * 1000),
    "a manifest of nothing": lambda folder, _: (folder / "manifest.json").write_text("null"),
    "sparse file": _sparse,
    "nested state": _of_state("[" * 50_000 + "]" * 50_000),
    "endless state": _of_state("[" + "[]," * 5_000_000 + "[]]"),
    "a state of pieces": _of_state("[" + "1," * 7_000_000 + "1]"),
    "large state": _of_state('{"a": "' + "x" * (40 << 20) + '"}'),
    "a state that is a list": _of_state("[1, 2]"),
    "NaN": _of_state('{"a": NaN}'),
    "a huge number": _of_state('{"a": ' + "9" * 10_000 + "}"),
    "a tensor elsewhere": _of_state('{"a": {"$tensor": ["../online", "weight"]}}'),
    "a tensor of nobody": _of_state('{"a": {"$tensor": ["online", "nobody"]}}'),
    "a tensor of lists": _of_state('{"a": {"$tensor": [[], {}]}}'),
    "an unknown kind": _of_state('{"a": {"$code": "import os"}}'),
    "a kind among others": _of_state('{"a": {"$tuple": [], "b": 1}}'),
    "keys of lists": _of_state('{"a": {"$dict": [[[1], 2]]}}'),
    "a huge header": _of_content("online.safetensors", lambda old: (1 << 60).to_bytes(8, "little") + old[8:]),
    "a long header": _of_content("online.safetensors", lambda _: (30 << 20).to_bytes(8, "little") + b" " * (30 << 20)),
    "a nested header": _of_content("online.safetensors", lambda _: (9999).to_bytes(8, "little") + b"[" * 9999),
    "no header": _of_content("online.safetensors", lambda _: b""),
    "tensors beyond the end": _header_of(lambda h: h["weight"].update(data_offsets=[0, HUGE], shape=[HUGE // 4])),
    "tensors that overlap": _header_of(lambda h: h["weight"].update(data_offsets=h["bias"]["data_offsets"])),
    "a pickle": _of_content("online.safetensors", lambda _: b"\x80\x04cos\nsystem\n(S'true'\ntR."),
}
"""What a stranger may have written."""


def _peak_bytes() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


def _refuses(folder: Path) -> str:
    """Read a checkpoint that is to be refused; return what is said, or what went wrong."""
    began_s, before_bytes = time.process_time(), _peak_bytes()
    try:
        read_checkpoint(folder)
    except CheckpointError as error:
        took_s, n_bytes = time.process_time() - began_s, _peak_bytes() - before_bytes
        if took_s > WITHIN_S or n_bytes > MOST_BYTES:
            return f"it takes {took_s:.1f} s and {n_bytes >> 20} MB"
        is_by_name = str(folder) in str(error) and "\n" not in str(error) and len(str(error)) < 1000
        return "" if is_by_name else f"it says {str(error)[:200]!r}"
    except Exception as error:
        return f"it fails by {error!r:.300}"
    return "it is taken"


def test_the_good_one_loads(good: Path) -> None:
    state = read_checkpoint(good)
    assert_same(ring_of(state)["columns"], rows(0, 11).by_name())
    assert_same({key: value for key, value in state.items() if key != "hooks"}, make_state(1))


@pytest.mark.parametrize("name", FORGED)
def test_what_a_stranger_forged_is_refused(good: Path, name: str) -> None:
    FORGED[name](good, random.Random(0))
    # An allocation that is not touched does not count above, but does against this limit.
    limits = resource.getrlimit(resource.RLIMIT_AS)
    virtual_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes + MOST_BYTES, limits[1]))
    try:
        assert _refuses(good) == ""
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_random_damage_is_refused(good: Path, tmp_path: Path) -> None:
    wrong = {}
    for number in range(N_RANDOM):
        rng = random.Random(number)
        mutate = RANDOM[number % len(RANDOM)]
        folder = tmp_path / f"mutated_{number}"
        shutil.copytree(good.parent, folder)
        mutate(folder / good.name, rng)
        if problem := _refuses(folder / good.name):
            wrong[f"{number} {mutate.__name__}"] = problem
        shutil.rmtree(folder)
    assert not wrong
    assert N_RANDOM + len(FORGED) >= 200
