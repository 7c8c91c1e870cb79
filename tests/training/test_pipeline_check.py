"""The pipeline check: sound races pass; a state, an action or an order that changed on the way is an error."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.errors import UserError
from trackmania_rl.games.checked import CHECK_SUMS, sums_of_actions, sums_of_states
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.pipeline_check import CheckPipeline

from .conftest import LocalRun, MakeRace, MakeRun, edit

Spoil = Callable[[ReceivedRollout], object]


def _with_sums(race: ReceivedRollout) -> ReceivedRollout:
    """Add what a collector does."""
    columns = race.rollout_results
    states = sums_of_states(columns["frames"][:-1], columns["state_float"][:-1])
    columns[CHECK_SUMS] = np.array([states, sums_of_actions(columns["actions"])], dtype=np.int64).T
    return race


@pytest.fixture
def run(live: LiveSettings, make_run: MakeRun) -> LocalRun:
    edit(live, crc_debug=True, temporal_mini_race_duration_actions=20, oversample_long_term_steps=0)
    return make_run()


def test_sound_races_pass_and_a_resumed_run_leaves_out_what_its_checkpoint_holds(
    run: LocalRun, make_run: MakeRun, make_race: MakeRace
) -> None:
    run.train_on([_with_sums(make_race(n, n % 2 == 0)) for n in (60, 71, 82)])
    assert run.hook(CheckPipeline).n_checked == run.agent.updates * 13 > 100
    assert run.hook(SaveCheckpoints).try_to_save()
    resumed = make_run()
    resumed.train_on([_with_sums(make_race(60, False))])
    assert 0 < resumed.hook(CheckPipeline).n_checked < (resumed.agent.updates - run.agent.updates) * 13


def _swap(column: npt.NDArray[np.generic]) -> None:
    column[[20, 21]] = column[[21, 20]]


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda race: race.rollout_results["state_float"].__setitem__((slice(None), 3), 0.5), "state or action"),
        (lambda race: race.rollout_results["frames"].__setitem__(slice(None), 7), "state or action"),
        (lambda race: np.copyto(race.rollout_results["actions"], (race.rollout_results["actions"] + 1) % 12), "action"),
        (lambda race: [_swap(race.rollout_results[name]) for name in ("frames", "state_float", "actions")], "next"),
    ],
    ids=["floats", "frames", "actions", "order"],
)
def test_what_is_changed_on_the_way_is_found(run: LocalRun, make_race: MakeRace, spoil: Spoil, wrong: str) -> None:
    race = _with_sums(make_race(60, False))
    spoil(race)
    with pytest.raises(UserError, match=f"crc_debug: the .*{wrong} of transition|crc_debug: the {wrong} state"):
        run.train_on([race, _with_sums(make_race(60, False)), _with_sums(make_race(60, False))])
