"""Prioritized replay: which transitions of a batch get a new priority."""

from typing import Any

import pytest
import torch

from trackmania_rl.agents.learner import UpdateMetrics
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.learner import Learning

ELAPSED_ACTIONS = torch.tensor([0.0, 59.0, 60.0, 99.0, 12.0, 61.0, 58.0])
ERRORS = torch.tensor([3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0])
PRIORITY_AT_FIRST = 1.0


def _edit(live: LiveSettings, min_horizon: int | None) -> None:
    changes = {"prio_alpha": 1.0, "buffer_test_ratio": 0.0, "min_horizon_to_update_priority_actions": min_horizon}
    live.current = live.current.model_copy(update={"replay": live.current.replay.model_copy(update=changes)})


@pytest.fixture
def learning(live: LiveSettings, make_learning: Any, make_race: Any, monkeypatch: pytest.MonkeyPatch) -> Learning:
    """A learner with one race, whose updates have the errors `ERRORS`."""
    _edit(live, min_horizon=3)
    learning = make_learning()
    learning.trainer._process_batch_hook(make_race(40, False))
    metrics = UpdateMetrics(torch.tensor(1.0), torch.tensor(2.0), torch.tensor(4.0), ERRORS)
    monkeypatch.setattr(learning.learner, "update", lambda batch, learning_rate: metrics)
    return learning


def _priorities_after_a_step(learning: Learning, elapsed_actions: torch.Tensor) -> torch.Tensor:
    batch = learning.buffer[torch.arange(len(ERRORS))]
    batch["state_float"][:, ELAPSED_ACTIONS_FLOAT] = elapsed_actions
    learning.schedules()
    learning.stepper.step(learning.trainer, batch)
    return learning.buffer.storage.priorities[: len(ERRORS)]


@pytest.mark.parametrize(
    ("min_horizon", "is_renewed"),
    [
        (60, [True, True, False, False, True, False, True]),
        (1, [True, False, False, False, False, False, False]),
        (None, [True, True, True, True, True, True, True]),
    ],
)
def test_a_transition_near_the_end_of_its_mini_race_keeps_its_priority(
    learning: Learning, live: LiveSettings, min_horizon: int | None, is_renewed: list[bool]
) -> None:
    _edit(live, min_horizon)
    new_priorities = ERRORS + live.current.replay.prio_epsilon
    expected = torch.where(torch.tensor(is_renewed), new_priorities, PRIORITY_AT_FIRST)
    torch.testing.assert_close(_priorities_after_a_step(learning, ELAPSED_ACTIONS), expected)


def test_a_batch_without_any_such_transition_changes_no_priority(learning: Learning, live: LiveSettings) -> None:
    _edit(live, min_horizon=60)
    priorities = _priorities_after_a_step(learning, ELAPSED_ACTIONS + 60)
    assert priorities.tolist() == [PRIORITY_AT_FIRST] * len(ERRORS)
