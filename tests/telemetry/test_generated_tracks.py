"""Races on generated tracks: which one it was is written down, and times on different tracks are not compared."""

import json
from pathlib import Path

import pytest

from trackmania_rl.telemetry.figures import race_figures
from trackmania_rl.telemetry.race_record import CommandClock, RaceLog, RaceRecord
from trackmania_rl.telemetry.statistics import RaceHistory, TrainingStatistics
from trackmania_rl.telemetry.terminal_view import plain_line


def make_race(track: str, time_ms: int | None) -> RaceRecord:
    finished = time_ms is not None
    is_generated = track != "generated_0.5_3"  # which is one that a user has made, the map of an ordinary entry
    return RaceRecord(
        "made", False, 0, finished, time_ms or 500, 300.0, 200, 10, None, track=track, is_generated=is_generated
    )


RACES = [make_race("generated_0.412_7", 31_000), make_race("generated_0.398_11", None)]


def test_the_log_says_which_track_it_was(tmp_path: Path) -> None:
    log = RaceLog(tmp_path / "races.jsonl", CommandClock(), session=1)
    for race in (*RACES, make_race("generated_0.5_3", 30_000)):
        log.write(race, 10)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "races.jsonl").read_text().splitlines()]
    assert [line.get("track") for line in lines] == ["generated_0.412_7", "generated_0.398_11", None]
    assert [line["map"] for line in lines] == ["made"] * 3


def test_times_on_different_tracks_are_not_compared() -> None:
    figures = TrainingStatistics()
    assert not any(figures.add_race(race) for race in RACES)
    history = figures.maps["made"].evaluated
    assert (history.n_races, history.n_finished, history.recent_finish_rate) == (2, 1, 0.5)
    assert history.best_time_ms is history.median_time_ms is None
    assert "made: evaluated 1/2 finished, last 300 m" in plain_line(figures)
    resumed = RaceHistory()
    resumed.load_state_dict(history.state_dict())
    assert not resumed.is_one_track
    assert resumed.state_dict() == history.state_dict()


@pytest.mark.parametrize(("track", "has_best"), [("generated_0.412_7", False), ("generated_0.5_3", True)])
def test_loggers_show_the_share_finished(track: str, has_best: bool) -> None:
    figures, race = TrainingStatistics(), make_race(track, 31_000)
    figures.add_race(race)
    written = race_figures(race, figures.maps["made"].evaluated)
    assert written["rollout/finish_rate/evaluated/made"] == 1.0
    assert written["rollout/race_time_s/evaluated/made"] == 31.0
    assert (
        ("rollout/best_time_s/evaluated/made" in written)
        == ("rollout/median_time_s/evaluated/made" in written)
        == has_best
    )
