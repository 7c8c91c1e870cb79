"""When a collector is taken to hang, and when it is not."""

from pathlib import Path

import pytest

from trackmania_rl.channels.protocols import SignsOfLife
from trackmania_rl.multiprocess.liveness import FIRST_BEAT_WITHIN_S, FIRST_RACE_LATER_S, Bounds, LifeWatch
from trackmania_rl.settings import load_settings

BOUNDS = Bounds(silence_s=30.0, delivery_s=200.0)
LOOK_S = 0.5


class Watched:
    """A collector that is looked at twice a second."""

    def __init__(self) -> None:
        self.watch = LifeWatch()
        self.n_beats = 0

    def go_on(self, seconds: float, *, beats: bool = True, waits: bool = False, look_s: float = LOOK_S) -> str | None:
        for _ in range(round(seconds / look_s)):
            self.n_beats += beats
            why = self.watch.look(SignsOfLife(self.n_beats, is_waiting=waits), look_s, BOUNDS)
            if why is not None:
                return why
        return None


@pytest.fixture
def watched() -> Watched:
    """One that has delivered."""
    watched = Watched()
    assert watched.go_on(10) is None
    watched.watch.delivered()
    return watched


def test_silence_is_noticed_within_its_bound(watched: Watched) -> None:
    assert watched.go_on(29, beats=False) is None
    assert watched.go_on(2, beats=False) == "has given no sign of life for 30 s"


def test_a_process_that_begins_may_take_longer_until_it_beats() -> None:
    watched = Watched()
    assert watched.go_on(FIRST_BEAT_WITHIN_S - 1, beats=False) is None
    assert watched.go_on(2, beats=False) == f"has given no sign of life for {FIRST_BEAT_WITHIN_S:.0f} s"


def test_one_that_beats_but_brings_no_race_is_noticed(watched: Watched) -> None:
    assert watched.go_on(199) is None
    assert watched.go_on(2) == "has brought no race for 200 s"


def test_its_first_race_may_take_longer_since_it_compiles() -> None:
    watched = Watched()
    assert watched.go_on(200 + FIRST_RACE_LATER_S - 1) is None
    assert watched.go_on(2) is not None


def test_waiting_for_room_or_for_a_turn_is_no_hanging(watched: Watched) -> None:
    assert watched.go_on(100_000, waits=True) is None
    assert watched.go_on(199) is None
    assert watched.go_on(2) is not None


def test_waiting_without_a_beat_is(watched: Watched) -> None:
    assert watched.go_on(31, beats=False, waits=True) == "has given no sign of life for 30 s"


def test_races_that_are_seen_to_come_slowly_have_more_time(watched: Watched) -> None:
    for _ in range(3):
        assert watched.go_on(150) is None
        watched.watch.delivered()
    assert watched.go_on(440) is None
    assert watched.go_on(20) == "has brought no race for 450 s"


def test_a_machine_that_was_suspended_kills_nobody(watched: Watched) -> None:
    """Who looks was stopped as well: an hour has passed between two looks, and then everybody goes on."""
    for _ in range(20):
        assert watched.go_on(3600, beats=False, look_s=3600.0) is None
        assert watched.go_on(1) is None


def test_the_bounds_follow_from_the_longest_race_and_from_a_games_start(repository_root: Path) -> None:
    def delivery_s(**changes: object) -> float:
        overrides = {"cutoff_race_longer_than_ms": 60_000, "collector_silence_s": 30.0, **changes}
        return Bounds.of_settings(load_settings(repository_root / "config_files" / "config.py", overrides)).delivery_s

    assert delivery_s() == 30 + 60 * 2
    assert delivery_s(cutoff_race_longer_than_ms=300_000) == 30 + 300 * 2
    assert delivery_s(running_speed=0.5) == 30 + 60 * 2 * 2
    assert delivery_s(running_speed=80.0) == delivery_s(running_speed=1.0)
    assert delivery_s(game_transport="socket", tmi_protection_timeout_s=10.0) == 30 + 60 * 2 + 3 * (120 + 120 + 10)
