"""When a game counts as slow."""

import pytest

from trackmania_rl.tmi_interaction.speed_watch import RACES_AVERAGED, SpeedWatch


def test_the_ratio_is_that_of_the_last_races_and_the_share_that_of_the_best():
    races = [(20.0, 1.0)] * 7 + [(30.0, 1.0)] * 12 + [(25.0, 5.0)] * 13
    watch, best = SpeedWatch(), 0.0
    for n, race in enumerate(races, start=1):
        watch.add_race(*race)
        last = races[max(n - RACES_AVERAGED, 0) : n]
        if n < RACES_AVERAGED:
            assert watch.ratio is None
            assert watch.share_of_best() == 1.0
            continue
        ratio = sum(race_s for race_s, _ in last) / sum(waited_s for _, waited_s in last)
        best = max(best, ratio)
        assert watch.ratio == pytest.approx(ratio)
        assert watch.share_of_best() == pytest.approx(ratio / best)
    assert watch.share_of_best() == pytest.approx(5 / 30)


def test_no_waiting_at_all_is_no_division_by_zero():
    watch = SpeedWatch()
    for _ in range(RACES_AVERAGED):
        watch.add_race(60.0, 0.0)
    assert watch.share_of_best() == 1.0


def test_races_without_any_time_are_no_division_by_zero():
    watch = SpeedWatch()
    for _ in range(2 * RACES_AVERAGED):
        watch.add_race(0.0, 0.1)
    assert watch.share_of_best() == 1.0
