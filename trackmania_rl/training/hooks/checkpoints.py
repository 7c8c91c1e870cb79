"""Checkpoints, records and drivers that a run keeps, and resuming it."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import nn
from typing_extensions import override

from trackmania_rl.agents.weights import in_few_words, not_finite_tensors, unpack
from trackmania_rl.drivers.driver_file import ENDING, DriverFile, DriverTrack, write_driver
from trackmania_rl.drivers.loading import first_weights, load_weights, tracks_of
from trackmania_rl.errors import ExitCode, UserError, one_line
from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.runs.folder import KEPT_CHECKPOINTS, RunFolder
from trackmania_rl.runs.log import newest_race, read_status
from trackmania_rl.runs.manifest import CheckpointError, DiskTooFullError
from trackmania_rl.runs.reading import LoadedCheckpoint, find_manifests, load_checkpoint
from trackmania_rl.runs.snapshot import changes_of_meaning, changes_since, differences, require_accepted
from trackmania_rl.runs.store import FIRST_CHECKPOINT_AFTER_S, CheckpointFacts, CheckpointStore, save_best_run
from trackmania_rl.settings import Settings
from trackmania_rl.settings.loading import stored_settings
from trackmania_rl.telemetry.statistics import RECENT_RACES, TrainingStatistics
from trackmania_rl.training.hooks.hook import Hook, Interval, RunContext

log = logging.getLogger(__name__)


HOOKS: Final = "hooks"
"""Section for users' hook states, by name."""
ENOUGH_RACES: Final = RECENT_RACES // 2
"""Evaluation races per map that a score needs."""


class NotSavedError(CheckpointError):
    """The training has ended, but the last checkpoint cannot be written."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_SAVED


def state_of(run: RunContext) -> dict[str, Any]:
    """Return the state that a resumed run needs, by section, in plain values and tensors.

    The `RingBuffer` replaces the replay memory's rows, so they are not copied.
    """
    return {
        "agent": run.agent.state_dict(),
        "n_turns": run.n_turns,
        **{key: section.state_dict() for key, section in run.sections.items()},
        HOOKS: {name: hook.state_dict() for name, hook in run.user_hooks.items()},
    }


def load_state(run: RunContext, state: Mapping[str, Any]) -> None:
    """Load the state. Log a warning for a user's hook without one."""
    run.agent.load_state_dict(state["agent"])
    run.n_turns = state["n_turns"]
    for key, section in run.sections.items():
        if key in state:  # a hook that another setting brings has none
            section.load_state_dict(state[key])
    for name, hook in run.user_hooks.items():
        if name in state[HOOKS]:
            hook.load_state_dict(state[HOOKS][name])
        elif hook.state_dict():
            log.warning("the checkpoint has no hook %s, which starts with an empty state", name)


def score_of(figures: TrainingStatistics) -> tuple[float, ...] | None:
    """Return a comparable score for the run's recent evaluation races; larger is better.

    Returns:
        The share that finished, the negative mean of the maps' median times (s; 0 for a map without one), and the mean
        last distance (m). None before each map has `ENOUGH_RACES`.
    """
    histories = [of_map.evaluated for of_map in figures.maps.values() if of_map.evaluated.n_races > 0]
    if not histories or any(len(history.recent) < ENOUGH_RACES for history in histories):
        return None
    return (
        statistics.fmean(history.recent_finish_rate or 0.0 for history in histories),
        -statistics.fmean((history.median_time_ms or 0) / 1000 for history in histories),
        statistics.fmean(history.last_m for history in histories),
    )


class SaveCheckpoints(Hook):
    """Loads the run's last checkpoint, and writes one every `checkpoint_interval_s` and at the end.

    A new run writes the first one `FIRST_CHECKPOINT_AFTER_S` after its first finish, and the next ones at distances
    that double up to the interval.

    Args:
        weights_from: run, checkpoint or driver whose networks a new run begins with; None for random ones.
        accepted_changes: settings that may differ from the checkpoint although they change the meaning.
    """

    def __init__(self, weights_from: Path | None = None, accepted_changes: Collection[str] = ()) -> None:
        self._weights_from = weights_from
        self._accepted_changes = accepted_changes
        self._is_due = Interval()
        self._waits_for_finish = False
        self._saved_settings: Settings | None = None

    @override
    def attach(self, run: RunContext) -> None:
        super().attach(run)
        self._store = CheckpointStore(run.folder.path)

    def load_newest(self) -> None:
        """Load the run's newest complete checkpoint, if any. Call it before any hook's `begin`.

        Raises:
            UserError: if a changed setting gives another meaning to what was learned.
            CheckpointError: if no checkpoint can be read, it does not fit the configuration, the weights are not
                finite, or the run's checkpoints are gone.
        """
        folder = self.run.folder
        loaded = load_checkpoint(folder.path)
        self._waits_for_finish = loaded is None
        if loaded is not None:
            self._resume(loaded)
            if self._weights_from is not None:
                log.warning("--weights-from is for new runs: this one goes on with the weights of its own checkpoint")
        elif _has_lost_its_checkpoints(folder):
            raise CheckpointError(
                f"{folder.path} has raced before, but {folder.checkpoints} holds no checkpoint: mount its disk, or put "
                "the folder back; or begin a new run under another run_name (--set run_name=...)"
            )
        elif self._weights_from is not None:
            self._begin_with_weights(self._weights_from)
        if names := not_finite_tensors(self.run.agent.state_dict()):
            raise CheckpointError(
                f"{folder.path}: the weights to begin with are not finite numbers ({in_few_words(names)}); move the "
                f"newest folder of {folder.checkpoints} away to go on from the one before it, if that one is sound, or "
                "begin a new run with other weights"
            )
        self._saved_settings = self.run.settings

    def tick(self) -> None:
        if not self.run.settings.takes_turns:  # such a run resumes exactly only between two turns
            self._save_if_due()

    def begin_turn(self) -> None:
        self._save_if_due()

    def end(self) -> None:
        """Write the last checkpoint, unless an error ended a synchronous run within a turn."""
        if self._saved_settings is None or self.run.is_within_turn:
            return
        self.run.numbers.require_sound()
        try:
            self._save()
        except CheckpointError as error:
            raise NotSavedError(f"the end of the training is not saved: {error}. {self._last_good_one()}") from error

    def try_to_save(self) -> bool:
        """Write a checkpoint, without the replay memory if the disk is too full for it. Log errors."""
        self.run.numbers.require_sound()
        try:
            self._save()
        except CheckpointError as error:
            log.error("%s", error)
            return False
        return True

    def _save(self) -> None:
        run = self.run
        state = state_of(run)
        with contextlib.suppress(UserError):  # which the checkpoint names
            run.folder.make()  # it may have been deleted
        try:
            self._write(state)
        except DiskTooFullError:
            replay = state["replay"]
            if replay["memory"] is None:
                raise
            replay["memory"] = None
            self._write(state)
            log.warning("the disk is too full for the replay memory: the checkpoint is written without it")
        run.statistics.checkpoint_written()
        run.heartbeat.saved = run.n_saved_before + run.statistics.frames_total + run.agent.updates

    def _write(self, state: Mapping[str, Any]) -> Path:
        run = self.run
        facts = CheckpointFacts(
            session=run.session,
            frames=run.statistics.frames_total,
            updates=run.agent.updates,
            score=score_of(run.statistics),
            settings=stored_settings(run.settings),
        )
        return self._store.save(state, run.settings.run.minimum_free_disk_mb, facts, KEPT_CHECKPOINTS)

    def _last_good_one(self) -> str:
        for folder, manifest in find_manifests(self.run.folder.path).items():
            return (
                f"The last good one is {folder} of {manifest.written}, at frame {manifest.frames:,}: the same command "
                "goes on from there, and what was learned since is lost"
            )
        return f"What was learned is lost, as {self.run.folder.path} has no other checkpoint"

    def _save_if_due(self) -> None:
        statistics = self.run.statistics
        settings = self.run.settings
        if statistics.updates_not_finite_in_a_row > 0:
            return
        if self._waits_for_finish and statistics.races_finished_total:
            self._waits_for_finish = False
            self._is_due.hurry(FIRST_CHECKPOINT_AFTER_S)
        memory = self.run.memory
        interval_s = settings.run.checkpoint_interval_s
        nears_loss = isinstance(memory, MiniRaceMemory) and memory.buffer.ring.nears_loss
        if nears_loss and settings.run.checkpoint_holds_replay:
            interval_s = min(interval_s, FIRST_CHECKPOINT_AFTER_S)
        is_due = self._is_due.is_due(interval_s)
        # A run killed later resumes with edited settings only from a checkpoint that has them.
        before = self._saved_settings
        self._saved_settings = settings
        if before is not None and before is not settings:
            is_due |= bool(changes_of_meaning(changes_since(stored_settings(before), settings)))
        if is_due:
            self.try_to_save()

    def _resume(self, loaded: LoadedCheckpoint) -> None:
        folder = self.run.folder
        state = loaded.state
        changes = changes_since(loaded.manifest.settings, self.run.settings)
        if names := not_finite_tensors(state.get("replay")):
            raise CheckpointError(
                f"{loaded.folder}: the replay memory to begin with holds numbers that are not finite "
                f"({in_few_words(names)}); move it away to go on from the one before it, if that one is sound, "
                "or begin a new run"
            )
        try:
            load_state(self.run, state)
        except torch.OutOfMemoryError:  # is a RuntimeError
            raise
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            differs = differences(changes)
            raise CheckpointError(
                f"{loaded.folder} does not fit this configuration: {differs or one_line(error)}; undo the change "
                f"in {folder.settings} (what the command line asked for is not kept there), or begin a new run under "
                "another run_name (--set run_name=...)"
            ) from error
        # After the sizes: no acceptance of a change makes another size fit.
        require_accepted(changes, self._accepted_changes, folder.path)
        for change in changes:
            log.info("changed since the checkpoint: %s", change)
        memory = self.run.memory
        ring = memory.buffer.ring if isinstance(memory, MiniRaceMemory) else None
        self._store.continue_from(loaded, ring)
        self.run.statistics.checkpoint_written(loaded.manifest.age_s)
        log.info("resumed %s at frame %s", folder.path, f"{self.run.statistics.frames_total:,}")

    def _begin_with_weights(self, source: Path) -> None:
        """Load only networks, without optimizer, exploration and replay memory."""
        try:
            learned = load_weights(source, self.run.settings)
        except CheckpointError as error:
            raise CheckpointError(f"--weights-from cannot be read: {error}") from error
        try:
            self.run.agent.load_weights(first_weights(learned, self.run.spaces))
        except (KeyError, RuntimeError) as error:
            differs = differences(changes_since(learned.made_with, self.run.settings))
            raise CheckpointError(
                f"--weights-from {source}: its network does not fit this configuration: {differs or one_line(error)}; "
                "begin with its own settings (--config with the run's settings.toml, or with what "
                "scripts/tools/driver.py configuration writes), as sizes and inputs must be the same"
            ) from error
        log.info("the run begins with the networks of %s", source)


def _has_lost_its_checkpoints(folder: RunFolder) -> bool:
    # A run killed before its first checkpoint had none.
    leads_nowhere = folder.checkpoints.is_symlink() and not folder.checkpoints.exists()
    status = read_status(folder.run_log)
    has_saved = status is not None and status.saved_at_s is not None
    newest_id, _ = newest_race(folder.run_log)
    return newest_id > 0 and (leads_nowhere or has_saved)


class KeepRecords(Hook):
    """Keeps inputs and Q values: each map's best races in best_runs/, all good races in good_runs/.

    Beside the best evaluation race is its driver. The folder's records count also in a run that was resumed from an
    earlier checkpoint.
    """

    def __init__(self) -> None:
        self._kept_ms: dict[str, int] = {}
        self._with_driver_ms: dict[str, int] = {}

    def begin(self) -> None:
        for folder in self.run.folder.best_runs.glob("[!.]*"):
            map_name, _, text = folder.name.rpartition("_")
            if not text.isdecimal():
                continue
            time_ms = int(text)
            self._kept_ms[map_name] = min(time_ms, self._kept_ms.get(map_name, time_ms))
            if (folder / f"{folder.name}{ENDING}").is_file():
                self._with_driver_ms[map_name] = time_ms

    @override
    def on_race(self, race: Race) -> None:
        """Save the race if it is a record, or within `threshold_to_save_all_runs_ms`. Log I/O errors."""
        facts = race.facts
        name = facts.map_name
        time_ms = facts.race_time_ms
        if not (facts.race_finished and facts.counts) or facts.is_generated:
            return
        settings = self.run.settings
        folder = self.run.folder
        try:
            if time_ms <= settings.run.threshold_to_save_all_runs_ms:
                save_best_run(folder.good_runs, race, settings)
            weights = None
            if not facts.is_explo and time_ms < self._with_driver_ms.get(name, time_ms + 1):
                weights = self.run.channels.run_state.weights["evaluation"].with_digest(facts.weights_digest)
            if weights is not None or time_ms < self._kept_ms.get(name, time_ms + 1):
                self._kept_ms[name] = min(time_ms, self._kept_ms.get(name, time_ms))
                kept = save_best_run(folder.best_runs, race, settings)
                if weights is not None:
                    self._keep_driver(kept, facts, weights)
        except UserError as error:
            log.error("%s", error)

    def _keep_driver(self, folder: Path, facts: RaceFacts, weights: torch.Tensor) -> None:
        """Replace the map's driver."""
        run = self.run
        entry = next((entry for entry in run.settings.game.map_cycle if entry.map_name == facts.map_name), None)
        if entry is None:  # an edit removed the map during the race
            return
        network = copy.deepcopy(run.agent.evaluation_network).cpu()
        unpack(weights, network)
        track = DriverTrack.of_entry(entry, facts.race_time_ms)
        _write_driver(folder / f"{folder.name}{ENDING}", folder.name, run, network, [track])
        self._with_driver_ms[facts.map_name] = facts.race_time_ms
        of_map = re.compile(rf"{re.escape(facts.map_name)}_\d+")
        for older in folder.parent.glob(f"*/*{ENDING}"):
            if older.parent != folder and of_map.fullmatch(older.stem):
                older.unlink(missing_ok=True)


class KeepDrivers(Hook):
    """Keeps the network that evaluates in drivers/, once per full `keep_driver_every_s` of training."""

    def __init__(self) -> None:
        self._ticked_s = 0.0

    def begin(self) -> None:
        self._ticked_s = self.run.statistics.training_s

    def tick(self) -> None:
        settings = self.run.settings
        statistics = self.run.statistics
        before_s = self._ticked_s
        self._ticked_s = statistics.training_s
        every_s = settings.run.keep_driver_every_s
        if every_s == 0 or self._ticked_s // every_s == before_s // every_s:
            return
        self.run.numbers.require_sound()
        tracks = tracks_of(settings, {name: of.best_time_ms for name, of in statistics.maps.items()})
        file = self.run.folder.drivers / f"{statistics.frames_total:012d}{ENDING}"
        try:
            _write_driver(file, settings.run.run_name, self.run, self.run.agent.evaluation_network, tracks)
            if (n_kept := settings.run.keep_drivers_at_most) is not None:
                for oldest in sorted(file.parent.glob(f"*{ENDING}"))[:-n_kept]:
                    oldest.unlink(missing_ok=True)
        except UserError as error:
            log.error("%s", error)


def _write_driver(file: Path, name: str, run: RunContext, network: nn.Module, tracks: Sequence[DriverTrack]) -> None:
    weights = network.state_dict()
    if names := not_finite_tensors(weights):
        raise UserError(f"the driver {name} is not kept: its weights {in_few_words(names)} are not finite numbers")
    frames_total = run.statistics.frames_total
    training_s = run.statistics.training_s
    driver = DriverFile.of_network(
        name, run.settings, run.spaces, weights, tracks, frames_total=frames_total, training_s=training_s
    )
    write_driver(file, driver, run.settings.run.minimum_free_disk_mb)
