"""Files that grow: nothing is read twice, nothing twice as long as it need be."""

from pathlib import Path

import pytest

from trackmania_rl.dashboard import tails
from trackmania_rl.dashboard.tails import LineTail, sampled_lines


def test_lines_come_once_they_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    tail = LineTail(file)
    assert tail.read() == []
    with file.open("ab") as writer:
        for text, expected in ((b"one\ntw", [b"one"]), (b"o", []), (b"\nthree\n", [b"two", b"three"])):
            writer.write(text)
            writer.flush()
            assert tail.read() == expected


def test_a_file_that_was_replaced_by_a_shorter_one_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"old\nolder\n")
    tail = LineTail(file)
    assert tail.read() == [b"old", b"older"]
    file.write_bytes(b"new\n")
    assert tail.read() == [b"new"]
    assert tail.n_restarts == 1


def test_a_large_file_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "MOST_BYTES_AT_ONCE", 10)
    file = tmp_path / "log"
    file.write_bytes(b"aaaa\nbbbb\ncccc\n")
    tail = LineTail(file)
    assert [tail.read(), tail.read(), tail.read()] == [[b"aaaa", b"bbbb"], [b"cccc"], []]


def test_samples_are_whole_lines_from_all_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "WHOLE_FILE_BYTES", 6400)
    file = tmp_path / "log"
    file.write_bytes(b"".join(b"%09d\n" % number for number in range(10_000)) + b"torn")
    lines, end, n_per_line = sampled_lines(file)
    numbers = [int(line) for line in lines]
    assert end == 100_000
    assert n_per_line == pytest.approx(100_000 / 6400)
    assert 500 < len(numbers) <= 640
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert numbers[-1] == 9999


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\nthr")
    lines, end, n_per_line = sampled_lines(file)
    assert (list(lines), end, n_per_line) == ([b"one", b"two"], 8, 1.0)
    (tmp_path / "empty").touch()
    assert list(sampled_lines(tmp_path / "empty")[0]) == []
