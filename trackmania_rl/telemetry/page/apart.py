"""Races of a driver's file for the page, driven in a process of their own, as driving needs torch."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.settings.run_folder import RunFolder

DRIVER_ENDING: Final = ".driver"
LONGEST_DRIVE_S: Final = 600.0


@contextlib.contextmanager
def run_of_driver(file: Path, project_folder: Path) -> Iterator[RunFolder]:
    """Drive a driver's tracks once, and yield the races as a run in a temporary folder.

    Raises:
        UserError: if the file is missing, cannot be used here, or does not finish in time.
    """
    if not file.is_file():
        raise UserError(f"{file}: there is no such driver's file")
    with tempfile.TemporaryDirectory(prefix="trackmania_rl_page_") as folder:
        run = RunFolder.at(Path(folder).resolve() / "save" / file.stem)
        print(f"{file} drives its tracks, which takes some seconds", flush=True)
        try:
            with multiprocessing.get_context("spawn").Pool(1) as pool:  # which is killed at the end
                pool.apply_async(drive, (file.resolve(), run, project_folder)).get(LONGEST_DRIVE_S)
        except multiprocessing.TimeoutError as error:
            raise UserError(f"{file} has driven for {LONGEST_DRIVE_S:g} s, and is not done: give it up") from error
        yield run


def drive(file: Path, run: RunFolder, project_folder: Path) -> None:
    """Write a new run's folder with one greedy race on each of a driver's tracks."""
    from trackmania_rl.games.protocol import rollout
    from trackmania_rl.games.race_games import make_games_builder
    from trackmania_rl.runs import save_best_run
    from trackmania_rl.seeds import SeedTree
    from trackmania_rl.settings.snapshot import already_stretched, write_settings
    from trackmania_rl.telemetry.race_record import CommandClock, RaceLog, RaceRecord
    from trackmania_rl.track.named_maps import map_entries
    from trackmania_rl.training.evaluation import greedy_after, load_driver

    driver = load_driver(file)
    game = driver.settings.game.model_copy(update={"game": "simulated", "games_per_collector": 1})
    settings = driver.settings.model_copy(update={"game": game})
    maps_folder = project_folder / game.maps_folder
    write_settings(run.settings, already_stretched(settings))
    run.best_runs.mkdir()
    log = RaceLog(run.races, CommandClock(), session=1)
    games = make_games_builder(settings).make_games(0, maps_folder, SeedTree(settings.run.seed).rng("page/games"))
    with contextlib.closing(games), contextlib.closing(log):
        for entry in map_entries(settings, maps_folder, tracks_folder=run.path / "generated_tracks"):
            driven = rollout(games, entry, lambda: greedy_after(np.empty(0), driver.actor))
            stats = driven.end_race_stats
            record = RaceRecord.of_rollout(entry.map_name, False, 0, driven.rollout_results, stats)
            log.write(record, driver.frames_total)
            if record.race_finished:
                q_values = driven.rollout_results["q_values"]
                kept = save_best_run(
                    run.best_runs, entry.map_name, record.race_time_ms, stats["inputs"], q_values, settings
                )
                shutil.copyfile(file, kept / f"{kept.name}{DRIVER_ENDING}")
