"""Views of stored rows against reading the races one row at a time."""

import numpy as np
import pytest
import torch

from trackmania_rl.experience_replay.mini_races import MiniRaceRules, buffer_collate_function
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES, RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import TransitionStorage
from trackmania_rl.race.views import View, Views

N_STEPS_MAX, N_FLOATS, N_ACTIONS, SIZE_PX, CAPACITY = 3, 4, 6, (2, 3), 31
KEYS = np.arange(2 * N_ACTIONS, dtype=np.float32).reshape(N_ACTIONS, 2)
BEFORE_FIRST = 5
SHIFTS = ((-1,), (-4, -3, -2, -1), (-9, -6, -3), (-12,))
AROUND = ((-2,), (0,), (1,), (-3, -2, -1, 0), (0, 1, 2, 3, 4), (-5, 5))


def race_of(n_states, seed, action_shape):
    rng = np.random.default_rng(seed)
    last = n_states - 1
    n_steps = [rng.integers(1, min(N_STEPS_MAX, last - t) + 1) if t < last else 0 for t in range(n_states)]
    actions = rng.normal(size=(n_states, *action_shape)) if action_shape else rng.integers(0, N_ACTIONS, n_states)
    columns = {
        "frames": rng.integers(0, 256, (n_states, 1, *SIZE_PX), dtype=np.uint8),
        "state_floats": rng.normal(size=(n_states, N_FLOATS)).astype(np.float32),
        "actions": actions.astype(np.float32) if action_shape else actions,
        "rewards": rng.normal(size=n_states).astype(np.float32),
        "potentials": np.zeros(n_states, np.float32),
        "n_steps": np.array(n_steps),
        "steps_to_finish": np.full(n_states, NEVER_FINISHES),
    }
    return RowColumns(**{name: torch.from_numpy(column) for name, column in columns.items()})


def memory_of(action_shape):
    """A ring that races have gone round, with each row's race and number in the race."""
    ring, places = RingBuffer(CAPACITY, N_FLOATS, SIZE_PX, action_shape=action_shape), {}
    for seed, n_states in enumerate([9, 7, 2, 17, 2, 11]):
        race = race_of(n_states, seed, action_shape)
        for t, row in enumerate(ring.append(race)):
            places[row] = (race, t)
    assert places[ring.first_row][1] > 0, "the oldest race has lost its beginning"
    return ring, places


def naive(ring, places, row, view, action_shape):
    """Return a view of a row, one shift at a time."""
    race, t = places[row]
    first = max(0, t - (row - ring.first_row))  # the oldest row of this race that is still there
    values = []
    for shift in view.shifts:
        seen = min(max(t + shift, first), len(race) - 1)
        is_before = t + shift < first
        if view.column == "floats":
            values.append(race.state_floats[seen, view.start : view.stop])
        elif view.column == "frames":
            values.append(race.frames[seen, 0])
        elif view.column == "rewards":
            values.append(np.float32(0 if is_before else race.rewards[seen]))
        elif action_shape:
            values.append(np.array([0, 1, -1], np.float32) if is_before else race.actions[seen])
        else:
            values.append(np.int64(BEFORE_FIRST if is_before else race.actions[seen]))
    return np.stack(values)


def filled(view, places, row, first_row, shown):
    """Return a view, with zeros before the race's first row if it asks for them."""
    _, t = places[row]
    is_before = [t + shift < max(0, t - (row - first_row)) for shift in view.shifts]
    values = zip(shown, is_before, strict=True)
    return np.array([value * 0 if before and view.has_zeros_before else value for value, before in values])


def views_of(action_shape, zeros):
    inputs = [
        View("x", column, shifts, *part, has_zeros_before=zeros)
        for column, part in (("floats", (1, 3)), ("actions", ()))
        for shifts in SHIFTS
    ]
    entries = [
        View(f"{column}{number}", column, shifts, 2, 4, is_single=len(shifts) == 1, has_zeros_before=zeros)
        for column in ("floats", "actions", "rewards", "frames")
        for number, shifts in enumerate(AROUND)
    ]
    return Views(
        frame_shifts=(-6, -3, 0),
        inputs=tuple(inputs),
        entries=tuple(entries),
        n_input_floats=sum(len(s) for s in SHIFTS) * (2 + (action_shape[0] if action_shape else 2)),
        floats_of_actions=() if action_shape else tuple(map(tuple, KEYS.tolist())),
        action_before=(0.0, 1.0, -1.0) if action_shape else BEFORE_FIRST,
    )


@pytest.mark.parametrize("action_shape", [(), (3,)], ids=["keys", "analog"])
@pytest.mark.parametrize("zeros", [False, True], ids=["start", "zero"])
def test_views_are_read_row_by_row(action_shape, zeros):
    ring, places = memory_of(action_shape)
    views = views_of(action_shape, zeros)
    rows = [row for row in range(ring.first_row, ring.end_row) if places[row][0].n_steps[places[row][1]]]
    read = TransitionStorage(ring, N_STEPS_MAX, views).get(torch.tensor(rows))
    assert torch.as_tensor(read.state_float).shape == (len(rows), N_FLOATS + views.n_input_floats)
    assert torch.as_tensor(read.state_float).dtype == torch.float32
    for i, row in enumerate(rows):
        race, t = places[row]
        for side, of_row in (("", row), ("next_", row + int(race.n_steps[t]))):
            image = naive(ring, places, of_row, View("x", "frames", views.frame_shifts), action_shape)
            np.testing.assert_array_equal(getattr(read, f"{side}state_img")[i], image)
            expected = [places[of_row][0].state_floats[places[of_row][1]]]
            for view in views.inputs:
                shown = naive(ring, places, of_row, view, action_shape)
                if view.column == "actions":
                    shown = shown.clip(-1, 1) if action_shape else KEYS[shown]
                expected.append(filled(view, places, of_row, ring.first_row, shown).ravel())
            np.testing.assert_array_equal(getattr(read, f"{side}state_float")[i], np.concatenate(expected))
        for view in views.entries:
            expected = filled(view, places, row, ring.first_row, naive(ring, places, row, view, action_shape))
            entry = torch.as_tensor(read.entries[view.name])[i].numpy()
            np.testing.assert_array_equal(entry, expected[0] if view.is_single else expected, err_msg=view.name)
            if view.column != "floats":
                assert entry.dtype == expected.dtype, view.name
    batch = buffer_collate_function(
        read, rules=MiniRaceRules(0.9, N_STEPS_MAX + 1), elapsed=torch.zeros(len(rows), dtype=torch.int64)
    )
    np.testing.assert_array_equal(batch["state_img"], torch.as_tensor(read.state_img))
    np.testing.assert_array_equal(batch["state_float"][:, 1:], torch.as_tensor(read.state_float)[:, 1:])
    np.testing.assert_array_equal(batch["rewards0"], torch.as_tensor(read.entries["rewards0"]))


def test_rows_have_room_for_the_columns_of_views_only(repository_root):
    from trackmania_rl.race.spaces import race_spaces
    from trackmania_rl.settings import load_settings

    picture = ("image_width_px=160", "image_height_px=120", "range_finder_source=picture")

    def bytes_per_row(*overrides):
        spaces = race_spaces(load_settings(repository_root / "config_files" / "config_lidar.py", overrides))
        return RingBuffer.bytes_per_row(spaces.n_row_floats, spaces.image_size_px)

    row_floats = 1 + 1 + 19  # time in the mini-race, speed, ranges: their history and the actions are views
    assert bytes_per_row() == 4 * row_floats + 2 + 4 + 4 + 2 + 4
    assert bytes_per_row(*picture, "frames_per_state=0") == bytes_per_row()
    assert bytes_per_row(*picture, "frames_per_state=4") == bytes_per_row() + 160 * 120
