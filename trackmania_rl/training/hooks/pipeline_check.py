"""Check that training batches equal the states and actions of the games (`crc_debug`)."""

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
"""Column of `rollout_results`: (T, 2) int64 check sums of decisions' states and actions; (T + 1, 2) if the finish came
before the last action."""


def sums_of_states(images: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> list[int]:
    """Return check sums of states: newest frame of images (n, S, H, W) and floats (n, F) without the elapsed time."""
    known = floats.astype(np.float32)
    known[:, ELAPSED_ACTIONS_FLOAT] = 0
    newest = images[:, -1:]
    return [zlib.crc32(of.tobytes(), zlib.crc32(frame.tobytes())) for frame, of in zip(newest, known, strict=True)]


def sums_of_actions(actions: npt.NDArray[Any]) -> list[int]:
    """Return check sums of actions, (n,) integers or (n, D) floats."""
    dtype = np.int64 if actions.ndim == 1 else np.float32
    return [zlib.crc32(action.tobytes()) for action in actions.astype(dtype)]


class CheckSums:
    """Listener that adds the column `CHECK_SUMS` to each race."""

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
    """Compares each drawn transition, before the configured `transforms`, with check sums of the collectors.

    State, action and next state must be of one race, `n_steps` apart. A race's last state is not compared, and neither
    are transitions of a checkpoint or a data set.

    Attributes:
        n_checked: number of compared transitions.
    """

    def __init__(self) -> None:
        self.n_checked = 0
        self._first_row = 0
        self._pairs: set[tuple[int, int]] = set()  # state and action
        self._steps: set[tuple[int, int, int, int | None]] = set()  # also n steps and the next state; None for the last

    def begin(self) -> None:
        """Check every batch from now on."""
        memory = self.run.memory
        if not isinstance(memory, MiniRaceMemory):
            raise UserError("crc_debug: only the memory that ships is checked: set memory to its default")
        self._first_row = memory.buffer.ring.end_row
        memory.buffer.insert_transform(0, _Watch(self))

    def batch_process(self, _: TensorDictBase) -> None:
        """Add the check sums of a race's transitions."""
        race = self.run.race
        assert race is not None
        rollout = race.rollout_results
        decided, n_actions = [tuple(pair) for pair in rollout[CHECK_SUMS].tolist()], len(rollout["actions"])
        if len(decided) not in (n_actions, n_actions + 1):  # the finish may come before the last action
            raise UserError(f"crc_debug: a race of {n_actions} actions has come in, but {len(decided)} were decided")
        decided = decided[:n_actions]
        states = [state for state, _ in decided] + [None]
        self._pairs.update(decided)
        for n_steps in range(1, self.run.settings.replay.n_steps + 1):
            self._steps.update((*pair, n_steps, after) for pair, after in zip(decided, states[n_steps:], strict=False))

    def check(self, batch: TensorDictBase) -> None:
        """Compare a batch.

        Raises:
            UserError: if a transition is not one of the games'.
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
        """Log the number of compared transitions."""
        log.info("crc_debug: %s transitions that were drawn are what the games gave", f"{self.n_checked:,}")


class _Watch(Transform):
    """Transform that checks batches."""

    def __init__(self, check: CheckPipeline) -> None:
        super().__init__()
        self._check = [check]  # in a list: no submodule

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Check and return the batch."""
        self._check[0].check(batch)
        return batch
