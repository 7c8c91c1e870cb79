"""A driver's file on the page: it drives each of its tracks once, and these races are shown as a run's records are.

A process of its own drives, as torch takes half a gigabyte that the page would hold for as long as it is open.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from trackmania_rl.cli import command
from trackmania_rl.errors import PlainError, UserError
from trackmania_rl.telemetry.page.run_on_disk import RunOnDisk

ENDING: Final = ".driver"
"""Of a driver's file; its own module, which says the same, takes torch's import."""
LONGEST_DRIVE_S: Final = 600.0


class PageOfDriverError(PlainError):
    """A driver that cannot drive here."""


@contextlib.contextmanager
def run_of_driver(file: Path, project_folder: Path) -> Iterator[RunOnDisk]:
    """Let a driver drive, and show its races as a run; the run's folder is gone at the end.

    Args:
        file: a driver's file.
        project_folder: where relative paths of settings begin.

    Raises:
        UserError: if there is no such file, or it does not come to an end.
        PageOfDriverError: if it cannot drive; the process that drives has said why.
    """
    if not file.is_file():
        raise UserError(f"{file}: there is no such driver's file")
    with tempfile.TemporaryDirectory(prefix="trackmania_rl_page_") as folder:
        run = RunOnDisk(Path(folder).resolve() / "save" / file.stem, project_folder)
        print(f"{file} drives its tracks, which takes some seconds", flush=True)
        arguments = [sys.executable, "-m", __name__, str(file.resolve()), str(run.path), str(project_folder)]
        try:
            driving = subprocess.run(arguments, stdin=subprocess.DEVNULL, check=False, timeout=LONGEST_DRIVE_S)
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{file} has driven for {LONGEST_DRIVE_S:g} s, and is not done: give it up") from error
        if driving.returncode != 0:
            raise PageOfDriverError(f"{file} cannot be shown; the line above says why")
        yield run


@command
def main() -> None:
    """Drive in this process: `python -m trackmania_rl.telemetry.page.driver_races FILE RUN_FOLDER PROJECT_FOLDER`."""
    file, run_folder, project_folder = map(Path, sys.argv[1:])
    drive(file, run_folder, project_folder)


def drive(file: Path, run_folder: Path, project_folder: Path) -> None:
    """Write a run's folder with one greedy race on each of a driver's tracks.

    Args:
        file: the driver's.
        run_folder: the run's; there is none yet.
        project_folder: where relative paths of settings begin.

    Raises:
        UserError: if the file, or a track that it names, cannot be used here.
    """
    from trackmania_rl.games.protocol import rollout
    from trackmania_rl.games.race_games import make_games_builder
    from trackmania_rl.runs import save_best_run
    from trackmania_rl.seeds import SeedTree
    from trackmania_rl.settings.snapshot import SETTINGS_FILE, already_stretched, write_settings
    from trackmania_rl.telemetry.race_record import CommandClock, RaceLog, RaceRecord
    from trackmania_rl.track.named_maps import map_entries
    from trackmania_rl.training.evaluation import greedy_after, load_driver

    driver = load_driver(file)
    game = driver.settings.game.model_copy(update={"game": "simulated", "games_per_collector": 1})
    settings = driver.settings.model_copy(update={"game": game})
    maps_folder = project_folder / game.maps_folder
    write_settings(run_folder / SETTINGS_FILE, already_stretched(settings))
    best_runs = run_folder / "best_runs"
    best_runs.mkdir()
    log = RaceLog(run_folder / "races.jsonl", CommandClock(), session=1)
    games = make_games_builder(settings).make_games(0, maps_folder, SeedTree(settings.run.seed).rng("page/games"))
    with contextlib.closing(games), contextlib.closing(log):
        for entry in map_entries(settings, maps_folder, tracks_folder=run_folder / "generated_tracks"):
            driven = rollout(games, entry, lambda: greedy_after(np.empty(0), driver.actor))
            stats = driven.end_race_stats
            record = RaceRecord.of_rollout(entry.map_name, False, 0, driven.rollout_results, stats)
            log.write(record, driver.frames_total)
            if record.race_finished:
                q_values = driven.rollout_results["q_values"]
                kept = save_best_run(
                    best_runs, entry.map_name, record.race_time_ms, stats["inputs"], q_values, settings
                )
                shutil.copyfile(file, kept / f"{kept.name}{ENDING}")


if __name__ == "__main__":
    sys.exit(main())
