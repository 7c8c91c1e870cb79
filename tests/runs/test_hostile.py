"""Two hundred damaged and hostile checkpoints: each is refused by name, quickly and within little memory.

A forged checkpoint has check sums that fit, so it is its sizes, shapes and structure that must not deceive. All are
read in a process of their own, whose time and memory are bounded.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.runs import CheckpointError, CheckpointStore, memory_rows, read_checkpoint
from trackmania_rl.runs.manifest import canonical_bytes

from .conftest import IMAGE_SIZE_PX, N_FLOATS, assert_same, make_state, ring_of, rows, with_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it")

N_RANDOM = 170
WITHIN_S = 20.0
"""Of processor time, for what takes a tenth of a second."""
MOST_BYTES = 200 << 20

Forge = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose rows are in three files."""
    folder = tmp_path_factory.mktemp("whole")
    row_bytes = RingBuffer.bytes_per_row(N_FLOATS, IMAGE_SIZE_PX)
    ring = RingBuffer(12, N_FLOATS, IMAGE_SIZE_PX)
    ring.append(rows(0, 11))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(memory_rows, "SMALL_SEGMENT_BYTES", row_bytes)
        monkeypatch.setattr(memory_rows, "SEGMENT_BYTES", 4 * row_bytes)
        return CheckpointStore(folder).save(with_rows(make_state(1), ring), 0)


@pytest.fixture
def good(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole.parent, tmp_path / "run")) / whole.name


@pytest.fixture(scope="module")
def reader() -> Iterator[ProcessPoolExecutor]:
    """The process that reads."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def problem_of(folder: Path) -> str:
    """Read a checkpoint that is to be refused; return what went wrong, "" if it was refused as it should be."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    virtual_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    began_s, before_bytes = time.process_time(), _peak_bytes()
    # An allocation that is not touched is not in the peak, but counts for this limit.
    resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes + MOST_BYTES, limits[1]))
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
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return "it is taken"


def _peak_bytes() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


def damage(how: str, folder: Path, rng: random.Random) -> None:
    """Damage one file of a checkpoint or of its rows."""
    files = sorted(file for file in folder.parent.rglob("*") if file.is_file())
    file, other = rng.sample(files, 2)
    content = file.read_bytes()
    at = rng.randrange(len(content))
    match how:
        case "flip a bit":
            file.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        case "cut short":
            file.write_bytes(content[:at])
        case "add bytes":
            file.write_bytes(content + rng.randbytes(rng.randrange(1, 100)))
        case "overwrite":
            file.write_bytes(content[:at] + bytes(byte ^ 0xFF for byte in content[at : at + 40]) + content[at + 40 :])
        case "swap":
            file.write_bytes(other.read_bytes())
            other.write_bytes(content)
        case "delete":
            file.unlink()
        case "link":
            file.symlink_to(file.rename(file.with_name("elsewhere")))
        case "device":
            file.unlink()
            file.symlink_to("/dev/zero")
        case "pipe":
            file.unlink()
            os.mkfifo(file)
        case "folder":
            file.unlink()
            file.mkdir()


DAMAGES = (
    *("flip a bit", "flip a bit", "flip a bit", "flip a bit", "cut short", "cut short", "add bytes", "overwrite"),
    *("swap", "delete", "link", "device", "pipe", "folder"),
)


def forged(change: Callable[[dict[str, Any]], object]) -> Forge:
    """A manifest that says something else, with the check sum that goes with it."""

    def forge(folder: Path) -> None:
        file = folder / "manifest.json"
        manifest = json.loads(file.read_bytes())["manifest"]
        change(manifest)
        file.write_bytes(canonical_bytes(manifest))

    return forge


def of_content(name: str, content: Callable[[bytes], bytes]) -> Forge:
    """A file that holds something else, with the size and check sum that go with it."""

    def forge(folder: Path) -> None:
        new = content((folder / name).read_bytes())
        (folder / name).write_bytes(new)
        entry = {"bytes": len(new), "crc32": zlib.crc32(new)}
        forged(lambda manifest: manifest["files"].update({name: entry}))(folder)

    return forge


def of_state(text: str) -> Forge:
    return of_content("state.json", lambda _: text.encode())


def header_of(content: Callable[[dict[str, Any]], object]) -> Forge:
    """A file of tensors whose header says something else."""

    def forge(old: bytes) -> bytes:
        n_bytes = int.from_bytes(old[:8], "little")
        header = json.loads(old[8 : 8 + n_bytes])
        content(header)
        new = json.dumps(header).encode()
        return len(new).to_bytes(8, "little") + new + old[8 + n_bytes :]

    return of_content("online.safetensors", forge)


def sparse(folder: Path) -> None:
    """A file of 40 GB that takes no room."""
    with (folder / "tensors.safetensors").open("r+b") as file:
        file.truncate(40 << 30)
    forged(lambda manifest: manifest["files"]["tensors.safetensors"].update(bytes=40 << 30))(folder)


HUGE = 1 << 40
FORGED: dict[str, Forge] = {
    "huge tensor": forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[HUGE])),
    "huge shape": forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[HUGE] * 16)),
    "many dimensions": forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[1] * 1000)),
    "negative shape": forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(shape=[-2, -3])),
    "unknown dtype": forged(lambda m: m["tensors"]["online.safetensors"]["weight"].update(dtype="object")),
    "no such tensor": forged(lambda m: m["tensors"]["online.safetensors"].pop("weight")),
    "huge file": forged(lambda m: m["files"]["online.safetensors"].update(bytes=HUGE)),
    "larger than anything": forged(lambda m: m["files"]["online.safetensors"].update(bytes=1 << 70)),
    "file elsewhere": forged(lambda m: m["files"].update({"../good.json": m["files"]["state.json"]})),
    "no state": forged(lambda m: m["files"].pop("state.json")),
    "unknown entry": forged(lambda m: m.update(run="this")),
    "a format of text": forged(lambda m: m.update(format_version="3" * 100_000)),
    "huge rows": forged(lambda m: m["rows"].update(end_row=HUGE)),
    "rows of a huge shape": forged(lambda m: m["rows"]["columns"]["frames"].update(shape=[1, HUGE, 3])),
    "rows that overlap": forged(lambda m: m["rows"]["segments"].append(m["rows"]["segments"][0])),
    "rows elsewhere": forged(lambda m: m["rows"]["segments"][0].update(file="../000001/state.json")),
    "huge rows of one file": forged(lambda m: m["rows"]["segments"][-1].update(end_row=HUGE, bytes=HUGE * 42)),
    "rows before all": forged(lambda m: m["rows"].update(first_row=-5)),
    "very many rows of nothing": forged(
        lambda m: m["rows"].update(segments=m["rows"]["segments"] * 3_000, first_row=0, end_row=0)
    ),
    "more rows than there are": forged(lambda m: m["rows"]["columns"]["rewards"].update(shape=[2])),
    "nested manifest": lambda folder: (folder / "manifest.json").write_text("[" * 50_000 + "]" * 50_000),
    "endless manifest": lambda folder: (folder / "manifest.json").write_text("[" + "{}," * 5_000_000 + "{}]"),
    "large manifest": lambda folder: (folder / "manifest.json").write_text('{"a": "' + "x" * (40 << 20) + '"}'),
    "a manifest of bytes": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe" * 1000),
    "sparse file": sparse,
    "nested state": of_state("[" * 50_000 + "]" * 50_000),
    "endless state": of_state("[" + "[]," * 5_000_000 + "[]]"),
    "a state of pieces": of_state("[" + "1," * 7_000_000 + "1]"),
    "large state": of_state('{"a": "' + "x" * (40 << 20) + '"}'),
    "NaN": of_state('{"a": NaN}'),
    "a huge number": of_state('{"a": ' + "9" * 10_000 + "}"),
    "a tensor elsewhere": of_state('{"a": {"$tensor": ["../online", "weight"]}}'),
    "a tensor of nobody": of_state('{"a": {"$tensor": ["online", "nobody"]}}'),
    "an unknown kind": of_state('{"a": {"$code": "import os"}}'),
    "a kind among others": of_state('{"a": {"$tuple": [], "b": 1}}'),
    "keys of lists": of_state('{"a": {"$dict": [[[1], 2]]}}'),
    "a huge header": of_content("online.safetensors", lambda old: (1 << 60).to_bytes(8, "little") + old[8:]),
    "a long header": of_content("online.safetensors", lambda _: (30 << 20).to_bytes(8, "little") + b" " * (30 << 20)),
    "a nested header": of_content("online.safetensors", lambda _: (9999).to_bytes(8, "little") + b"[" * 9999),
    "tensors beyond the end": header_of(lambda h: h["weight"].update(data_offsets=[0, HUGE], shape=[HUGE // 4])),
    "tensors that overlap": header_of(lambda h: h["weight"].update(data_offsets=h["bias"]["data_offsets"])),
    "a pickle": of_content("online.safetensors", lambda _: b"\x80\x04cos\nsystem\n(S'true'\ntR."),
}


def test_the_good_one_loads(good: Path) -> None:
    state = read_checkpoint(good)
    assert_same(ring_of(state)["columns"], rows(0, 11).by_name())
    assert_same({key: value for key, value in state.items() if key != "hooks"}, make_state(1))


@pytest.mark.parametrize("name", FORGED)
def test_what_was_forged_is_refused(good: Path, reader: ProcessPoolExecutor, name: str) -> None:
    FORGED[name](good)
    assert reader.submit(problem_of, good).result() == ""
    with pytest.raises(CheckpointError):  # here as well, where coverage is measured
        read_checkpoint(good)


def test_random_damage_is_refused(good: Path, reader: ProcessPoolExecutor, tmp_path: Path) -> None:
    wrong = {}
    for number in range(N_RANDOM):
        how = DAMAGES[number % len(DAMAGES)]
        folder = tmp_path / f"damaged_{number}"
        shutil.copytree(good.parent, folder)
        damage(how, folder / good.name, random.Random(number))
        if problem := reader.submit(problem_of, folder / good.name).result():
            wrong[f"{number} {how}"] = problem
        shutil.rmtree(folder)
    assert not wrong
