"""State blobs against the package that documents them."""

import operator

import numpy as np
import pytest
import tminterface.structs as oracle
from hypothesis import example, given
from hypothesis import strategies as st
from tminterface.util import analog_value_to_data

from trackmania_rl.protocol.state_blob import (
    BLOB_FIXED_BYTES,
    HEAD_BYTES,
    StateBlobError,
    StateView,
    decode_analog,
    encode_analog,
    new_state_blob,
    with_last_checkpoint_time_cleared,
)


def parse_with_oracle(blob):
    """Parse a blob with the tminterface package."""
    state = oracle.SimStateData(bytes(blob))
    state.cp_data.resize(oracle.CheckpointData.cp_states_field, state.cp_data.cp_states_length)
    state.cp_data.resize(oracle.CheckpointData.cp_times_field, state.cp_data.cp_times_length)
    return state


@pytest.fixture
def noise_blob():
    """A blob whose every 32-bit word is a different small number, so a wrong offset shows."""
    blob = new_state_blob(3, 6)
    words = np.frombuffer(blob, "<f4")
    counts = np.frombuffer(blob, "<i4")[[HEAD_BYTES // 4 - 1, HEAD_BYTES // 4 + 3]].copy()
    words[3:] = np.arange(3, len(words)) / 7
    np.frombuffer(blob, "<i4")[[HEAD_BYTES // 4 - 1, HEAD_BYTES // 4 + 3]] = counts
    return blob


def test_the_client_and_the_oracle_read_the_same_places(noise_blob):
    view, state = StateView(noise_blob), parse_with_oracle(noise_blob)
    dyna, car = state.dyna.current_state, state.scene_mobil
    np.testing.assert_array_equal(view.position_m, dyna.position)
    np.testing.assert_array_equal(view.head["quaternion"], dyna.quat)
    np.testing.assert_array_equal(view.head["rotation"], dyna.rotation.to_numpy())
    np.testing.assert_array_equal(view.velocity_m_s, dyna.linear_speed)
    np.testing.assert_array_equal(view.head["angular_velocity_rad_s"], dyna.angular_speed)
    assert view.race_time_ms == state.player_info.race_time
    assert view.head["gearbox_state"] == car.gearbox_state
    assert view.gear == car.engine.gear
    assert view.head["engine_actual_rpm"] == car.engine.actual_rpm
    assert bool(view.head["is_freewheeling"]) == car.is_freewheeling
    wheels = [wheel.real_time_state for wheel in state.simulation_wheels]
    assert list(view.head["wheels"]["damper_absorb_m"]) == [wheel.damper_absorb for wheel in wheels]
    assert list(view.head["wheels"]["has_ground_contact"] != 0) == [wheel.has_ground_contact for wheel in wheels]
    assert list(view.head["wheels"]["is_sliding"] != 0) == [wheel.is_sliding for wheel in wheels]
    assert list(view.head["wheels"]["contact_material_id"] & 0xFFFF) == [
        wheel.contact_material_id & 0xFFFF for wheel in wheels
    ]
    assert list(view.checkpoint_times_ms) == [entry.time for entry in state.cp_data.cp_times]


ORACLE_NAMES = {
    "scene_mobil": {
        "input_gas": "input_gas",
        "input_brake": "input_brake",
        "input_steer": "input_steer",
        "max_linear_speed_m_s": "max_linear_speed",
        "has_any_lateral_contact": "has_any_lateral_contact",
        "last_has_any_lateral_contact_time_ms": "last_has_any_lateral_contact_time",
        "turning_rate": "turning_rate",
        "turbo_boost_factor": "turbo_boost_factor",
        "is_sliding": "is_sliding",
        "current_local_speed_m_s": "current_local_speed",
    },
    "scene_mobil.engine": {
        "engine_max_rpm": "max_rpm",
        "engine_clamped_rpm": "clamped_rpm",
        "engine_slide_factor": "slide_factor",
        "engine_rear_gear": "rear_gear",
    },
    "player_info": {
        "completed_count": "nb_completed",
        "completed_target": "max_completed",
        "checkpoints_of_lap": "cur_lap_cp_count",
        "checkpoints_of_race": "cur_cp_count",
        "lap": "cur_lap",
        "race_finished": "race_finished",
        "display_speed_km_h": "display_speed",
        "finish_not_passed": "finish_not_passed",
        "countdown_ms": "countdown_time",
    },
}


def test_fields_of_the_game_alone_are_where_the_oracle_reads_them(noise_blob):
    head, whole = StateView(noise_blob).head, parse_with_oracle(noise_blob)
    for part, names in ORACLE_NAMES.items():
        state = operator.attrgetter(part)(whole)
        for name, oracle_name in names.items():
            expected = getattr(state, oracle_name)
            actual = bool(head[name]) if isinstance(expected, bool) else head[name]
            np.testing.assert_array_equal(actual, expected, err_msg=name)
    assert list(head["timers_ms"]) == list(whole.timers)
    events = ["running", "finish", "accelerate", "brake", "left", "right", "steer", "gas"]
    for slot, name in enumerate(events):
        event = getattr(whole, f"input_{name}_event")
        assert [int(value) for value in head["input_events"][slot].view("<i4")] == [event.time, event.input_data]


def test_clearing_the_last_time_changes_nothing_else(noise_blob):
    cleared = with_last_checkpoint_time_cleared(bytes(noise_blob))
    assert cleared[:-8] + cleared[-4:] == noise_blob[:-8] + noise_blob[-4:]
    assert StateView(cleared).checkpoint_times_ms[-1] == -1
    with pytest.raises(StateBlobError, match="no finish to undo"):
        with_last_checkpoint_time_cleared(new_state_blob(0, 0))


@given(state_count=st.integers(-(2**31), 2**31 - 1), time_count=st.integers(-(2**31), 2**31 - 1))
@example(state_count=3, time_count=6)
@example(state_count=15, time_count=0)
@example(state_count=5, time_count=7)
def test_counts_that_contradict_the_size_are_refused(state_count, time_count):
    blob = new_state_blob(3, 6)
    counts_and_times = np.frombuffer(blob, "<i4")[HEAD_BYTES // 4 - 1 :]
    counts_and_times[0], counts_and_times[4] = state_count, time_count
    # Times follow the states, so with other states another number is the count of times; by chance it may fit.
    fits = 0 <= state_count <= 15 and state_count + 2 * int(counts_and_times[1 + state_count]) == 3 + 2 * 6
    if fits:
        StateView(blob)
    else:
        with pytest.raises(StateBlobError, match="claims"):
            StateView(blob)


@pytest.mark.parametrize("size", [0, 1, BLOB_FIXED_BYTES - 1, (1 << 20) + 1])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(StateBlobError, match=f"{size} bytes"):
        StateView(bytes(size))


@given(st.integers(-65536, 65536))
def test_analog_inputs_read_back_and_agree_with_the_oracle(value):
    assert decode_analog(encode_analog(value)) == value
    assert encode_analog(value) == analog_value_to_data(value) & 0xFFFFFF
