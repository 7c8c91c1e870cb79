"""Several frames as one image, drawn from the memory, against what the agent saw while the race was driven."""

import numpy as np
import pytest
import torch

from trackmania_rl.buffer_utilities import buffer_collate_function
from trackmania_rl.experience_replay.mini_race import MiniRaceRules
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES, RingBuffer, RowColumns
from trackmania_rl.experience_replay.transition_storage import TransitionStorage
from trackmania_rl.race.views import Views

N_STEPS_MAX, HEIGHT, WIDTH = 3, 5, 7
CAPACITY = 23
RULES = MiniRaceRules(gamma=0.9, duration_actions=11)


def race_of(n_states, is_finished, seed):
    rng = np.random.default_rng(seed)
    race = RowColumns.empty(n_states, 2, (HEIGHT, WIDTH), torch.device("cpu"))
    for column in (race.state_floats, race.rewards, race.potentials, race.actions):
        column.zero_()
    race.frames.copy_(torch.from_numpy(rng.integers(0, 256, race.frames.shape)))
    last = n_states - 1
    race.n_steps.copy_(torch.tensor([min(N_STEPS_MAX, last - t) for t in range(n_states)]))
    race.steps_to_finish.copy_(torch.tensor([last - t if is_finished else NEVER_FINISHES for t in range(n_states)]))
    return race


@pytest.fixture
def memory():
    """A ring that races have gone round, with each row's race and number in the race."""
    ring, places = RingBuffer(CAPACITY, 2, (HEIGHT, WIDTH)), {}
    for seed, (n_states, is_finished) in enumerate([(9, False), (2, False), (2, True), (6, True), (13, False)]):
        race = race_of(n_states, is_finished, seed)
        for t, row in enumerate(ring.append(race)):
            places[row] = (race, t)
    assert ring.first_row == 9  # the first race is gone but for nothing, the rest goes over the ring's end
    return ring, places


def stacked(n_frames):
    return Views(frame_shifts=tuple(range(1 - n_frames, 1)))


def image_at(ring, places, row, frames_per_state):
    race, t = places[row]
    first = max(0, t - (row - ring.first_row))  # the oldest row of this race that is still there
    return torch.cat([race.frames[max(t - back, first)] for back in reversed(range(frames_per_state))])


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize("frames_per_state", [2, 4])
def test_images_are_those_that_were_seen(memory, arrays, frames_per_state):
    ring, places = memory
    if arrays == "torch":
        ring.arrays = ring.columns
    index = torch.tensor([row for row in range(ring.first_row, ring.end_row) if places[row][0].n_steps[places[row][1]]])
    read = TransitionStorage(ring, N_STEPS_MAX, stacked(frames_per_state)).get(index)
    state_img, next_state_img = map(torch.as_tensor, (read.state_img, read.next_state_img))
    assert state_img.shape == next_state_img.shape == (len(index), frames_per_state, HEIGHT, WIDTH)
    assert state_img.dtype == torch.uint8
    for i, row in enumerate(index.tolist()):
        race, t = places[row]
        assert torch.equal(state_img[i], image_at(ring, places, row, frames_per_state))
        assert torch.equal(next_state_img[i], image_at(ring, places, row + int(race.n_steps[t]), frames_per_state))


def test_an_overwritten_frame_is_replaced_by_the_oldest_that_is_left(memory):
    ring, places = memory
    race = race_of(6, True, seed=9)  # overwrites the two short races and the first rows of the third
    for t, row in enumerate(ring.append(race)):
        places[row] = (race, t)
    assert places[ring.first_row][1] == 2, "of the third"
    index = torch.arange(ring.first_row, ring.first_row + 2)
    read = TransitionStorage(ring, N_STEPS_MAX, stacked(3)).get(index)
    for i, row in enumerate(index.tolist()):
        np.testing.assert_array_equal(read.state_img[i], image_at(ring, places, row, 3))


def test_batches_have_as_many_frames_as_the_configuration_says(memory):
    ring, places = memory
    index = torch.tensor([13, 14, 30])

    def draw(frames_per_state):
        return buffer_collate_function(
            TransitionStorage(ring, N_STEPS_MAX, stacked(frames_per_state)).get(index),
            rules=RULES,
            generator=torch.Generator().manual_seed(0),
        )

    one, two = draw(1), draw(2)
    assert one["state_img"].shape == (3, 1, HEIGHT, WIDTH)
    assert torch.equal(two["state_img"][:, 1:], one["state_img"])
    assert torch.equal(two["next_state_img"][:, 1:], one["next_state_img"])
    assert torch.equal(two["state_float"], one["state_float"])
    for i, row in enumerate(index.tolist()):
        assert torch.equal(two["state_img"][i], image_at(ring, places, row, 2))
