"""Records and drivers that are kept: each map's best race, and the evaluation network now and then."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from tensordict import TensorDictBase
from torch import nn

from trackmania_rl.errors import UserError
from trackmania_rl.runs import save_best_run
from trackmania_rl.runs.driver_file import ENDING, DriverFile, DriverTrack, write_driver
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.training.driver_loading import tracks_of
from trackmania_rl.training.finite_numbers import in_few_words, not_finite_tensors
from trackmania_rl.training.hooks.finite_numbers import WatchNumbers
from trackmania_rl.training.hooks.hook import Hook, RunContext
from trackmania_rl.training.hooks.races import CountRaces

log = logging.getLogger(__name__)


class KeepRecords(Hook):
    """Keeps the inputs and Q values of each map's best race in best_runs/, and the network that drove it.

    The kept network is that of the race's end, as newer weights may come in during a race. Only the best race of a map
    has one. A record set after the checkpoint of a resumed run remains a record, although the run no longer counts it.

    Args:
        races: has the race.
    """

    def __init__(self, races: CountRaces) -> None:
        self._races = races
        self._kept_ms: dict[str, int] = {}

    def begin(self) -> None:
        """Read the times of the records in the run's folder."""
        for folder in self.run.folder.best_runs.glob("[!.]*"):
            map_name, _, time_ms = folder.name.rpartition("_")
            if time_ms.isdecimal():
                self._kept_ms[map_name] = min(int(time_ms), self._kept_ms.get(map_name, int(time_ms)))

    def batch_process(self, _: TensorDictBase) -> None:
        """Save the race if it is a record. Log I/O errors."""
        race, record, folder = self.run.race, self._races.record, self.run.folder
        assert race is not None
        if not (self._races.is_best and record.counts):
            return
        if record.race_time_ms > self._kept_ms.get(record.map_name, record.race_time_ms):
            return
        self._kept_ms[record.map_name] = record.race_time_ms
        try:
            kept = save_best_run(
                folder.best_runs,
                record.map_name,
                record.race_time_ms,
                race.end_race_stats["inputs"],
                race.rollout_results["q_values"],
                self.run.settings,
            )
            self._keep_driver(kept, record)
        except UserError as error:
            log.error("%s", error)

    def _keep_driver(self, folder: Path, record: RaceRecord) -> None:
        run = self.run
        entry = next((entry for entry in run.settings.game.map_cycle if entry.map_name == record.map_name), None)
        if entry is None:  # an edit took the map away while it was driven
            return
        network = run.agent.exploration_network if record.is_explo else run.agent.evaluation_network
        driver = driver_now(folder.name, run, network, [DriverTrack.of_entry(entry, record.race_time_ms)])
        write_driver(folder / f"{folder.name}{ENDING}", driver, run.settings.run.minimum_free_disk_mb)
        of_map = re.compile(rf"{re.escape(record.map_name)}_\d+")
        for older in folder.parent.glob(f"*/*{ENDING}"):
            if older.parent != folder and of_map.fullmatch(older.stem):
                older.unlink(missing_ok=True)


class KeepDrivers(Hook):
    """Keeps the network that evaluates in drivers/, as a driver's file.

    One is kept whenever another full `keep_driver_every_s` of training is over.

    Args:
        numbers: checks the weights.
    """

    def __init__(self, numbers: WatchNumbers) -> None:
        self._numbers = numbers
        self._seen_s = 0.0  # training time of the last tick

    def begin(self) -> None:
        """Count from the run's time."""
        self._seen_s = self.run.statistics.training_s

    def tick(self) -> None:
        """Write a driver if it is due. Log I/O errors.

        Raises:
            UserError: if it is due and the weights are not finite.
        """
        if not self._is_due():
            return
        self._numbers.require_sound()
        settings, statistics, folder = self.run.settings.run, self.run.statistics, self.run.folder.drivers
        tracks = tracks_of(self.run.settings, {name: of.best_time_ms for name, of in statistics.maps.items()})
        try:
            driver = driver_now(settings.run_name, self.run, self.run.agent.evaluation_network, tracks)
            write_driver(folder / f"{statistics.frames_total:012d}{ENDING}", driver, settings.minimum_free_disk_mb)
        except UserError as error:
            log.error("%s", error)

    def _is_due(self) -> bool:
        """Return whether a multiple of the interval has passed since the last tick."""
        every_s, now_s = self.run.settings.run.keep_driver_every_s, self.run.statistics.training_s
        is_due = every_s > 0 and now_s // every_s != self._seen_s // every_s
        self._seen_s = now_s
        return is_due


def driver_now(name: str, run: RunContext, network: nn.Module, tracks: Sequence[DriverTrack]) -> DriverFile:
    """Make a driver of one of a run's networks as it is now.

    Args:
        name: of the driver.
        run: the run.
        network: one of its agent's.
        tracks: that it drives.

    Raises:
        UserError: if a setting cannot be written, or a weight is not finite.
    """
    statistics, weights = run.statistics, network.state_dict()
    if names := not_finite_tensors(weights):
        raise UserError(f"the driver {name} is not kept: its weights {in_few_words(names)} are not finite numbers")
    return DriverFile.of_network(
        name,
        run.settings,
        run.spaces,
        weights,
        tracks,
        frames_total=statistics.frames_total,
        training_s=statistics.training_s,
    )
