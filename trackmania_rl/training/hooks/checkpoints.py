"""Checkpoints: what a run goes on from, and what it begins with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from trackmania_rl.agents.finite_numbers import in_few_words, not_finite_tensors
from trackmania_rl.checkpoints import (
    FIRST_CHECKPOINT_AFTER_S,
    CheckpointError,
    DiskTooFullError,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from trackmania_rl.driver_file import is_driver_file
from trackmania_rl.errors import one_line
from trackmania_rl.settings.of_run import what_shapes_otherwise
from trackmania_rl.training.driver_loading import weights_to_begin_with
from trackmania_rl.training.hooks.finite_numbers import WatchNumbers
from trackmania_rl.training.hooks.hook import EagerInterval, Hook

log = logging.getLogger(__name__)


class SaveCheckpoints(Hook):
    """Takes up the run's last checkpoint, and writes one every `checkpoint_interval_s` and at the end.

    In a new run the first one comes `FIRST_CHECKPOINT_AFTER_S` after the first finish, so that the driver can be looked
    at, and the next ones at distances that double up to that interval.

    Args:
        numbers: says whether weights are finite.
        weights_from: a run that has no checkpoint yet begins with the networks of this run, checkpoint file or driver;
            None for random ones.
    """

    def __init__(self, numbers: WatchNumbers, weights_from: Path | None = None) -> None:
        self._numbers = numbers
        self._weights_from = weights_from
        self._is_due = EagerInterval()
        self._waits_for_finish = False
        self._has_begun = False

    def take_up(self) -> None:
        """Go on from the run's last checkpoint, if it has one; call it before any hook's `begin`.

        Raises:
            CheckpointError: if there is a checkpoint that cannot be read, or that does not fit the configuration; of
                the run itself, or of the one whose weights it is to begin with; or if its weights are not finite.
        """
        folder = self.run.folder
        state = load_checkpoint(folder.path)
        self._waits_for_finish = state is None
        if state is not None:
            self._resume(state)
            if self._weights_from is not None:
                log.warning("--weights-from is for new runs: this one goes on with the weights of its own checkpoint")
        elif self._weights_from is not None:
            self._begin_with_weights(self._weights_from)
        if names := not_finite_tensors(self.run.agent.state_dict()):
            raise CheckpointError(
                f"{folder.path}: the weights to begin with are not finite numbers ({in_few_words(names)}); move "
                "checkpoint.pt away to go on from checkpoint.previous.pt, if that one is sound, or begin a new run "
                "with other weights"
            )
        self._has_begun = True

    def tick(self) -> None:
        """Write a checkpoint, if it is time.

        Raises:
            UserError: if it is, and the weights are no longer finite numbers.
        """
        if not self.run.settings.takes_turns:
            self._save_if_due()

    def begin_turn(self) -> None:
        """Write a checkpoint, if it is time: only between two turns a run can be interrupted and go on exactly.

        Raises:
            UserError: as `tick`.
        """
        self._save_if_due()

    def end(self) -> None:
        """Write the last checkpoint.

        A run that takes turns and ends by an error within one writes none: its last one is between two turns, from
        where it goes on exactly, and drives the same once more.

        Raises:
            UserError: if the weights are no longer finite numbers; the checkpoints stay as they are.
        """
        if self._has_begun and not self.trainer.broke_off_within_turn:
            self.try_to_save()

    def try_to_save(self) -> bool:
        """Write a checkpoint; on a disk that is too full for the replay memory, without it. What fails is told.

        Raises:
            UserError: if the weights are no longer finite numbers; the checkpoints stay as they are.
        """
        self.require_finite_weights()
        state = self.trainer.state_dict()
        least_mb = self.run.settings.run.minimum_free_disk_mb
        try:
            try:
                save_checkpoint(self.run.folder.path, state, least_mb)
            except DiskTooFullError:
                memory = state["hooks"]["StoreRaces"]
                if memory["buffers"] is None:
                    raise
                memory["buffers"] = None
                save_checkpoint(self.run.folder.path, state, least_mb)
                log.warning("the disk is too full for the replay memory: the checkpoint is written without it")
        except CheckpointError as error:
            log.error("%s", error)
            return False
        self.run.statistics.checkpoint_written()
        return True

    def require_finite_weights(self) -> None:
        """Refuse to keep a network that can neither drive nor learn any more: one update may spoil all weights.

        Raises:
            UserError: if a weight is infinite or no number.
        """
        self._numbers.require_sound()

    def _save_if_due(self) -> None:
        if self.run.statistics.updates_not_finite_in_a_row > 0:  # until one is finite again, or the run ends
            return
        if self._waits_for_finish and self.run.statistics.races_finished_total:
            self._waits_for_finish = False
            self._is_due.hurry(FIRST_CHECKPOINT_AFTER_S)
        if self._is_due.is_due(self.run.settings.run.checkpoint_interval_s):
            self.try_to_save()

    def _resume(self, state: dict[str, Any]) -> None:
        folder = self.run.folder
        if names := not_finite_tensors(state.get("hooks", {}).get("StoreRaces")):
            raise CheckpointError(
                f"{folder.path}: the replay memory to begin with holds numbers that are not finite "
                f"({in_few_words(names)}); move checkpoint.pt away to go on from checkpoint.previous.pt, if that one "
                "is sound, or begin a new run"
            )
        try:
            self.trainer.load_state_dict(state)
        except torch.OutOfMemoryError:  # a RuntimeError, too, but not the checkpoint's fault
            raise
        except (KeyError, RuntimeError, ValueError) as error:
            differs = what_shapes_otherwise(self.run.settings, state.get("settings", {}))
            raise CheckpointError(
                f"{folder.checkpoint} does not fit this configuration: {differs or one_line(error)}; undo the change "
                f"in {folder.config} (what the command line asked for is not kept there), or begin a new run under "
                "another run_name (--set run_name=...)"
            ) from error
        log.info("resumed %s at frame %s", folder.path, f"{self.run.statistics.frames_total:,}")

    def _begin_with_weights(self, source: Path) -> None:
        """Take over networks only: the learning rate, exploration and the replay memory begin as in any new run."""
        made_with: dict[str, str] = {}
        its_own = "the configuration of that run (--config .../config/config.py)"
        try:
            if is_driver_file(source):
                its_own = "its own settings, which scripts/tools/driver.py configuration writes"
                weights = weights_to_begin_with(source, self.run.settings, self.run.spaces)
            else:
                state = load_checkpoint(source) if source.is_dir() else read_checkpoint(source)
                if state is None:
                    raise CheckpointError(f"--weights-from {source}: the folder holds no checkpoint")
                weights, made_with = state["agent"]["online"], state.get("settings", {})
            self.run.agent.load_weights(weights)
        except (KeyError, RuntimeError) as error:
            differs = what_shapes_otherwise(self.run.settings, made_with)
            raise CheckpointError(
                f"--weights-from {source}: its network does not fit this configuration: {differs or one_line(error)}; "
                f"begin with {its_own}, as sizes and inputs must be the same"
            ) from error
        log.info("the networks of %s are the beginning", source)
