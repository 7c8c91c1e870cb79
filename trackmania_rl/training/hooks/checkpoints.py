"""Checkpoints: resuming a run, first weights, and writing."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import torch

from trackmania_rl.errors import ExitCode, one_line
from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.runs import (
    FIRST_CHECKPOINT_AFTER_S,
    CheckpointError,
    DiskTooFullError,
    LoadedCheckpoint,
    RunFolder,
    find_manifests,
    is_checkpoint,
    load_newest,
    load_one,
)
from trackmania_rl.runs.driver_file import is_driver_file
from trackmania_rl.settings import Settings
from trackmania_rl.settings.since_checkpoint import (
    changes_of_meaning,
    changes_since,
    differences,
    require_accepted,
    stored_settings,
)
from trackmania_rl.telemetry.race_record import last_session
from trackmania_rl.telemetry.run_status import read_status
from trackmania_rl.training.driver_loading import weights_to_begin_with
from trackmania_rl.training.finite_numbers import in_few_words, not_finite_tensors
from trackmania_rl.training.hooks.finite_numbers import WatchNumbers
from trackmania_rl.training.hooks.hook import EagerInterval, Hook

log = logging.getLogger(__name__)


class NotSavedError(CheckpointError):
    """The training has ended, but its last checkpoint cannot be written."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_SAVED


class SaveCheckpoints(Hook):
    """Loads the run's last checkpoint, and writes one every `checkpoint_interval_s` and at the end.

    In a new run the first one comes `FIRST_CHECKPOINT_AFTER_S` after the first finish, and the next ones at distances
    that double up to that interval.

    Args:
        numbers: checks the weights.
        weights_from: a run that has no checkpoint yet begins with the networks of this run, checkpoint or driver; None
            for random ones.
        accepted_changes: settings that may differ from the checkpoint although they change its meaning.
    """

    def __init__(
        self, numbers: WatchNumbers, weights_from: Path | None = None, accepted_changes: Collection[str] = ()
    ) -> None:
        self._numbers = numbers
        self._weights_from = weights_from
        self._accepted_changes = accepted_changes
        self._is_due = EagerInterval()
        self._waits_for_finish = False
        self._has_begun = False
        self._saved_settings: Settings | None = None

    def take_up(self) -> None:
        """Load the run's newest complete checkpoint, if it has any. Call it before any hook's `begin`.

        Raises:
            UserError: if a setting was changed that gives another meaning to what was learned.
            CheckpointError: if there are checkpoints and none can be read, or that does not fit the configuration; of
                the run itself, or of the one whose weights it is to begin with; or if its weights are not finite. Or if
                the run had checkpoints, and they are gone.
        """
        folder = self.run.folder
        loaded = load_newest(folder.path)
        if loaded is None and _has_lost_its_checkpoints(folder):
            raise CheckpointError(
                f"{folder.path} has raced before, but {folder.checkpoints} holds no checkpoint: mount its disk, or put "
                "the folder back; or begin a new run under another run_name (--set run_name=...)"
            )
        self._waits_for_finish = loaded is None
        if loaded is not None:
            self._resume(loaded)
            if self._weights_from is not None:
                log.warning("--weights-from is for new runs: this one goes on with the weights of its own checkpoint")
        elif self._weights_from is not None:
            self._begin_with_weights(self._weights_from)
        if names := not_finite_tensors(self.run.agent.state_dict()):
            raise CheckpointError(
                f"{folder.path}: the weights to begin with are not finite numbers ({in_few_words(names)}); move the "
                f"newest folder of {folder.checkpoints} away to go on from the one before it, if that one is sound, or "
                "begin a new run "
                "with other weights"
            )
        self._has_begun = True
        self._saved_settings = self.run.settings

    def tick(self) -> None:
        """Write a checkpoint if it is due.

        Raises:
            UserError: if it is, and the weights are no longer finite numbers.
        """
        if not self.run.settings.takes_turns:
            self._save_if_due()

    def begin_turn(self) -> None:
        """Write a checkpoint if it is due: only between two turns the run can be resumed exactly.

        Raises:
            UserError: as `tick`.
        """
        self._save_if_due()

    def end(self) -> None:
        """Write the last checkpoint.

        A run of synchronous sampling that ends by an error within a turn writes none: it resumes exactly from the
        checkpoint between two turns.

        Raises:
            UserError: if the weights are no longer finite numbers; the checkpoints stay as they are.
            NotSavedError: if it cannot be written; the text names the last one.
        """
        if not self._has_begun or self.trainer.broke_off_within_turn:
            return
        self._numbers.require_sound()
        try:
            self._save()
        except CheckpointError as error:
            raise NotSavedError(f"the end of the training is not saved: {error}. {self._what_is_left()}") from error

    def try_to_save(self) -> bool:
        """Write a checkpoint, without the replay memory if the disk is too full for it. Log errors.

        Raises:
            UserError: if the weights are no longer finite numbers; the checkpoints stay as they are.
        """
        self._numbers.require_sound()
        try:
            self._save()
        except CheckpointError as error:
            log.error("%s", error)
            return False
        return True

    def _save(self) -> None:
        state = self.trainer.state_to_write()
        try:
            self.trainer.save_checkpoint(state)
        except DiskTooFullError:
            memory = state["hooks"]["StoreRaces"]
            if memory["buffers"] is None:
                raise
            memory["buffers"] = None
            self.trainer.save_checkpoint(state)
            log.warning("the disk is too full for the replay memory: the checkpoint is written without it")
        self.run.statistics.checkpoint_written()

    def _what_is_left(self) -> str:
        """Describe the checkpoint from which the run would resume."""
        manifests = find_manifests(self.run.folder.path)
        if not manifests:
            return f"What was learned is lost, as {self.run.folder.path} has no other checkpoint"
        folder, manifest = next(iter(manifests.items()))
        return (
            f"The last good one is {folder} of {manifest.written}, at frame {manifest.frames:,}: the same command goes "
            "on from there, and what was learned since is lost"
        )

    def _save_if_due(self) -> None:
        if self.run.statistics.updates_not_finite_in_a_row > 0:  # until one is finite again, or the run ends
            return
        if self._waits_for_finish and self.run.statistics.races_finished_total:
            self._waits_for_finish = False
            self._is_due.hurry(FIRST_CHECKPOINT_AFTER_S)
        is_due = self._is_due.is_due(self.run.settings.run.checkpoint_interval_s)
        if self._meaning_was_edited() or is_due:
            self.try_to_save()

    def _meaning_was_edited(self) -> bool:
        """Return whether an edit changed the meaning of what is learned since the last call.

        A run that is killed later resumes with the edited settings only from a checkpoint that has them.
        """
        before, now = self._saved_settings, self.run.settings
        self._saved_settings = now
        if before is None or before is now:
            return False
        return bool(changes_of_meaning(changes_since(stored_settings(before), now)))

    def _compare_settings(self, loaded: LoadedCheckpoint) -> None:
        changes = changes_since(loaded.manifest.settings, self.run.settings)
        require_accepted(changes, self._accepted_changes, self.run.folder.path)
        for change in changes:
            log.info("changed since the checkpoint: %s", change)

    def _resume(self, loaded: LoadedCheckpoint) -> None:
        folder, state = self.run.folder, loaded.state
        if names := not_finite_tensors(state.get("hooks", {}).get("StoreRaces")):
            raise CheckpointError(
                f"{loaded.folder}: the replay memory to begin with holds numbers that are not finite "
                f"({in_few_words(names)}); move it away to go on from the one before it, if that one is sound, "
                "or begin a new run"
            )
        try:
            self.trainer.load_state_dict(state)
        except torch.OutOfMemoryError:  # a RuntimeError, too, but not the checkpoint's fault
            raise
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            differs = differences(changes_since(loaded.manifest.settings, self.run.settings))
            raise CheckpointError(
                f"{loaded.folder} does not fit this configuration: {differs or one_line(error)}; undo the change "
                f"in {folder.settings} (what the command line asked for is not kept there), or begin a new run under "
                "another run_name (--set run_name=...)"
            ) from error
        self._compare_settings(loaded)  # after the sizes: no acceptance of a change makes another size fit
        memory = self.run.memory
        ring = memory.buffer.ring if isinstance(memory, MiniRaceMemory) else None
        self.trainer.checkpoints.go_on_from(loaded, ring)
        self.run.statistics.checkpoint_written(loaded.manifest.age_s)
        log.info("resumed %s at frame %s", folder.path, f"{self.run.statistics.frames_total:,}")

    def _begin_with_weights(self, source: Path) -> None:
        """Load networks only: learning rate, exploration and replay memory begin as in any new run."""
        made_with: dict[str, Any] = {}
        its_own = "the settings of that run (--config .../settings.toml)"
        try:
            if is_driver_file(source):
                its_own = "its own settings, which scripts/tools/driver.py configuration writes"
                weights = weights_to_begin_with(source, self.run.settings, self.run.spaces)
            else:
                is_one = is_checkpoint(source) or source.is_file()
                loaded = load_one(source, with_rows=False) if is_one else load_newest(source, with_rows=False)
                if loaded is None:
                    raise CheckpointError(f"--weights-from {source}: the folder holds no checkpoint")
                weights, made_with = loaded.state["agent"]["online"], loaded.manifest.settings
            self.run.agent.load_weights(weights)
        except (KeyError, RuntimeError) as error:
            differs = differences(changes_since(made_with, self.run.settings))
            raise CheckpointError(
                f"--weights-from {source}: its network does not fit this configuration: {differs or one_line(error)}; "
                f"begin with {its_own}, as sizes and inputs must be the same"
            ) from error
        log.info("the networks of %s are the beginning", source)


def _has_lost_its_checkpoints(folder: RunFolder) -> bool:
    """Return whether a run without checkpoints had some. A run killed before its first one had none."""
    leads_nowhere = folder.checkpoints.is_symlink() and not folder.checkpoints.exists()
    status = read_status(folder.path)
    has_saved = status is not None and status.saved_at_s is not None
    return last_session(folder.races) > 0 and (leads_nowhere or has_saved)
