"""The lines of races.jsonl, and what a resumed run does with those after its checkpoint."""

import json
import sys
from pathlib import Path

import pytest

from tests.telemetry.conftest import race_record
from trackmania_rl.telemetry.race_record import UNDONE_FILE, CommandClock, RaceLog


def make_record(**changes):
    values = {"collector": 1, "meters": 812.12345, "checkpoint_times_ms": (12_000, 20_500, 31_250)}
    return race_record(31_250, **(values | changes))


def test_each_race_is_a_line_at_once(tmp_path):
    path = tmp_path / "races.jsonl"
    log = RaceLog(path, CommandClock(), session=7)
    log.write(make_record(), frames_total=625)
    first = json.loads(path.read_text())
    assert first.pop("wall_s") > 0
    assert first == {
        "session": 7,
        "frames_total": 625,
        "map": "valley",
        "is_explo": True,
        "race_finished": True,
        "race_time_ms": 31_250,
        "meters": 812.123,
        "collector": 1,
        "cutoff_reason": None,
        "is_demonstration": False,
        "checkpoint_times_ms": [12_000, 20_500, 31_250],
    }
    log.write(make_record(track="generated_0.412_7", is_generated=True, cutoff_reason="too_long"), frames_total=1_250)
    second = json.loads(path.read_text().splitlines()[1])
    assert (second["frames_total"], second["cutoff_reason"]) == (1_250, "too_long")
    assert (second["map"], second["track"]) == ("valley", "generated_0.412_7")
    log.close()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
@pytest.mark.parametrize("take_away", [Path.unlink, lambda path: path.rename(path.with_suffix(".1"))])
def test_a_file_that_was_deleted_or_rotated_is_made_again(tmp_path, take_away):
    path = tmp_path / "races.jsonl"
    log = RaceLog(path, CommandClock(), session=7)
    log.write(make_record(), frames_total=1)
    take_away(path)
    for frames_total in (2, 3):
        log.write(make_record(), frames_total)
    log.close()
    assert [json.loads(line)["frames_total"] for line in path.read_text().splitlines()] == [2, 3]


def test_a_resumed_run_adds_lines_and_drops_a_torn_one(tmp_path):
    path = tmp_path / "races.jsonl"
    path.write_text('{"frames_total": 5}\n{"frames_to')
    log = RaceLog(path, CommandClock(), session=3)
    log.write(make_record(), frames_total=9)
    log.close()
    log = RaceLog(path, CommandClock(), session=4)
    log.write(make_record(), frames_total=12)
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["frames_total"], line.get("session")) for line in lines] == [(5, None), (9, 3), (12, 4)]


@pytest.mark.parametrize(
    ("frames", "frames_total", "n_kept"),
    [
        ([5, 9, 12, 40], 12, 3),
        ([5, 9, 12, 40], 100, 4),
        ([5, 9, 12, 40], 0, 0),
        ([5, 9, 40, 11, 13, 14], 11, 4),  # an earlier version left undone lines in between
        ([], 7, 0),
    ],
)
def test_lines_beyond_the_checkpoint_are_moved_away(tmp_path, frames, frames_total, n_kept):
    path, undone = tmp_path / "races.jsonl", tmp_path / UNDONE_FILE
    lines = [json.dumps({"frames_total": number, "map": "x" * number}) + "\n" for number in frames]
    path.write_text("".join(lines))
    log = RaceLog(path, CommandClock(), 2, frames_total)
    assert log.n_undone == len(frames) - n_kept
    assert path.read_text() == "".join(lines[:n_kept])
    assert (undone.read_text() if undone.exists() else "") == "".join(lines[n_kept:])
    log.write(make_record(), frames_total=frames_total + 3)
    log.close()
    assert [json.loads(line)["frames_total"] for line in path.read_text().splitlines()] == [
        *frames[:n_kept],
        frames_total + 3,
    ]
    RaceLog(path, CommandClock(), 3, frames_total).close()  # killed once more
    assert path.read_text() == "".join(lines[:n_kept])
    assert len(undone.read_text().splitlines()) == len(frames) - n_kept + 1


def test_a_line_that_is_none_stays(tmp_path):
    path = tmp_path / "races.jsonl"
    path.write_text('{"frames_total": 50}\nwritten by hand\n{"frames_total": 60}\n')
    log = RaceLog(path, CommandClock(), 2, 10)
    assert log.n_undone == 1
    assert path.read_text() == '{"frames_total": 50}\nwritten by hand\n'
    log.close()
