"""`maps.py follow`: the places where time is lost."""

import sys
from pathlib import Path

import numpy as np
from rich.console import Console

from trackmania_rl.gbx.challenge import read_challenge
from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.gbx.replay_inputs import ghost_of_driver
from trackmania_rl.track.ghost_race import race_of_ghost
from trackmania_rl.track.replay_tracker import Followed


def test_gates_and_the_places_where_time_is_lost_are_printed(script_module, shared_data: Path) -> None:
    script_module("tools/maps")
    follow = sys.modules["maps_commands.follow"]
    replay = read_replay(shared_data / "replays" / "B13-Obstacle_24.94_a.Replay.Gbx")
    ghost = ghost_of_driver(replay, None)
    blocks = read_challenge(shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx").blocks
    race = race_of_ghost(ghost, blocks, replay.path)
    n = 90  # decisions of 50 ms, all on the path; behind from 4 s on
    followed = Followed(
        controls=np.zeros((n, 3)),
        position_m=np.zeros((n, 3)),
        aside_m=np.linspace(0.0, 2.0, n),
        behind_ms=np.where(np.arange(n) < 80, 0.0, 50.0),
        path_tick=5 * np.arange(1, n + 1),
        gate_times_ms=(8120,),
        is_finished=False,
    )
    places = follow.places_of(race, followed)
    assert [place.block for place in places if place.lost_ms > 0] == ["StadiumPlatformLoopStart"]
    assert sum(place.lost_ms for place in places) == 50
    assert places[-1].aside_m == 2.0
    console = Console(width=120, record=True)
    follow.print_followed(console, race, ghost, followed)
    printed = console.export_text()
    assert "0:08.020" in printed
    assert "+0.10" in printed
    assert "lost after 4.5 s" in printed
    assert "StadiumPlatformLoopStart" in printed
