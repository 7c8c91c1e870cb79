"""Several frames as one image: while a race is driven, here and inside a collector's process."""

import numpy as np
import pytest

from trackmania_rl.race.frame_stack import FrameStack


def frames(n):
    return np.random.default_rng(0).integers(0, 256, (n, 1, 5, 7), dtype=np.uint8)


@pytest.mark.parametrize("frames_per_state", [2, 3])
def test_the_first_frame_stands_in_for_those_before_it(frames_per_state):
    stack, seen = FrameStack(frames_per_state), frames(6)
    room = np.empty_like(seen[0])
    for t, frame in enumerate(seen):
        room[:] = frame  # drawn over the frame before, as a game may do
        image = stack.with_frame(room)
        expected = [seen[max(t - back, 0), 0] for back in reversed(range(frames_per_state))]
        np.testing.assert_array_equal(image, np.stack(expected))


def test_a_single_frame_is_passed_on():
    frame = frames(1)[0]
    assert FrameStack(1).with_frame(frame) is frame
