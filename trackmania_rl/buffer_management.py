"""Conversion of rollouts to transitions in the replay buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.buffer_utilities import MiniRaceReplayBuffer
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES, RowColumns
from trackmania_rl.race.progress import Fragment
from trackmania_rl.race.rewards import RewardedRace
from trackmania_rl.settings import ReplaySettings

TEST_BLOCK: Final = 10
"""Successive transitions on the same side of the train/test split; neighbours are nearly alike."""


def fill_buffer_from_rollout_with_n_steps_rule(
    buffer: MiniRaceReplayBuffer,
    buffer_test: MiniRaceReplayBuffer,
    rollout_results: Mapping[str, Any],
    rewarded: RewardedRace,
    replay_settings: ReplaySettings,
    *,
    fragment: Fragment | None = None,
    soft_horizon_actions: int | None = None,
) -> int:
    """Store the T + 1 rows of a race or fragment, and add its T transitions to the train or the test side.

    A transition of `n_steps` actions starts from every state but the last. It is shorter at the race's end and, if so
    configured, before the next exploratory action. A finished race's last state is terminal (but for `no_done_at_end`);
    a cut-off race's is bootstrapped.

    Args:
        buffer: train side.
        buffer_test: test side, over the same rows.
        rollout_results: of `GameInstanceManager.rollout()`, with `race_time` if finished; episodes of other
            environments have `terminated` instead.
        rewarded: rewards and potentials.
        replay_settings: n-step rule and test share.
        fragment: the new part; None for all.
        soft_horizon_actions: no transition spans a multiple of so many actions of its race; None for no limit.

    Returns:
        The number of transitions added to both sides: all, unless the race is longer than the memory.

    Raises:
        ValueError: if the arrays' shapes do not fit one another or the buffers.
    """
    new = fragment or Fragment.whole(len(rollout_results["actions"]))
    n_transitions = new.end_transition - new.first_transition
    if n_transitions == 0:
        return 0
    rows = rows_of_rollout(rollout_results, rewarded, replay_settings, new.race_row, soft_horizon_actions)
    is_test = draw_test_side(n_transitions, replay_settings.buffer_test_ratio, TEST_BLOCK, buffer.generator)
    with buffer.ring.lock:
        first_row = buffer.ring.append(rows, new.first_row).start
        first_transition = first_row + new.first_transition - new.first_row
        n_train = buffer.append_index(first_transition + (~is_test).nonzero()[0])
        return n_train + buffer_test.append_index(first_transition + is_test.nonzero()[0])


def rows_of_rollout(
    rollout_results: Mapping[str, Any],
    rewarded: RewardedRace,
    replay_settings: ReplaySettings,
    race_row: int = 0,
    soft_horizon_actions: int | None = None,
) -> RowColumns:
    """Return the T + 1 rows of a rollout as arrays, uncopied where possible; arguments as above.

    `race_row` is the number of the rollout's first state in its race.
    """
    actions = np.asarray(rollout_results["actions"])
    n_actions, n_most = len(actions), replay_settings.n_steps
    n_steps = np.minimum(n_most, np.arange(n_actions, 0, -1))
    if replay_settings.discard_non_greedy_actions_in_nsteps:
        is_exploratory = ~np.asarray(rollout_results["action_was_greedy"], dtype=bool)
        for step in range(n_most - 1, 0, -1):
            n_steps[:-step][is_exploratory[step:]] = step
    if soft_horizon_actions is not None:
        driven_since_cut = (race_row + np.arange(n_actions)) % soft_horizon_actions
        n_steps = np.minimum(n_steps, soft_horizon_actions - driven_since_cut)
    is_finished = "race_time" in rollout_results or rollout_results.get("terminated", False)
    is_done = is_finished and not replay_settings.no_done_at_end
    columns: dict[str, Any] = {
        "frames": np.asarray(rollout_results["frames"]),
        "state_floats": np.asarray(rollout_results["state_float"], dtype=np.float32),
        "actions": _with_last(actions),
        "rewards": _with_last(rewarded.rewards),
        "potentials": rewarded.potentials,
        "n_steps": _with_last(n_steps),
        "steps_to_finish": np.arange(n_actions, -1, -1) if is_done else np.full(n_actions + 1, NEVER_FINISHES),
    }
    return RowColumns(**columns)


def draw_test_side(n: int, test_ratio: float, block: int, generator: torch.Generator) -> npt.NDArray[np.bool_]:
    """Draw the test side (n,) bool of a race's transitions, in blocks, with probability `test_ratio`."""
    uniform = torch.rand(n // block + 1, generator=generator, device=generator.device).numpy(force=True)
    return np.repeat(uniform < test_ratio, block)[:n]


def _with_last(of_actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Append a zero: (T, ...) becomes (T + 1, ...)."""
    of_states = np.zeros((len(of_actions) + 1, *of_actions.shape[1:]), dtype=of_actions.dtype)
    of_states[:-1] = of_actions
    return of_states
