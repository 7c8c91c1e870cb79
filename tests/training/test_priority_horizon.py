"""Prioritized replay: which transitions of a batch get a new priority."""

import pytest
import torch

from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.hooks.priorities import UpdatePriorities

from .conftest import LocalRun, MakeRace, MakeRun, edit

ELAPSED_ACTIONS = torch.tensor([0.0, 59.0, 60.0, 99.0, 12.0, 61.0, 58.0])
ERRORS = torch.tensor([3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0])
PRIORITY_AT_FIRST = 1.0


@pytest.fixture
def run(live: LiveSettings, make_run: MakeRun, make_race: MakeRace) -> LocalRun:
    """A run with one race, nothing of which was trained on."""
    edit(live, prio_alpha=1.0, buffer_test_ratio=0.0)
    run = make_run()
    run.train_on([make_race(40, False)])
    assert run.agent.updates == 0
    return run


def _priorities_after_an_update(run: LocalRun, elapsed_actions: torch.Tensor) -> torch.Tensor:
    """Those of the transitions of a batch with the errors `ERRORS`."""
    batch = run.buffer[torch.arange(len(ERRORS))]
    batch["state_float"][:, ELAPSED_ACTIONS_FLOAT] = elapsed_actions
    batch["td_error"] = ERRORS
    run.hook(UpdatePriorities).post_loss(batch)
    return run.buffer.storage.priorities[: len(ERRORS)]


@pytest.mark.parametrize(
    ("min_horizon", "is_renewed"),
    [
        (60, [True, True, False, False, True, False, True]),
        (1, [True, False, False, False, False, False, False]),
        (None, [True, True, True, True, True, True, True]),
    ],
)
def test_a_transition_near_the_end_of_its_mini_race_keeps_its_priority(
    run: LocalRun, live: LiveSettings, min_horizon: int | None, is_renewed: list[bool]
) -> None:
    edit(live, min_horizon_to_update_priority_actions=min_horizon)
    new_priorities = ERRORS + live.current.replay.prio_epsilon
    expected = torch.where(torch.tensor(is_renewed), new_priorities, PRIORITY_AT_FIRST)
    torch.testing.assert_close(_priorities_after_an_update(run, ELAPSED_ACTIONS), expected)


def test_a_batch_without_any_such_transition_changes_no_priority(run: LocalRun, live: LiveSettings) -> None:
    edit(live, min_horizon_to_update_priority_actions=60)
    priorities = _priorities_after_an_update(run, ELAPSED_ACTIONS + 60)
    assert priorities.tolist() == [PRIORITY_AT_FIRST] * len(ERRORS)
