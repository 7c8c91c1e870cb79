"""Windows of a race: the simulated car follows itself, and humans on the maps that are at hand."""

from __future__ import annotations

import numpy as np
import pytest

from research.windows import WITHIN_M, drive_ghost, ghosts_in
from tests.track.conftest import make_challenge
from trackmania_rl.gbx.challenge import Block
from trackmania_rl.gbx.replay import Ghost, GhostSamples, ghost_events_of_script
from trackmania_rl.protocol.input_script import Input, InputEvent
from trackmania_rl.simulator.physics.vehicle import quaternion_from_rotation
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.block_tracks import arrays_of_map, write_block_track
from trackmania_rl.track.block_world import world_of

PERIOD_MS = 100


def test_the_simulated_car_follows_its_own_race(tmp_path):
    road = [Block("StadiumRoadMain", (9, 1, z), 0, 3) for z in range(3, 12)]
    ends = Block("StadiumRoadMainStartLine", (9, 1, 2), 0, 0x1000), Block("StadiumRoadMainFinishLine", (9, 1, 12), 0, 0)
    challenge = make_challenge(*ends, *road)
    line_m = np.stack([np.full(600, 304.0), np.full(600, 9.4), 76.0 + 0.5 * np.arange(600)], axis=1)
    write_block_track(challenge, arrays_of_map(challenge, world_of(challenge), line_m), line_m, tmp_path / "made.toml")
    taps = [(2500, Input.LEFT, 1), (2700, Input.LEFT, 0), (3100, Input.RIGHT, 1), (3500, Input.RIGHT, 0)]
    events = [InputEvent(0, Input.ACCELERATE, 1), *(InputEvent(*tap) for tap in taps)]
    race, rows = SimulatedRace(load_track(tmp_path / "made.toml")), []
    race.play_script(events)
    while race.tick_time_ms <= 6000 and not race.is_finished:
        if race.tick_time_ms >= 0 and race.tick_time_ms % PERIOD_MS == 0:
            car = race.car
            speed_m_s = float(np.linalg.norm(car["velocity_m_s"][0]))
            rotation = quaternion_from_rotation(car["rotation"][0].astype(np.float64))
            rows.append((race.tick_time_ms, car["position_m"][0].copy(), rotation, speed_m_s))
        race.advance()
    times_ms, positions_m, rotations, speeds_m_s = (np.array(column) for column in zip(*rows, strict=True))
    samples = GhostSamples(PERIOD_MS, times_ms, positions_m.astype(np.float64), rotations, speeds_m_s)
    ghost = Ghost("me", None, (), 0, samples, ghost_events_of_script(events), "")
    ends_m = np.array([result.apart_m[-1] for result in drive_ghost(challenge, ghost, samples, tmp_path)])
    assert len(ends_m) >= 8
    assert np.median(ends_m) < 0.1
    assert (ends_m <= 0.3).mean() >= 0.7
    assert ends_m.max() < 1.0


@pytest.mark.parametrize(("name", "shares"), [("B13-Obstacle", (0.55, 0.75, 0.95)), ("mydli mydli", (0.6, 0.7, 0.85))])
def test_humans_are_followed_on_their_maps_blocks(shared_data, name, shares):
    ends_m = []
    for file, challenge, ghost, samples in ghosts_in(shared_data / "replays"):
        if challenge.plain_name == name:
            ends_m += [result.apart_m[-1] for result in drive_ghost(challenge, ghost, samples, file)]
    assert len(ends_m) > 30
    for within_m, share in zip(WITHIN_M, shares, strict=True):
        assert (np.array(ends_m) <= within_m).mean() >= share, within_m
