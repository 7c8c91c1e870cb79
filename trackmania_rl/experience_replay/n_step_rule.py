"""Conversion of races to transitions in the replay buffers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.experience_replay.mini_races import MiniRaceReplayBuffer
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES, RowColumns
from trackmania_rl.race.race import Race
from trackmania_rl.settings import Settings

TEST_BLOCK: Final = 10
"""Successive transitions on the same side of the train/test split; neighbours are nearly alike."""


def fill_buffer_from_rollout_with_n_steps_rule(
    buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer, race: Race, settings: Settings
) -> int:
    """Store the T + 1 rows of a rewarded race or fragment; add its T transitions to the train or the test side.

    A transition of `n_steps` actions starts from every state but the last. It is shorter at the race's end and, if so
    configured, before the next exploratory action. A terminal last state ends it (but for `no_done_at_end`); the last
    state of a race that was cut off is bootstrapped.

    Args:
        buffer: train side.
        buffer_test: test side, over the same rows.
        race: with rewards and potentials.
        settings: of the run.

    Returns:
        The number of transitions added to both sides: all, unless the race is longer than the memory.

    Raises:
        ValueError: if the arrays' shapes do not fit one another or the buffers.
    """
    new = race.facts.new
    n_transitions = new.end_transition - new.first_transition
    if n_transitions == 0:
        return 0
    rows = rows_of_race(race, settings)
    is_test = draw_test_side(n_transitions, settings.replay.buffer_test_ratio, TEST_BLOCK, buffer.generator)
    with buffer.ring.lock:
        first_row = buffer.ring.append(rows, new.first_row).start
        first_transition = first_row + new.first_transition - new.first_row
        n_train = buffer.append_index(first_transition + (~is_test).nonzero()[0])
        return n_train + buffer_test.append_index(first_transition + is_test.nonzero()[0])


def rows_of_race(race: Race, settings: Settings) -> RowColumns:
    """Return the T + 1 rows of a rewarded race as arrays, uncopied where possible."""
    assert race.rewards is not None, "the race is not rewarded"
    replay = settings.replay
    actions = np.asarray(race.columns["actions"])
    n_actions = len(actions)
    n_steps = np.minimum(replay.n_steps, np.arange(n_actions, 0, -1))
    if replay.discard_non_greedy_actions_in_nsteps:
        is_exploratory = ~np.asarray(race.columns["action_was_greedy"], dtype=bool)
        for step in range(replay.n_steps - 1, 0, -1):
            n_steps[:-step][is_exploratory[step:]] = step
    if (soft_horizon_actions := settings.game.soft_horizon_actions) is not None:
        driven_since_cut = (race.facts.new.race_row + np.arange(n_actions)) % soft_horizon_actions
        n_steps = np.minimum(n_steps, soft_horizon_actions - driven_since_cut)
    is_done = race.facts.terminated and not replay.no_done_at_end
    columns: dict[str, Any] = {
        "frames": np.asarray(race.columns["frames"]),
        "state_floats": np.asarray(race.columns["state_float"], dtype=np.float32),
        "actions": _with_last(actions),
        "rewards": _with_last(race.rewards),
        "potentials": race.potentials,
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
