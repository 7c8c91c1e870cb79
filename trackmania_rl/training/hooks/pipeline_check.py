"""The pipeline check: what is trained on is what the games gave."""

from __future__ import annotations

import logging
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tensordict import TensorDictBase
from torchrl.envs.transforms import Transform

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.games.protocol import GameIds, Received
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT, BatchDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)

CHECK_SUMS: Final = "crc_debug"
"""The column of `rollout_results`: (T, 2) int64, check sums of the states in which it was decided, and of actions;
(T + 1, 2) where the last action was decided, but the finish came first."""


def sums_of_states(images: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> list[int]:
    """Compute a check sum of each state: newest frame and floats, but for the time elapsed in the mini-race.

    Args:
        images: (n, S, H, W).
        floats: (n, F).
    """
    seen = floats.astype(np.float32)
    seen[:, ELAPSED_ACTIONS_FLOAT] = 0
    newest = images[:, -1:]
    return [zlib.crc32(of.tobytes(), zlib.crc32(frame.tobytes())) for frame, of in zip(newest, seen, strict=True)]


def sums_of_actions(actions: npt.NDArray[Any]) -> list[int]:
    """Compute a check sum of each action, (n,) whole numbers or (n, D) floats."""
    dtype = np.int64 if actions.ndim == 1 else np.float32
    return [zlib.crc32(action.tobytes()) for action in actions.astype(dtype)]


class CheckSums:
    """Listener that adds the column `CHECK_SUMS` to each race: sums of what is seen and decided, at that moment."""

    def __init__(self) -> None:
        self._states: dict[int, int] = {}  # of the games that wait
        self._races: dict[int, list[tuple[int, int]]] = {}

    def begins(self, game: int, map_entry: MapEntry) -> None:
        """Forget the game's last race."""
        self._races[game] = []

    def received(self, received: Received) -> None:
        """Compute the sums of states, and add those of each race that has ended."""
        if len(received.ids) > 0:
            sums = sums_of_states(received.images, received.floats)
            self._states.update(zip(received.ids.tolist(), sums, strict=True))
        for game in received.ids[received.is_first].tolist():
            self._races[game] = []
        for game, race in received.ended.items():
            race.rollout_results[CHECK_SUMS] = np.array(self._races[game], dtype=np.int64).reshape(-1, 2)

    def decided(self, ids: GameIds, decision: BatchDecision) -> None:
        """Compute the sums of actions."""
        for game, check_sum in zip(ids.tolist(), sums_of_actions(decision.actions), strict=True):
            self._races[game].append((self._states[game], check_sum))


class CheckPipeline(Hook):
    """Compares each transition that is drawn with check sums taken where it was driven (`crc_debug`).

    State, action and next state must have been one after the other in one race, `n_steps` apart; a race's last state,
    in which nothing was decided, is not compared, and neither is what was in the memory before, from a checkpoint or a
    data set. Batches are looked at before any of the configured `transforms`.

    Attributes:
        n_checked: transitions that were compared.
    """

    def __init__(self) -> None:
        self.n_checked = 0
        self._first_row = 0
        self._pairs: set[tuple[int, int]] = set()  # of a state and its action
        self._steps: set[tuple[int, int, int, int | None]] = (
            set()
        )  # and of n steps and the next state; None: a last one

    def begin(self) -> None:
        """Check every batch from here on.

        Raises:
            UserError: if the run has a memory of its own.
        """
        memory = self.run.memory
        if not isinstance(memory, MiniRaceMemory):
            raise UserError("crc_debug: only the memory that ships is checked: set memory to its default")
        self._first_row = memory.buffer.ring.end_row
        memory.buffer.insert_transform(0, _Watch(self))

    def batch_process(self, _: TensorDictBase) -> None:
        """Learn what a race's transitions must be.

        Raises:
            UserError: if there are not as many check sums as actions.
        """
        race = self.run.race
        assert race is not None
        rollout = race.rollout_results
        seen, n_actions = [tuple(pair) for pair in rollout[CHECK_SUMS].tolist()], len(rollout["actions"])
        if len(seen) not in (n_actions, n_actions + 1):  # the car may reach the finish before the last is made
            raise UserError(f"crc_debug: a race of {n_actions} actions has come in, but {len(seen)} were decided")
        seen = seen[:n_actions]
        states = [state for state, _ in seen] + [None]
        self._pairs.update(seen)
        for n_steps in range(1, self.run.settings.replay.n_steps + 1):
            self._steps.update((*pair, n_steps, after) for pair, after in zip(seen, states[n_steps:], strict=False))

    def check(self, batch: TensorDictBase) -> None:
        """Compare a batch.

        Raises:
            UserError: if a transition is another than any that was driven.
        """
        states, afters = (
            sums_of_states(batch[f"{which}_img"].numpy(force=True), batch[f"{which}_float"].numpy(force=True))
            for which in ("state", "next_state")
        )
        actions = sums_of_actions(batch["action"].numpy(force=True))
        rows, n_steps, gammas = (batch[name].tolist() for name in ("index", "n_steps", "gamma_n"))
        for row, state, action, n, gamma, after in zip(rows, states, actions, n_steps, gammas, afters, strict=True):
            if row < self._first_row:
                continue
            self.n_checked += 1
            has_next = gamma != 0
            is_known = (state, action) in self._pairs
            follows = not has_next or not {(state, action, n, after), (state, action, n, None)}.isdisjoint(self._steps)
            if not (is_known and follows):
                wrong = "next state" if is_known else "state or action"
                raise UserError(
                    f"crc_debug: the {wrong} of transition {row} is not what a game gave: something between the games "
                    "and the batch changes it, such as an own memory, or a part of this project: please report it"
                )

    def end(self) -> None:
        """Say how much was compared."""
        log.info("crc_debug: %s transitions that were drawn are what the games gave", f"{self.n_checked:,}")


class _Watch(Transform):
    """Shows batches to the check, as they come out of the memory."""

    def __init__(self, check: CheckPipeline) -> None:
        super().__init__()
        self._check = [check]  # in a list, as a module would take a module for its own

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch as it is."""
        self._check[0].check(batch)
        return batch
