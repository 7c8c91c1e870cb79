"""The live page of a run, in a browser: cars on the map, pictures, curves, records, messages and settings.

RUN is a run's folder or its name in save/, by default the newest one. A driver's file drives each of its tracks once,
and the page shows these races. Only this machine reaches the page, unless --host and --token are given.

Examples:
  python scripts/dashboard.py save/simulated --port 8700
  python scripts/dashboard.py drivers/ring.driver
  python scripts/dashboard.py simulated --host 0.0.0.0 --token choose-one
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from trackmania_rl.cli import command, is_loopback, port
from trackmania_rl.errors import UserError
from trackmania_rl.paths import PROJECT_FOLDER, WORKING_FOLDER
from trackmania_rl.processes import call_in_process
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.telemetry.page.runs import find_run

DRIVER_ENDING: Final = ".driver"
LONGEST_DRIVE_S: Final = 600.0
FIRST_PORT: Final = 8600
NEEDED_PACKAGES: Final = ("fastapi", "prometheus_client", "uvicorn", "websockets")
SHORTEST_TOKEN: Final = 8
NICENESS: Final = 5
"""Below a training, which has 0."""


@command
def main() -> None:
    """Run the command line."""
    arguments = parse_arguments()
    check_packages()
    check_token(arguments.host, arguments.token)
    with contextlib.ExitStack() as closing:
        listening = closing.enter_context(listen(arguments.host, arguments.port))
        if arguments.run is not None and arguments.run.endswith(DRIVER_ENDING):
            run = closing.enter_context(run_of_driver(Path(arguments.run), PROJECT_FOLDER))
        else:
            run = find_run(arguments.run, arguments.save_folder)
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        serve(run, listening, arguments.host, arguments.token, ends_with_stdin=arguments.ends_with_stdin)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="dashboard.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "run",
        nargs="?",
        metavar="RUN",
        help="a run's folder, its name in save/, or a driver's file (default: the newest run)",
    )
    add("--save-folder", type=Path, default=WORKING_FOLDER / "save", help="folder of the runs (default: save/)")
    add("--host", default="127.0.0.1", help="address to listen at; addresses other than loopback need --token")
    add("--port", type=port, default=FIRST_PORT, help="default %(default)s")
    add("--token", help=f"secret word in the address, at least {SHORTEST_TOKEN} characters of your choice")
    add("--ends-with-stdin", action="store_true", help="end when the standard input is closed (a training's page)")
    return parser.parse_args()


def check_packages() -> None:
    """Raise a `UserError` if a package for the page is missing."""
    missing = [name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the live page needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            'python -m pip install "trackmania-rl[dashboard]"'
        )


def check_token(host: str, token: str | None) -> None:
    """Raise a `UserError` if a page for other machines has no long token."""
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host} lets other machines see this page and edit settings: give --token as well, a word of your "
            "choice that its address must carry"
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(f"--token has {len(token)} characters: take {SHORTEST_TOKEN} or more, letters and digits")


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
            call_in_process(drive, file.resolve(), run, project_folder, limit_s=LONGEST_DRIVE_S)
        except TimeoutError:
            raise UserError(f"{file} did not finish its races within {LONGEST_DRIVE_S:g} s") from None
        except EOFError:
            raise UserError(f"{file}: the process that drove its races was ended") from None
        yield run


def drive(file: Path, run: RunFolder, project_folder: Path) -> None:
    """Write a new run's folder with one greedy race on each driver track."""
    from trackmania_rl.drivers.evaluation import greedy_after, load_driver
    from trackmania_rl.games.protocol import rollout
    from trackmania_rl.games.race_games import make_games_builder
    from trackmania_rl.runs.log import CommandClock, RunLog, RunStatus
    from trackmania_rl.runs.snapshot import already_stretched, write_settings
    from trackmania_rl.runs.store import save_best_run
    from trackmania_rl.seeds import SeedTree
    from trackmania_rl.telemetry.figures import race_figures
    from trackmania_rl.telemetry.statistics import MapStatistics, TrainingStatistics
    from trackmania_rl.track.map_sources import TRACKS_FOLDER
    from trackmania_rl.track.named_maps import map_entries

    driver = load_driver(file)
    game = driver.settings.game.model_copy(update={"game": "simulated", "games_per_collector": 1})
    settings = driver.settings.model_copy(update={"game": game})
    maps_folder = project_folder / game.maps_folder
    write_settings(run.settings, already_stretched(settings))
    run.best_runs.mkdir()
    log = RunLog(run.run_log, CommandClock(), session=1)
    statistics = TrainingStatistics()
    games = make_games_builder(settings).make_games(0, maps_folder, SeedTree(settings.run.seed).rng("page/games"))
    with contextlib.closing(games), contextlib.closing(log):
        for entry in map_entries(settings, maps_folder, tracks_folder=run.path / TRACKS_FOLDER):
            driven = rollout(games, entry, lambda: greedy_after(np.empty(0), driver.actor))
            driven.facts = driven.facts.with_changes(is_explo=False)
            history = statistics.maps.setdefault(entry.map_name, MapStatistics()).evaluated
            history.add(driven.facts)
            log.write(driven.facts, driver.frames_total, driver.training_s)
            log.write_figures(race_figures(driven.facts, history), driver.frames_total)
            if driven.facts.race_finished:
                kept = save_best_run(run.best_runs, driven, settings)
                shutil.copyfile(file, kept / f"{kept.name}{DRIVER_ENDING}")
        figures = {"frames_total": driver.frames_total, "training_seconds_total": driver.training_s}
        log.write_status(RunStatus(is_over=True, figures=figures, maps=statistics.map_rows()))


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. A `UserError` if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # there it would take a port that is in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is taken, perhaps by another page: choose one with --port") from error
        raise UserError(f"--host {host} --port {port}: {error.strerror or error}") from error
    return listening


def serve(run: RunFolder, listening: socket.socket, host: str, token: str | None, *, ends_with_stdin: bool) -> None:
    """Serve a run's page until it is interrupted, or if it `ends_with_stdin`, until that is closed."""
    from trackmania_rl.telemetry.page.page import RunPage
    from trackmania_rl.telemetry.page.server import make_app, make_server

    port = listening.getsockname()[1]
    server = make_server(make_app(RunPage(run, PROJECT_FOLDER), host, port, token))

    def end_with_stdin() -> None:
        while sys.stdin.buffer.read(1 << 12):
            pass
        server.should_exit = True

    if ends_with_stdin:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    print(f"{run.path}: {address(host, port, token)}  (Ctrl-C ends the page)", flush=True)
    server.run(sockets=[listening])


def address(host: str, port: int, token: str | None) -> str:
    """Return the page address for a browser."""
    name = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={token}")


if __name__ == "__main__":
    sys.exit(main())
