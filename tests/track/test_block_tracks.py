"""Tracks that are a map's own blocks: written, read, driven by both kinds of races, seen, and refused where damaged."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import Block
from trackmania_rl.gbx.replay import ghost_of_driver, script_of_ghost
from trackmania_rl.protocol.input_script import Input, InputEvent
from trackmania_rl.protocol.messages import COUNTDOWN_MS, TICK_MS, KeyState
from trackmania_rl.simulator.physics.scripted_driver import drive
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.race_batch import CarBatch, TrackForBatch
from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track
from trackmania_rl.track.block_tracks import BlockTrackError, arrays_of_map, fill_gaps, write_block_track
from trackmania_rl.track.block_world import world_of
from trackmania_rl.track.line_building import build_line, path_of_ghost

from .conftest import make_challenge

FORWARD = KeyState(left=False, right=False, accelerate=True, brake=False)
LEFT = KeyState(left=True, right=False, accelerate=True, brake=False)
START = Block("StadiumRoadMainStartLine", (9, 1, 2), 0, 0x1000)
ROAD = tuple(Block("StadiumRoadMain", (9, 1, z), 0, 3) for z in (3, 5, 6, 8, 9, 10))
CHECKPOINT = Block("StadiumRoadMainCheckpoint", (9, 1, 4), 0, 0x1000)
FINISH = Block("StadiumRoadMainFinishLine", (9, 1, 7), 0, 0x1000)
LINE_M = np.stack([np.full(300, 304.0), np.full(300, 9.6), 76.0 + 0.5 * np.arange(300)], axis=1)


@pytest.fixture(scope="module")
def track_file(tmp_path_factory):
    challenge = make_challenge(START, *ROAD, CHECKPOINT, FINISH)
    file = tmp_path_factory.mktemp("blocks") / "made.toml"
    write_block_track(challenge, arrays_of_map(challenge, world_of(challenge), LINE_M), LINE_M, file)
    return file


@pytest.fixture(scope="module")
def track(track_file):
    return load_track(track_file)


def test_a_race_begins_at_the_start_and_passes_the_gates(track):
    race = SimulatedRace(track)
    np.testing.assert_allclose(race.car["position_m"][0], (304.0, 10.21, 75.2), atol=1e-4)
    race.set_input(FORWARD)
    passed = []
    while not race.is_finished and race.tick_time_ms < 20_000:
        race.advance(100)
        if race.take_checkpoint_event() is not None:
            passed.append((race.checkpoint_count, float(race.car["position_m"][0, 2])))
    assert [count for count, _ in passed] == [1, 2]
    assert 4 * 32 < passed[0][1] < 5 * 32
    assert 7 * 32 < passed[1][1] < 8 * 32
    assert race.checkpoint_target == 2
    picture = race.render(160, 120)
    assert len(np.unique(picture.reshape(-1, 4), axis=0)) > 20


def test_a_batch_drives_the_same_race_and_a_saved_one_goes_on_the_same(track):
    race = SimulatedRace(track)
    race.advance(COUNTDOWN_MS // TICK_MS)
    race.set_input(LEFT)
    batch, for_batch = CarBatch(1), TrackForBatch(track)
    batch.begin(0, for_batch)
    for _ in range(40):
        race.advance(5)
        batch.advance(np.zeros(1, dtype=np.int64), for_batch, np.array([[1.0, 0.0, -1.0]]), 5)
    assert race.car.tobytes() == batch.cars.tobytes()
    blob = race.save_state()
    race.advance(100)
    later = race.save_state()
    again = SimulatedRace(track)
    again.restore_state(blob)
    again.advance(100)
    assert again.car.tobytes() == race.car.tobytes()
    race.restore_state(blob)
    race.advance(100)
    assert race.save_state() == later


def test_a_respawn_is_before_the_middle_of_the_block_passed_last_in_whatever_order(tmp_path):
    second = Block("StadiumRoadMainCheckpoint", (9, 1, 6), 2, 0x1000)  # faces the other way
    challenge = make_challenge(START, ROAD[0], ROAD[1], CHECKPOINT, second, FINISH)
    file = tmp_path / "two.toml"
    write_block_track(challenge, arrays_of_map(challenge, world_of(challenge), LINE_M), LINE_M, file)
    race = SimulatedRace(load_track(file))
    race.advance(COUNTDOWN_MS // TICK_MS)
    for count, block, facing in ((1, second, -1.0), (2, CHECKPOINT, 1.0)):
        middle_m = 32.0 * block.cell[2] + 16.0
        race.car["position_m"][0, 2] = middle_m
        race.advance()
        assert race.checkpoint_count == count
        race.play_script([InputEvent(race.tick_time_ms, Input.RESPAWN, 1)])
        race.advance()
        np.testing.assert_allclose(race.car["position_m"][0], (304.0, 8.0 + 1.5685, middle_m - facing * 4.8), atol=1e-3)
        np.testing.assert_allclose(race.car["rotation"][0, :, 2], (0.0, 0.0, facing), atol=1e-6)
        assert not race.car["velocity_m_s"].any()


def test_who_knows_roads_only_refuses_it(track):
    with pytest.raises(UserError, match="made of a map's blocks"):
        drive(track)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("corners_m", lambda a: np.full_like(a, np.nan), "outside of every map"),
        ("corners_m", lambda a: np.zeros_like(a), "no area"),
        ("corners_m", lambda a: a.astype(np.float32), "float32"),
        ("surface", lambda a: np.full_like(a, 99), "surface that there is not"),
        ("gate_of_box", lambda a: a + 1, "numbered one after the other"),
        ("has_grass", lambda a: a[0], "has_grass has the shape"),
        ("scene_corners", lambda a: a + 1, "none of its group's points"),
        ("scene_paint", lambda a: np.full_like(a, 1000), "paint that there is not"),
        ("scene_first_quad", lambda a: a[::-1], "one after the other"),
        ("way_up", lambda a: a[:-1], "line of 299 points"),
        ("forward", lambda a: 2.0 * a + 1.0, "forward has what is no direction"),
        ("respawn_rotation", lambda a: 0.5 * a, "no rotation"),
        ("respawn_m", lambda a: a[:-1], r"respawn_m has the shape \(1, 3\), and not \(2, 3\)"),
        ("respawn_m", None, r"of this version \(it lacks respawn_m\): make it anew with scripts/tools/maps.py"),
    ],
)
def test_a_damaged_world_is_refused_by_name(track_file, tmp_path, name, change, why):
    for file in track_file.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    arrays = load_file(tmp_path / "made_world.safetensors")
    if change is None:
        del arrays[name]
    else:
        arrays[name] = np.ascontiguousarray(change(arrays[name]))
    save_file(arrays, tmp_path / "made_world.safetensors")
    with pytest.raises(TrackFileError, match=why) as refused:
        load_track(tmp_path / "made.toml")
    assert "made_world.safetensors" in str(refused.value)


@pytest.mark.parametrize(("blocks", "why"), [((*ROAD, FINISH), "no start"), ((START, *ROAD), "no finish")])
def test_maps_that_make_no_track_are_refused(blocks, why):
    challenge = make_challenge(*blocks)
    with pytest.raises(BlockTrackError, match=why):
        arrays_of_map(challenge, world_of(challenge), LINE_M)


def test_a_road_along_the_line_replaces_an_unknown_block_on_its_way(tmp_path):
    unknown, aside = Block("StadiumRoadUnheardOf", (9, 1, 5), 0, 0), Block("StadiumRoadUnheardOf", (12, 1, 5), 0, 0)
    road = [block for block in ROAD if block.cell != unknown.cell]
    challenge = make_challenge(START, *road, CHECKPOINT, FINISH, unknown, aside)
    world = fill_gaps(world_of(challenge), LINE_M)
    assert (world.filled, world.unknown) == ((unknown,), (aside,))
    assert world.known_share == pytest.approx(8 / 10)
    file = tmp_path / "filled.toml"
    write_block_track(challenge, arrays_of_map(challenge, world, LINE_M), LINE_M, file)
    race = SimulatedRace(load_track(file))
    race.set_input(FORWARD)
    least_m = 100.0
    while not race.is_finished and race.tick_time_ms < 20_000:
        race.advance()
        if 5 * 32 < race.car["position_m"][0, 2] < 6 * 32:
            least_m = min(least_m, float(race.car["position_m"][0, 1]))
    assert race.is_finished
    assert least_m == pytest.approx(9.6, abs=0.1), "on the line's height, where the map's other roads are at 9.34 m"


def test_a_humans_keys_drive_through_the_loops_of_b13(replays, tmp_path):
    replay = replays[0]
    challenge = replay.challenge
    ghost = ghost_of_driver(replay, None)
    line_m = build_line([path_of_ghost(ghost, "b13")], challenge).points_m
    write_block_track(challenge, arrays_of_map(challenge, world_of(challenge), line_m), line_m, tmp_path / "b13.toml")
    race = SimulatedRace(load_track(tmp_path / "b13.toml"))
    np.testing.assert_allclose(race.car["position_m"][0], ghost.samples.position_m[0], atol=0.01)
    race.play_script(script_of_ghost(ghost, replay.path).events)
    highest_m, least_up = 0.0, 1.0
    while race.tick_time_ms < 8500:
        race.advance()
        highest_m = max(highest_m, float(race.car["position_m"][0, 1]))
        least_up = min(least_up, float(race.car["rotation"][0, 1, 1]))
    # Without correction it drifts away from the human's line, and is still on the road after a climb upside down.
    assert highest_m > 90.0
    assert least_up < -0.9
    assert race.checkpoint_times_ms[0] == pytest.approx(8020, abs=500)
