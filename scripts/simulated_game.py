"""The simulated game: a process that plays tracks like TrackMania, with TMInterface's socket protocol.

It listens on one port and serves one client at a time. Ctrl-C or SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import UNLIMITED_SPEED, GameServer
from trackmania_rl.simulator.tracks.track_file import TrackFileError

import psutil

DEFAULT_PORT = 8478
MENUS = "none"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="TCP port on this machine (default %(default)s)"
    )
    parser.add_argument(
        "--maps-folder", type=Path, default=PROJECT_FOLDER / "maps", help="where `map NAME` looks for tracks"
    )
    parser.add_argument("--scripts-folder", type=Path, default=Path(), help="where `load NAME` looks for input scripts")
    parser.add_argument(
        "--map", default="valley.toml", help=f"track to begin with, or {MENUS} for the menus (default %(default)s)"
    )
    parser.add_argument(
        "--unlimited", action="store_true", help="begin as fast as possible; otherwise in real time until a client asks"
    )
    parser.add_argument(
        "--ends-with", type=int, metavar="PID", help="end when this process is gone (what starts a game may be killed)"
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="(default %(default)s)"
    )
    return parser


def main() -> int:
    return run(make_parser().parse_args(), GameServer)


def run(arguments: argparse.Namespace, make_server: Callable[[SimulatedGame, int, float], GameServer]) -> int:
    """Serve a game until interrupted; return the exit code."""
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    if not arguments.maps_folder.is_dir():
        return _fail(f"there is no folder {arguments.maps_folder} (--maps-folder)")
    game = SimulatedGame(arguments.maps_folder, arguments.scripts_folder)
    if arguments.map != MENUS:
        try:
            game.load_map(arguments.map)
        except TrackFileError as error:
            return _fail(str(error))
    try:
        server = make_server(game, arguments.port, UNLIMITED_SPEED if arguments.unlimited else 1.0)
    except OSError as error:
        return _fail(f"cannot listen on port {arguments.port}: {error.strerror}; choose another one with --port")
    if arguments.ends_with is not None:
        threading.Thread(target=_end_with, args=(arguments.ends_with,), daemon=True).start()
    logging.info("listening on 127.0.0.1:%d", server.port)
    try:
        server.run()
    except KeyboardInterrupt:
        logging.info("stopped")
    return 0


def _end_with(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait()
    os._exit(0)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not a port; 0 (any free one) to 65535 are")
    return port


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
