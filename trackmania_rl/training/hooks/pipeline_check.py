"""The pipeline check: what is trained on is what the games gave."""

from __future__ import annotations

import logging

from tensordict import TensorDictBase
from torchrl.envs.transforms import Transform

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.games.checked import CHECK_SUMS, sums_of_actions, sums_of_states
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


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
