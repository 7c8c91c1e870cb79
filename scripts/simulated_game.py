"""The simulated game: a process that plays tracks like TrackMania and speaks TMInterface's socket protocol.

It listens on one port and serves one client at a time, as an instance of the real game with the plugin does. It ends
with Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
from pathlib import Path

import psutil

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.places import PROJECT_FOLDER  # noqa: E402
from trackmania_rl.simulator.server.chaos import Chaos, ChaosError, ChaoticGameServer, Fault, Ledger, parse_faults  # noqa: E402
from trackmania_rl.simulator.server.game import SimulatedGame  # noqa: E402
from trackmania_rl.simulator.server.server import UNLIMITED_SPEED, GameServer  # noqa: E402
from trackmania_rl.simulator.tracks.track_file import TrackFileError  # noqa: E402

DEFAULT_PORT = 8478
MENUS = "none"
CHAOS_VARIABLES = ("SIMULATED_GAME_CHAOS", "SIMULATED_GAME_CHAOS_LEDGER")
"""Environment variables that stand for --chaos and --chaos-ledger where others start the game, as collectors do."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
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
    faults, ledger = map(os.environ.get, CHAOS_VARIABLES)
    parser.add_argument(
        "--chaos",
        type=_faults,
        default=faults or (),
        metavar="FAULTS",
        help='misbehave, e.g. "kill@race=3,time=2.0;late@race=1,seconds=0.5": see simulator/server/chaos.py',
    )
    parser.add_argument(
        "--chaos-ledger", type=Path, default=ledger, help="remember here which faults were made, for the next start"
    )
    parser.add_argument(
        "--ends-with", type=int, metavar="PID", help="end when this process is gone (what starts a game may be killed)"
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="(default %(default)s)"
    )
    return parser.parse_args()


def main() -> int:
    """Run the game; return the exit code."""
    arguments = parse_arguments()
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    if not arguments.maps_folder.is_dir():
        return _fail(f"there is no folder {arguments.maps_folder} (--maps-folder)")
    try:
        chaos = Chaos(arguments.chaos, Ledger(arguments.chaos_ledger)) if arguments.chaos else None
    except OSError as error:
        return _fail(f"--chaos-ledger {arguments.chaos_ledger}: {error.strerror}")
    if chaos is not None and chaos.refuses_to_start():
        return _fail("it refuses to start, as --chaos asks")
    game = SimulatedGame(arguments.maps_folder, arguments.scripts_folder)
    if arguments.map != MENUS:
        try:
            game.load_map(arguments.map)
        except TrackFileError as error:
            return _fail(str(error))
    try:
        speed = UNLIMITED_SPEED if arguments.unlimited else 1.0
        server = (
            GameServer(game, arguments.port, speed=speed)
            if chaos is None
            else ChaoticGameServer(chaos, game, arguments.port, speed=speed)
        )
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
    """Wait for a process, and end this one with it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait()
    os._exit(0)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not a port; 0 (any free one) to 65535 are")
    return port


def _faults(text: str) -> tuple[Fault, ...]:
    try:
        return parse_faults(text)
    except ChaosError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
