"""The times already elapsed in mini-races."""

from collections import Counter

import pytest
import torch

from trackmania_rl.experience_replay.mini_race import MiniRaceRules


@pytest.mark.parametrize(("duration", "long", "maximum"), [(7, 0, 0), (7, 3, 0), (9, 6, 2), (9, 9, 9), (5, 1, 3)])
def test_elapsed_times_are_drawn_as_documented(duration, long, maximum):
    rules = MiniRaceRules(1.0, duration, long, maximum)
    draws = rules.draw_elapsed_actions(90_000, torch.Generator().manual_seed(3))
    integers = range(maximum - long, maximum + duration)
    expected = Counter(max(0, abs(i) - maximum) for i in integers)
    frequencies = Counter(draws.tolist())
    assert frequencies.keys() == expected.keys() <= set(range(duration))
    for elapsed, count in expected.items():
        assert frequencies[elapsed] / len(draws) == pytest.approx(count / len(integers), abs=0.01)


def test_an_elapsed_time_beyond_the_end_is_refused():
    with pytest.raises(ValueError, match="oversample_long_term_steps = 8"):
        MiniRaceRules(1.0, 7, oversample_long_term_steps=8)
