"""One race without a socket."""

import numpy as np
import pytest

from benchmarks.performance.classic_client import parse as parse_with_oracle
from trackmania_rl.protocol.input_script import ANALOG_FULL, Input, InputEvent, parse_input_script
from trackmania_rl.protocol.messages import COUNTDOWN_MS, NO_KEYS, KeyState
from trackmania_rl.protocol.state_blob import (
    STATE_HEAD_DTYPE,
    StateBlobError,
    StateView,
    with_last_checkpoint_time_cleared,
)
from trackmania_rl.simulator.race import SimulatedRace

FORWARD = KeyState(left=False, right=False, accelerate=True, brake=False)
LEFT = KeyState(left=True, right=False, accelerate=True, brake=False)
NOSE_M = 2.14


def at_start(track, keys=FORWARD):
    """A race at time 0 with these keys pressed."""
    race = SimulatedRace(track)
    while race.tick_time_ms < 0:
        race.advance(1000)
    race.set_input(keys)
    return race


def drive_to_event(race, max_ticks=2000):
    """Drive until a checkpoint is to be reported; returns the event."""
    for _ in range(max_ticks):
        race.advance()
        if event := race.take_checkpoint_event():
            return event
    raise AssertionError(f"no checkpoint within {max_ticks} ticks; the car is at {race.car['station_m']}")


def trace(race, ticks, seed=0):
    """Drive with keys that change at random; returns the blobs and events of all ticks."""
    keys = np.random.default_rng(seed).random((ticks, 4)) < (0.2, 0.2, 0.9, 0.1)
    seen = []
    for pressed in keys:
        race.set_input(KeyState(*map(bool, pressed)))
        race.advance()
        seen.append((race.save_state(), race.take_checkpoint_event(), race.take_lap_event()))
    return seen


def test_countdown_holds_the_car_in_every_race(straight_track):
    race = SimulatedRace(straight_track)
    fresh = race.save_state()
    for _ in range(2):
        assert race.race_time_ms == -COUNTDOWN_MS
        assert race.save_state() == fresh
        assert race.input_script() == ""
        race.set_input(FORWARD)
        spawn = race.car.copy()
        assert race.advance(1) == 1
        assert race.race_time_ms == -COUNTDOWN_MS + 10
        assert race.advance(1000) == 259, "the countdown's end is not jumped over"
        assert race.race_time_ms == 0
        assert race.car.tobytes() == spawn.tobytes()
        trace(race, 300)
        race.give_up()


@pytest.mark.parametrize("ticks_before", [0, 261, 560])
def test_rewinding_is_exact_also_in_another_race(two_lap_track, ticks_before):
    race, other = SimulatedRace(two_lap_track), SimulatedRace(two_lap_track)
    trace(race, ticks_before, seed=1)
    start = race.save_state()
    first = trace(race, 330, seed=2)
    for again in (race, other):
        again.restore_state(start)
        assert again.save_state() == start
        assert trace(again, 330, seed=2) == first


def test_races_are_deterministic_and_ticks_may_be_batched(straight_track):
    one, other = at_start(straight_track), at_start(straight_track)
    while one.checkpoint_count < 2:
        ticks = one.advance(7)
        assert sum(other.advance() for _ in range(ticks)) == ticks
        assert one.save_state() == other.save_state()
    assert at_start(straight_track).advance(10_000) < 300, "a batch ends where a gate is passed"


def test_official_times_are_the_labels_of_the_ticks_that_touch_the_gates(straight_track):
    race = at_start(straight_track)
    for count, gate_m in enumerate((20.0, 40.0, 60.0), start=1):
        assert drive_to_event(race) == (count, 3)
        assert race.checkpoint_times_ms[-1] == race.tick_time_ms - 10
        nose_m = float(race.car["station_m"][0]) + NOSE_M
        assert gate_m <= nose_m < gate_m + 0.01 * np.linalg.norm(race.car["velocity_m_s"]) + 0.01


def test_the_clock_stops_when_the_finish_is_reported(straight_track):
    race = at_start(straight_track)
    while not race.is_finished:
        race.take_checkpoint_event()
        race.advance()
    finish_ms = race.checkpoint_times_ms[-1]
    assert (race.race_time_ms, race.is_over) == (finish_ms + 10, False)
    assert race.take_checkpoint_event() == (3, 3)
    assert (race.race_time_ms, race.is_over) == (finish_ms, True)
    assert race.take_checkpoint_event() is None
    race.advance(3000)
    assert (race.race_time_ms, race.tick_time_ms) == (finish_ms, finish_ms + 10 + 30_000)
    assert StateView(race.save_state()).race_time_ms == race.race_time_ms


def test_laps(two_lap_track):
    race, seen = at_start(two_lap_track), []
    while not race.is_finished:
        event = drive_to_event(race)
        seen.append((*event, race.take_lap_event()))
    assert seen == [(1, 4, None), (2, 4, (1, 2)), (3, 4, None), (4, 4, (2, 2))]
    state = parse_with_oracle(race.save_state())
    assert [entry.time for entry in state.cp_data.cp_times] == race.checkpoint_times_ms
    assert state.cp_data.cp_states_length == 2


def test_a_finish_counts_only_when_all_checkpoints_are_taken(straight_track):
    race = at_start(straight_track)
    race.car["position_m"][0, 2] += 25.0
    race.car["surface_index"] += 50
    race.car["station_m"] += 25.0
    assert drive_to_event(race) == (1, 3)
    race.advance(200)
    assert race.car["station_m"][0] > 70.0
    assert race.checkpoint_count == 1


def undo_by_rewinding(race):
    race.restore_state(with_last_checkpoint_time_cleared(race.save_state()))


@pytest.mark.parametrize("undo", [SimulatedRace.prevent_finish, undo_by_rewinding])
def test_an_undone_finish_comes_again_while_the_car_stands_in_it(straight_track, undo):
    race = at_start(straight_track)
    while drive_to_event(race)[0] != 3:
        pass
    for _ in range(2):
        undo(race)
        assert (race.is_finished, race.checkpoint_count, race.race_time_ms) == (False, 2, race.tick_time_ms)
        assert parse_with_oracle(race.save_state()).cp_data.cp_times[2].time == -1
        race.advance()
        assert race.take_checkpoint_event() == (3, 3)


def test_the_blob_agrees_with_the_oracle(straight_track):
    race = at_start(straight_track, LEFT)
    trace(race, 250, seed=5)
    race.set_input(LEFT)
    race.advance()
    state, car = parse_with_oracle(race.save_state()), race.car[0]
    dyna, mobil = state.dyna.current_state, state.scene_mobil
    np.testing.assert_array_equal(dyna.position, car["position_m"])
    np.testing.assert_array_equal(dyna.rotation.to_numpy(), car["rotation"])
    np.testing.assert_array_equal(dyna.quat, car["quaternion"])
    np.testing.assert_array_equal(state.velocity, car["velocity_m_s"])
    np.testing.assert_array_equal(mobil.current_local_speed, car["local_speed_m_s"])
    assert (state.context_mode, state.flags, state.time, state.race_time) == (1, 0xFF, 2510, 2510)
    assert (mobil.engine.gear, mobil.gearbox_state) == (car["gear"], car["gearbox_state"])
    assert (mobil.engine.actual_rpm, mobil.engine.max_rpm) == (car["actual_rpm"], 11000.0)
    assert (mobil.input_gas, mobil.input_brake, mobil.input_steer) == (1.0, 0.0, -1.0)
    assert mobil.turning_rate == car["turning_rate"]
    for wheel, simulated in enumerate(state.simulation_wheels):
        real_time = simulated.real_time_state
        assert real_time.damper_absorb == car["wheel_damper_absorb_m"][wheel]
        assert real_time.has_ground_contact == car["wheel_has_ground_contact"][wheel]
        assert real_time.contact_material_id == car["wheel_material"][wheel]
        assert simulated.steerable == (wheel < 2)
    speed_m_s = np.linalg.norm(car["velocity_m_s"])
    assert state.display_speed == int(speed_m_s * 3.6)
    pressed = (state.input_accelerate, state.input_left, state.input_right, state.input_brake)
    assert pressed == (True, True, False, False)
    assert state.player_info.nb_completed == race.checkpoint_count
    assert state.player_info.max_completed == 3
    assert not state.player_info.race_finished
    race.play_script([InputEvent(2510, Input.STEER, -ANALOG_FULL), InputEvent(2510, Input.GAS, 1000)])
    race.advance()
    state = parse_with_oracle(race.save_state())
    assert (state.input_steer, state.input_gas) == (-ANALOG_FULL, 1000)
    assert state.input_steer_event.time == 102_520


def test_blobs_of_another_track_or_shape_are_refused(straight_track, two_lap_track, pier_track):
    race = at_start(straight_track)
    before = race.save_state()
    for blob in (SimulatedRace(two_lap_track).save_state(), SimulatedRace(pier_track).save_state()):
        with pytest.raises(StateBlobError, match="track 'straight'"):
            race.restore_state(blob)
    for blob in (b"", bytes(len(before)), before[:-4], before + bytes(8)):
        with pytest.raises(StateBlobError):
            race.restore_state(blob)
    assert race.save_state() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_m", np.nan),
        ("rotation", 2.0),
        ("quaternion", 0.0),
        ("engine_gear", 6),
        ("timers_ms", 12_345),
        ("input_events", 0x7FFFFF),
        ("private", 1),
    ],
)
def test_wild_numbers_are_refused(straight_track, field, value):
    race = at_start(straight_track)
    trace(race, 50)
    before = race.save_state()
    blob = bytearray(before)
    head = np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)
    head[field][...] = value
    with pytest.raises(StateBlobError, match="state blob"):
        race.restore_state(bytes(blob))
    assert race.save_state() == before


@pytest.mark.parametrize("times_ms", [(-1, 500, -1), (500, 600, -1)])
def test_checkpoint_times_that_contradict_themselves_are_refused(straight_track, times_ms):
    race = at_start(straight_track)
    drive_to_event(race)
    blob = bytearray(race.save_state())
    np.frombuffer(blob, "<i4")[-6::2] = times_ms
    with pytest.raises(StateBlobError, match="checkpoint times"):
        race.restore_state(bytes(blob))


def test_recorded_inputs_replay_to_the_same_race(straight_track):
    race = at_start(straight_track, NO_KEYS)
    trace(race, 200, seed=7)
    replay = at_start(straight_track, NO_KEYS)
    replay.play_script(parse_input_script(race.input_script()))
    while replay.tick_time_ms < race.tick_time_ms:
        replay.advance((race.tick_time_ms - replay.tick_time_ms) // 10)
        replay.take_checkpoint_event()
    assert replay.car.tobytes() == race.car.tobytes()
    assert replay.input_script() == race.input_script()


@pytest.mark.parametrize(
    ("script", "controls"),
    [
        ("0 steer -65536", (0.0, 0.0, -1.0)),
        ("0 steer 32768; 0 gas 65536", (1.0, 0.0, 0.5)),
        ("0 press left; 0 press right", (0.0, 0.0, -1.0)),
        ("0 press right; 0 press down", (0.0, 1.0, 1.0)),
        ("0 steer -65536; 0 press right", (0.0, 0.0, -1.0)),
        ("0 steer -600; 0 press right", (0.0, 0.0, 1.0)),
        ("0 press enter; 0 press horn", (0.0, 0.0, 0.0)),
    ],
)
def test_the_meaning_of_inputs(straight_track, script, controls):
    race = at_start(straight_track, NO_KEYS)
    race.play_script(parse_input_script(script))
    race.advance()
    race.advance()
    assert race.inputs.controls == controls
    race.restore_state(race.save_state())
    assert race.inputs.controls == controls


def test_a_respawn_puts_the_car_back_to_the_gate_passed_last(straight_track):
    race = at_start(straight_track, NO_KEYS)
    race.play_script(parse_input_script("0 press up; 2.00 press enter; 2.10 rel enter"))
    while race.tick_time_ms < 2000:
        race.advance(1000)
    assert race.car["station_m"][0] > 25.0
    before = race.save_state()
    assert race.advance(1000) == 1, "it takes one tick"
    assert race.car["station_m"][0] == pytest.approx(20.0, abs=0.3)
    assert not race.car["velocity_m_s"].any()
    assert race.inputs.controls == (1.0, 0.0, 0.0), "keys stay held"
    assert race.checkpoint_count == len(race.checkpoint_times_ms) == 1
    assert race.input_script() == "0.00 press up\n2.00 press enter\n"
    rest = trace(race, 300)
    assert race.is_finished
    race.restore_state(before)
    race.advance()
    assert trace(race, 300) == rest
