"""Scores, curves and milestones of hand-made races."""

import json
import math
import statistics

import pytest

RECORD_MS = 20_000


@pytest.fixture
def yardstick():
    from benchmarks.driving.score import Yardstick

    return Yardstick(
        length_m=700.0,
        scripted_careful_ms=40_000,
        scripted_fast_ms=None,
        scripted_tuned_ms=25_000,
        record_ms=RECORD_MS,
    )


def race(wall_s, frames, time_ms=None, is_explo=False, track="valley"):
    return {
        "wall_s": wall_s,
        "frames_total": frames,
        "map": track,
        "is_explo": is_explo,
        "race_finished": time_ms is not None,
        "race_time_ms": time_ms or 3_000,
    }


def test_the_score_of_a_race_is_the_records_time_over_its_own():
    from benchmarks.driving.score import race_score

    assert race_score(race(1, 1, 25_000), RECORD_MS) == 0.8
    assert race_score(race(1, 1, 16_000), RECORD_MS) == 1.25
    assert race_score(race(1, 1), RECORD_MS) == 0.0  # cut off after 3 s, far quicker than the record


@pytest.mark.parametrize("axis", ["wall_s", "frames_total"])
def test_scores_at_moments_are_medians_over_the_last_ten_races(axis):
    from benchmarks.driving.score import scores_at

    times_ms = [None, 50_000, None, *range(40_000, 22_000, -1_000), None, 21_000]
    greedy = [race(7.0 * i, 50 * i, time_ms) for i, time_ms in enumerate(times_ms, start=1)]
    moments = [0.0, 3.0, 7.0, 14.0, 50.0, 99.0, 500.0, 1_050.0, 10_000.0]
    expected = []
    for moment in moments:
        scores = [RECORD_MS / r["race_time_ms"] if r["race_finished"] else 0.0 for r in greedy if r[axis] <= moment]
        expected.append(statistics.median(scores[-10:]) if scores else 0.0)
    assert scores_at(greedy, RECORD_MS, axis, moments) == expected
    assert expected[0] == 0.0
    assert expected[-1] > 0.7


def test_half_of_ten_races_must_finish_for_a_score(yardstick):
    from benchmarks.driving.score import scores_at

    def score(n_finished):
        greedy = [race(i, i, 25_000 if i < n_finished else None) for i in range(10)]
        return scores_at(greedy, RECORD_MS, "wall_s", [60])[0]

    assert [score(n) for n in (4, 5, 6, 10)] == [0.0, 0.4, 0.8, 0.8]


def test_figures_of_a_run(yardstick):
    from benchmarks.driving.score import Milestone, run_figures

    races = [race(2.0, 40, 15_000, is_explo=True)]  # exploring, however quickly, counts for nothing
    races += [race(3.0, 60, 15_000, track="kart")]  # nor does another track
    races += [race(5.0, 100), race(10.0, 200, 30_000), race(15.0, 300)]
    races += [race(15.0 + 5 * i, 300 + 100 * i, 30_000 - 1_000 * i) for i in range(1, 12)]  # 29 s to 19 s
    races += [race(90.0, 1_500, is_explo=True), race(121.0, 2_000, 10_000)]  # the last one after two minutes
    figures = run_figures(races, "valley", yardstick, minutes=2)
    assert figures.first_finish == Milestone(10.0, 200)
    # Ten races with one unfinished at most: the 2nd to the 11th.
    assert figures.regular_finish == Milestone(55.0, 1_100)
    # Medians of 26.5 s, 25.5 s, 24.5 s: the last one of races 4 to 13, below the scripted driver's 25 s.
    assert figures.beats_scripted == Milestone(65.0, 1_300)
    assert figures.score_by_minute == (
        statistics.median([0.0, *(RECORD_MS / time_ms for time_ms in range(29_000, 20_000, -1_000))]),
        statistics.median(RECORD_MS / time_ms for time_ms in range(28_000, 18_000, -1_000)),
    )
    assert figures.frames_by_minute == (1_200, 1_500)
    assert (figures.best_ms, figures.n_greedy, figures.frames) == (19_000, 14, 1_500)
    assert figures.last_minute_score == statistics.median([RECORD_MS / 20_000, RECORD_MS / 19_000])  # at 65 and 70 s
    assert figures.mean_score == statistics.fmean(figures.score_by_minute)


def test_what_never_was_is_later_than_anything(yardstick):
    from benchmarks.driving.score import Milestone, Spread, run_figures, summarize

    never = run_figures([race(30.0, 500)], "valley", yardstick, minutes=3)
    assert never.first_finish == Milestone(math.inf, math.inf)
    assert never.score_by_minute == (0.0, 0.0, 0.0)
    assert never.best_ms is None
    soon = run_figures([race(20.0, 400, 25_000)], "valley", yardstick, minutes=2)
    late = run_figures([race(50.0, 900, 20_000)], "valley", yardstick, minutes=2)
    summary = summarize([soon, never, late])
    assert summary.n_seeds == 3
    assert summary.first_finish_s == Spread(50.0, 20.0, math.inf)
    assert summary.score_by_minute == (Spread(0.8, 0.0, 1.0),) * 2  # as far as the shortest run goes
    assert summary.mean_score == Spread(0.8, 0.0, 1.0)
    assert summary.best_ms == Spread(25_000, 20_000, math.inf)
    assert summarize([soon, never]).first_finish_frames.median == math.inf


def test_a_run_without_races_scores_nothing(yardstick):
    from benchmarks.driving.score import run_figures

    figures = run_figures([], "valley", yardstick, minutes=1)
    assert (figures.score_by_minute, figures.frames_by_minute, figures.frames) == ((0.0,), (0,), 0)
    assert figures.last_minute_score == 0.0


def test_yardsticks_are_read_or_their_making_is_told(tmp_path, yardstick):
    from benchmarks.driving.score import read_yardsticks
    from trackmania_rl.errors import UserError

    file = tmp_path / "yardsticks.json"
    with pytest.raises(UserError, match=r"python -m research\.planner ring"):
        read_yardsticks(file, ["ring"])
    with pytest.raises(UserError, match=r"research\.planner kart generated:0\.25:7 \(a track file by its path\)"):
        read_yardsticks(file, ["kart", "generated_0.250_7"])
    entry = yardstick.model_dump() | {"scripted_tuned_settings": {}}
    file.write_text(json.dumps({"valley": entry, "kart": entry | {"record_ms": -5}}))
    assert read_yardsticks(file, ["valley"]) == {"valley": yardstick}
    with pytest.raises(UserError, match=r"kart\.record_ms = -5"):
        read_yardsticks(file, ["valley", "kart"])
    file.write_text("{")
    with pytest.raises(UserError, match="damaged"):
        read_yardsticks(file, ["valley"])
