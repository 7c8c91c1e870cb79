"""Views while a race is driven, and their allowed names and shifts."""

import dataclasses

import numpy as np
import pytest

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import race_spaces, race_views
from trackmania_rl.race.views import View, Views
from trackmania_rl.settings import load_settings, shifts_of

KEYS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
VIEWS = Views(
    frame_shifts=(-4, -2, 0),
    inputs=(View("a", "floats", (-3, -1), 1, 3), View("b", "actions", (-2, -1))),
    n_input_floats=8,
    floats_of_actions=KEYS,
    action_before=2,
)


def race_of(n_states, seed=0):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (n_states, 1, 2, 3), dtype=np.uint8)
    return frames, rng.normal(size=(n_states, 4)).astype(np.float32), rng.integers(0, 3, n_states)


def test_views_of_a_race():
    frames, floats, actions = race_of(7)
    images, seen = VIEWS.of_states(
        frames[None], floats[None], actions[None], races=np.zeros(7, dtype=int), rows=np.arange(7)
    )
    for t in range(7):
        np.testing.assert_array_equal(images[t], [frames[max(t - back, 0), 0] for back in (4, 2, 0)])
        before = [floats[max(t - back, 0), 1:3] for back in (3, 1)]
        taken = [KEYS[actions[t - back]] if t >= back else KEYS[2] for back in (2, 1)]
        np.testing.assert_array_equal(seen[t], np.concatenate([floats[t], *before, *taken]).astype(np.float32))


def test_rows_before_a_race_can_be_zeros():
    inputs = tuple(dataclasses.replace(view, has_zeros_before=True) for view in VIEWS.inputs)
    views = dataclasses.replace(VIEWS, inputs=inputs)
    _, floats, actions = race_of(4)
    actions[3] = 10**6  # memory that no action was written to yet
    _, seen = views.of_states(
        np.zeros((1, 4, 1, 0, 0), np.uint8), floats[None], actions[None], np.zeros(4, dtype=int), np.arange(4)
    )
    nothing = np.zeros(2)
    for t in range(4):
        before = [floats[t - back, 1:3] if t >= back else nothing for back in (3, 1)]
        taken = [KEYS[actions[t - back]] if t >= back else nothing for back in (2, 1)]
        np.testing.assert_array_equal(seen[t], np.concatenate([floats[t], *before, *taken]).astype(np.float32))


@pytest.mark.parametrize("shift", ["-1", (), (-1, -1), "0:-1", "-3:0:0", "-2000:0"])
def test_invalid_shifts_are_refused(shift):
    with pytest.raises(ValueError, match="a shift is a row from -1000 to 1000"):
        shifts_of(shift)


def test_views_are_blocks_behind_the_others(repository_root):
    def load(*overrides):
        settings = load_settings(repository_root / "config_files" / "config.py", overrides)
        return settings, ObservationLayout(settings.observation)

    _, without = load()
    views = {
        "last_motion": {"column": "velocity_m_s", "shift": "-2:-1"},
        "rewards_before": {"column": "rewards", "shift": "-3:-1", "input": False},
        "last_actions": {"column": "actions", "shift": [-2, -1]},
    }
    settings, layout = load(f"views={views!r}", 'fourier_wavelengths={"last_motion": (8.0,)}')
    assert layout.blocks[: len(without.blocks)] == without.blocks
    assert (layout.n_row_floats, layout.float_input_dim) == (184, 184 + 6 + 8)
    assert layout["last_motion"] == slice(184, 190)
    np.testing.assert_array_equal(layout.mean[184:190], np.tile(layout.mean[layout["velocity_m_s"]], 2))
    np.testing.assert_array_equal(layout.mean[190:], np.tile(np.float32([0.8, 0.2, 0.3, 0.3]), 2))
    assert layout.waves == tuple((184 + number, 8.0) for number in range(6))
    spaces = race_spaces(settings)
    assert (spaces.n_row_floats, spaces.n_floats) == (184, 198)
    assert [view.name for view in spaces.views.inputs] == ["last_motion", "last_actions"]
    assert [view.name for view in spaces.views.entries] == ["rewards_before"]
    assert race_views(layout, settings.game) == spaces.views
    settings, _ = load("frames_per_state=-9:0:3", "image_width_px=16", "image_height_px=8")
    assert settings.game.image_shape == (4, 8, 16)
    assert race_spaces(settings).views.frame_shifts == (-9, -6, -3, 0)
