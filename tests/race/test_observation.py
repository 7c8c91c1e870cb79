"""The floats of the observation, against the reference's table and `tminterface.structs` as the oracle."""

import json

import numpy as np
import pytest
from tminterface.structs import SimStateData

from trackmania_rl.protocol.state_blob import STATE_HEAD_DTYPE, new_state_blob
from trackmania_rl.race.observation import MOST_DEVIATIONS, ObservationLayout, measured_statistics
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.races import Races
from trackmania_rl.settings import SettingsError, load_settings
from trackmania_rl.track.game_map import zones_of_line

from .conftest import OneRace

# Rows of reference/observation.md: block, first index, last index.
REFERENCE_ROWS = (
    ("mini_race_time_actions", 0, 0),
    ("previous_actions", 1, 20),
    ("wheel_is_sliding", 21, 24),
    ("wheel_has_ground_contact", 25, 28),
    ("wheel_damper_absorb_m", 29, 32),
    ("gearbox_state", 33, 33),
    ("gear", 34, 34),
    ("engine_rpm", 35, 35),
    ("actions_since_gear_change", 36, 36),
    ("wheel_ground_group", 37, 52),
    ("angular_velocity_rad_s", 53, 55),
    ("velocity_m_s", 56, 58),
    ("world_up", 59, 61),
    ("zone_centers_m", 62, 181),
    ("distance_to_finish_m", 182, 182),
    ("is_freewheeling", 183, 183),
)


@pytest.fixture(scope="module")
def settings(repository_root):
    return load_settings(repository_root / "config_files" / "config_tmnf.py")


@pytest.fixture(scope="module")
def layout(settings):
    return ObservationLayout(settings.observation)


@pytest.fixture(scope="module")
def zones(settings):
    angle = np.arange(3000) * 0.5 / 200  # a wide left-hand helix
    line = np.stack((200 * np.cos(angle), angle, 200 * np.sin(angle)), axis=1)
    return zones_of_line(line, settings.observation)


@pytest.fixture
def race(layout, settings, zones):
    return OneRace(settings.game, layout, zones)


def _random_blob(rng, zones, **changes):
    blob = new_state_blob(2, 2)
    head = np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)[0]
    head["rotation"] = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    head["position_m"] = zones.centers_m[zones.first_zone_idx] + rng.normal(0, 5, 3)
    head["velocity_m_s"] = rng.normal(0, 40, 3)
    head["angular_velocity_rad_s"] = rng.normal(0, 1, 3)
    head["gearbox_state"] = rng.integers(0, 3)
    head["engine_gear"] = rng.integers(0, 6)
    head["engine_actual_rpm"] = rng.uniform(0, 11_000)
    head["is_freewheeling"] = rng.integers(0, 2)
    wheels = head["wheels"]
    wheels["is_sliding"] = rng.integers(0, 2, 4)
    wheels["has_ground_contact"] = rng.integers(0, 2, 4)
    wheels["damper_absorb_m"] = rng.uniform(0.005, 0.15, 4)
    wheels["contact_material_id"] = rng.integers(0, 31, 4) + 0x30000  # only the low 16 bits count
    head["has_any_lateral_contact"] = rng.integers(0, 2)
    for name, value in changes.items():
        head[name] = value
    return bytes(blob)


def _oracle(blob, zones, zone):
    """Blocks that a single state tells, read through the game's own Python package."""
    state = SimStateData(blob)
    dyna, car = state.dyna.current_state, state.scene_mobil
    wheels = [wheel.real_time_state for wheel in state.simulation_wheels]
    to_car = np.array(dyna.rotation.to_numpy(), dtype=np.float64).T
    groups = {0: 0, 1: 0, 16: 0, 18: 0, 19: 0, 2: 1, 20: 1, 5: 2, 6: 2, 8: 2, 17: 2, 7: 3, 26: 3}
    one_hot = np.zeros((4, 4))
    for i, wheel in enumerate(wheels):
        material = wheel.contact_material_id & 0xFFFF
        if material in groups:
            one_hot[i, groups[material]] = 1
    ahead = zones.centers_m[zone : zone + 20 * 40 : 20]
    return {
        "wheel_is_sliding": np.array([wheel.is_sliding for wheel in wheels]),
        "wheel_has_ground_contact": np.array([wheel.has_ground_contact for wheel in wheels]),
        "wheel_damper_absorb_m": np.array([wheel.damper_absorb for wheel in wheels]),
        "gearbox_state": np.array([car.gearbox_state]),
        "gear": np.array([car.engine.gear]),
        "engine_rpm": np.array([car.engine.actual_rpm]),
        "wheel_ground_group": one_hot.ravel(),
        "angular_velocity_rad_s": to_car @ np.array(dyna.angular_speed),
        "velocity_m_s": to_car @ np.array(dyna.linear_speed),
        "world_up": to_car @ np.array([0, 1, 0]),
        "zone_centers_m": ((ahead - np.array(dyna.position)) @ to_car.T).ravel(),
        "is_freewheeling": np.array([car.is_freewheeling]),
    }


def rst_table(layout):
    """The blocks as a reStructuredText table."""

    def of(numbers):
        low, high = min(numbers), max(numbers)
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    lines = [".. list-table::", "   :header-rows: 1", "", "   * - index", "     - name", "     - what; unit, range"]
    lines += ["     - mean; standard deviation"]
    for block in layout.blocks:
        index = str(block.start) if block.stop == block.start + 1 else f"{block.start}-{block.stop - 1}"
        lines += [f"   * - {index}", f"     - ``{block.name}``", f"     - {block.description}; {block.unit}"]
        lines += [f"     - {of(block.mean)}; {of(block.std)}"]
    return "\n".join(lines) + "\n"


def test_the_full_size_layout_is_the_reference_table_and_that_of_the_docs(layout, shared_data, repository_root):
    assert layout.float_input_dim == 184
    assert tuple((block.name, block.start, block.stop - 1) for block in layout.blocks) == REFERENCE_ROWS
    assert layout["gear"] == slice(34, 35)
    page = (repository_root / "docs" / "observation.rst").read_text(encoding="utf-8")
    table = rst_table(layout)
    assert " ".join(table.split()) in " ".join(page.split()), f"put this into docs/observation.rst:\n{table}"
    published = json.loads((shared_data / "linesight_state_normalization.json").read_text())
    assert layout.mean.dtype == layout.std.dtype == np.float32
    np.testing.assert_array_equal(layout.mean, np.array(published["mean"], dtype=np.float32))
    np.testing.assert_array_equal(layout.std, np.array(published["std"], dtype=np.float32))


@pytest.mark.parametrize("seed", range(6))
def test_features_agree_with_the_oracle(layout, zones, race, seed):
    blob = _random_blob(np.random.default_rng(seed), zones)
    features = race.see(blob)
    floats, state = features.floats, SimStateData(blob)
    assert (floats.shape, floats.dtype, floats[0]) == ((184,), np.float32, 0)
    for name, expected in _oracle(blob, zones, features.zone_idx).items():
        np.testing.assert_allclose(floats[layout[name]], expected, atol=2e-4, rtol=1e-5, err_msg=name)
    car = dict(zip(CAR_COLUMNS, features.car.tolist(), strict=True))
    assert car["touches_wall"] == (state.scene_mobil.has_any_lateral_contact != 0)
    for name in ("gearbox_state", "gear", "engine_rpm", "actions_since_gear_change", "is_freewheeling"):
        assert car[name] == floats[layout[name].start]
    for wheel, simulated in enumerate(state.simulation_wheels):
        assert car[f"wheel_{wheel}_damper_absorb_m"] == floats[29 + wheel]
        assert car[f"wheel_{wheel}_material_id"] == simulated.real_time_state.contact_material_id & 0xFFFF


def test_previous_actions_are_oldest_first_and_begin_with_forward(layout, zones, race):
    state = _random_blob(np.random.default_rng(0), zones)
    forward, brake_left, right = [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]
    assert race.see(state).floats[layout["previous_actions"]].reshape(5, 4).tolist() == [forward] * 5
    race.act(7)
    race.act(5)
    seen = race.see(state).floats[layout["previous_actions"]].reshape(5, 4).tolist()
    assert seen == [forward, forward, forward, brake_left, right]
    race.begin(zones)
    assert race.see(state).floats[layout["previous_actions"]].reshape(5, 4).tolist() == [forward] * 5


def test_actions_since_gear_change(layout, zones, race):
    rng = np.random.default_rng(0)
    counted = [
        float(race.see(_random_blob(rng, zones, gearbox_state=state)).floats[36])
        for state in (2, 2, 0, 1, 1, 1, 0, 0, 1)
    ]
    assert counted == [0, 1, 0, 1, 2, 3, 0, 0, 1]


def test_distance_to_the_finish_is_announced_from_its_margin_on(settings, zones, race):
    rng = np.random.default_rng(0)
    assert race.see(_random_blob(rng, zones)).floats[182] == 700
    nearer = ObservationLayout(settings.observation.model_copy(update={"margin_to_announce_finish_m": 300.0}))
    assert OneRace(settings.game, nearer, zones).see(_random_blob(rng, zones)).floats[182] == 300
    race.begin(zones._replace(first_zone_idx=zones.last_zone_idx - 100))
    here = zones.centers_m[zones.last_zone_idx - 100]
    features = race.see(_random_blob(rng, zones, position_m=here))
    assert features.floats[182] == pytest.approx(zones.finish_m - features.meters)
    assert features.floats[182] == pytest.approx(50, abs=1)


def test_with_analog_actions_the_previous_ones_are_wheel_and_pedals(layout, settings, zones):
    analog = ObservationLayout(settings.observation, "analog")
    assert analog.float_input_dim == 184 - 5
    assert analog["previous_actions"] == slice(1, 16)
    assert (analog["last_gas"], analog["last_brake"]) == (slice(14, 15), slice(15, 16))
    assert (layout["last_gas"], layout["last_brake"]) == (slice(17, 18), slice(18, 19))
    after = [(block.name, block.start + 5, block.stop + 5) for block in analog.blocks[2:]]
    assert after == [(block.name, block.start, block.stop) for block in layout.blocks[2:]]
    np.testing.assert_array_equal(analog.mean[16:], layout.mean[21:])

    with pytest.raises(ValueError, match="the layout is for actions of"):
        Races(1, settings.game, analog)
    made = OneRace(settings.game.model_copy(update={"actions": "analog"}), analog, zones)
    blob = _random_blob(np.random.default_rng(0), zones)
    forward = [0, 1, -1]
    np.testing.assert_array_equal(made.see(blob).floats[1:16], forward * 5)
    made.act(np.array([0.25, -0.5, 1.0], dtype=np.float32))
    made.act(np.array([-2.0, 0.5, 0.0], dtype=np.float32))
    np.testing.assert_array_equal(made.see(blob).floats[1:16], [*forward * 3, 0.25, -0.5, 1, -1, 0.5, 0])


WITH_RANGES = 'observation_blocks=("mini_race_time_actions", "speed_m_s", "range_finder_m")'
WITH_ROAD = 'observation_blocks=("mini_race_time_actions", "speed_m_s", "road_ahead")'
IMAGE = ("image_width_px=16", "image_height_px=16")
NO_WAVES = "fourier_wavelengths={}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["n_prev_actions_in_inputs=2"], r'state_normalization\["previous_actions"\] has 20 means .* 8 floats'),
        (["state_normalization={}"], "missing blocks .*'gear'"),
        (['observation_blocks=("gear",)'], "lacks 'mini_race_time_actions'"),
        (['observation_blocks=("mini_race_time_actions", "geer")'], "'geer' is no block; mini_race_time_actions,"),
        ([WITH_RANGES], "fourier_wavelengths: zone_centers_m is no block of the observation"),
        ([WITH_RANGES, "range_finder_source=picture"], "picture. needs an image: set image_width_px"),
        (
            [WITH_RANGES, "shaped_reward_dist_to_cur_vcp=-0.1"],
            "is computed from zone_centers_m: name it in observation_blocks",
        ),
        ([WITH_RANGES, "game=tmnf"], 'range_finder_source = "track" reads .* set it to "picture"'),
        (["one_every_n_zone_centers_in_inputs=26"], "at the finish the observation looks 1014 zones ahead"),
        ([WITH_ROAD, NO_WAVES, "n_zone_centers_in_inputs=5"], "zone centres ahead; set it to 20 or more"),
        ([WITH_ROAD, NO_WAVES, "game=tmnf"], '"road_ahead" in observation_blocks reads the simulated game'),
        (["frames_per_state=-9:0:3"], r"frames_per_state = -9:0:3 needs an image"),
        (["frames_per_state=-9:-1", *IMAGE], "the last of the frames is the state's own"),
        (['views={"gear": {"column": "rewards", "shift": -1}}'], "'gear' is the name of a block"),
        (['views={"a": {"column": "rewards", "shift": 0}}'], "which an agent that drives does not see"),
        (['views={"a": {"column": "sped", "shift": -1}}'], "'a' looks at 'sped'; there are actions, rewards, frames"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides, message, repository_root):
    config = repository_root / "config_files" / "config.py"
    with pytest.raises(SettingsError, match=message):
        ObservationLayout(load_settings(config, overrides).observation)


def random_floats(layout):
    """States whose floats have means and deviations of their own; one rarely changes, two never do."""
    rng = np.random.default_rng(3)
    scale = np.exp(rng.normal(0, 2, layout.float_input_dim))
    floats = (scale * (rng.normal(0, 5, layout.float_input_dim) + rng.standard_normal((20_001, len(scale))))).astype(
        "f4"
    )
    for name, value in (("mini_race_time_actions", 0), ("is_freewheeling", 0), ("gear", 3), ("gearbox_state", 0)):
        floats[:, layout[name]] = value
    floats[7, layout["gearbox_state"]] = 1
    return floats


def test_measured_means_and_deviations_are_those_of_all_states(layout):
    floats = random_floats(layout)
    means, deviations = measured_statistics(layout, floats)
    first, gear, rare = (layout[name].start for name in ("mini_race_time_actions", "gear", "gearbox_state"))
    usual = np.setdiff1d(np.arange(len(means)), [first, gear, rare, layout["is_freewheeling"].start])
    np.testing.assert_allclose(means[usual], floats.mean(axis=0, dtype=np.float64)[usual], rtol=1e-6)
    np.testing.assert_allclose(deviations[usual], floats.std(axis=0, dtype=np.float64)[usual], rtol=1e-6)
    assert (means[first], deviations[first]) == (layout.mean[first], layout.std[first]), "it is set when sampled"
    assert (means[gear], deviations[gear]) == (pytest.approx(3), pytest.approx(layout.std[gear]))
    assert means[rare] == pytest.approx(1 / len(floats))
    assert (1 - means[rare]) / deviations[rare] == pytest.approx(MOST_DEVIATIONS)
