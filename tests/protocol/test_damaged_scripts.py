"""Whatever an inputs file holds, it is read or refused: no other error, no hang, no memory without bound."""

import random
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from trackmania_rl.protocol.input_script import (
    MAX_SCRIPT_BYTES,
    MAX_TIME_MS,
    InputEvent,
    InputScriptError,
    read_input_script,
    write_input_script,
)

MOST_MB = 200
MOST_S_EACH = 2.0
GOOD = b"""# a race
0.00 press up
0.28-1.25 press left; 1.30 steer -65536
1:02.50 gas 65536
62510 rel up
1:00:00.00 press enter
"""
PIECES = (
    b"\x00",
    b"\xff\xfe",
    b";" * 900,
    b"#",
    b"\n",
    b" ",
    b"-",
    b":",
    b".",
    b"9" * 30,
    b"-1",
    b"1e9",
    b"\xc2\xb2",
    b"nan",
)


def mutated(rng: random.Random) -> bytes:
    """A good script with bits flipped, cut off, doubled, or with something foreign in it."""
    data = bytearray(GOOD * rng.choice((1, 1, 1, 40)))
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[place:]
            case 2:
                data[place:place] = rng.choice(PIECES)
            case 3:
                data[place:place] = rng.randbytes(rng.randrange(50))
            case 4:
                data[place:place] = str(rng.choice((10, 1 << 31, 1 << 64, 10**12)) + rng.randrange(99)).encode()
            case _:
                data[place:place] = data[: rng.randrange(200)]
    return bytes(data)


def is_read_or_refused(file: Path) -> bool:
    """Whether the file is a script; anything but one or an error for the user fails the test."""
    try:
        events = read_input_script(file)
    except InputScriptError as error:
        text = str(error)
    else:
        _check_events(events, file.with_suffix(".again"))
        return True
    assert str(file) in text
    assert len(text) < 1_000
    return False


def _check_events(events: list[InputEvent], again: Path) -> None:
    assert all(0 <= event.time_ms <= MAX_TIME_MS for event in events)
    assert all(before.time_ms <= after.time_ms for before, after in pairwise(events))
    again.write_text(write_input_script(events))
    if again.stat().st_size <= MAX_SCRIPT_BYTES:
        assert read_input_script(again) == events


def check_mutations(folder: Path, n_files: int, seed: int) -> None:
    rng = random.Random(seed)
    process = psutil.Process()
    before_mb = process.memory_info().rss / 1e6
    n_read = 0
    for _ in range(n_files):
        file = folder / "mutated.inputs"
        file.write_bytes(mutated(rng))
        started_s = time.process_time()
        n_read += is_read_or_refused(file)
        assert time.process_time() - started_s < MOST_S_EACH
    assert process.memory_info().rss / 1e6 - before_mb < MOST_MB
    assert 0 < n_read < n_files


def test_mutated_files(tmp_path: Path) -> None:
    check_mutations(tmp_path, 200, seed=7)


@pytest.mark.slow
def test_many_mutated_files(tmp_path: Path) -> None:
    check_mutations(tmp_path, 10_000, seed=11)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"1 rel up;" * (MAX_SCRIPT_BYTES // 9), id="as many commands as fit, on one line"),
        pytest.param(b"x" * MAX_SCRIPT_BYTES, id="one long word"),
        pytest.param(b"0 press " + b"u" * (MAX_SCRIPT_BYTES - 8), id="a long key"),
        pytest.param(b"9" * MAX_SCRIPT_BYTES + b" press up", id="too large"),
        pytest.param(b"9" * 5_000 + b".00 press up", id="a number of 5000 digits"),
        pytest.param(b"9999999:9999999:9999999.99 press up", id="a time of centuries"),
        pytest.param(b"0-4294967295 press up", id="billions of ms"),
        pytest.param(b"\n" * MAX_SCRIPT_BYTES, id="empty lines"),
        pytest.param(b" " * MAX_SCRIPT_BYTES, id="blanks"),
        pytest.param(bytes(range(256)) * 99, id="binary"),
        pytest.param(b"\xff\xfe0\x00 \x00p\x00", id="another encoding"),
    ],
)
def test_extremes_cost_little(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "extreme.inputs"
    file.write_bytes(content)
    before_mb = psutil.Process().memory_info().rss / 1e6
    started_s = time.process_time()
    is_read_or_refused(file)
    assert time.process_time() - started_s < 20.0
    assert psutil.Process().memory_info().rss / 1e6 - before_mb < MOST_MB


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputScriptError, match="is not a file"):
        read_input_script(tmp_path)
    with pytest.raises(InputScriptError, match="cannot be read: No such file"):
        read_input_script(tmp_path / "absent.inputs")
