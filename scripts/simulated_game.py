"""The simulated game: a process that plays tracks like TrackMania and speaks TMInterface's socket protocol.

It listens on one port and serves one client at a time, as an instance of the real game with the plugin does. It ends
with Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.simulator.game import SimulatedGame  # noqa: E402
from trackmania_rl.simulator.server import UNLIMITED_SPEED, GameServer  # noqa: E402
from trackmania_rl.simulator.track_file import TrackFileError  # noqa: E402

DEFAULT_PORT = 8478
MENUS = "none"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="TCP port on this machine (default %(default)s)"
    )
    parser.add_argument("--maps-folder", type=Path, default=PROJECT / "maps", help="where `map NAME` looks for tracks")
    parser.add_argument("--scripts-folder", type=Path, default=Path(), help="where `load NAME` looks for input scripts")
    parser.add_argument(
        "--map", default="valley.toml", help=f"track to begin with, or {MENUS} for the menus (default %(default)s)"
    )
    parser.add_argument(
        "--unlimited", action="store_true", help="begin as fast as possible; otherwise in real time until a client asks"
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
    game = SimulatedGame(arguments.maps_folder, arguments.scripts_folder)
    if arguments.map != MENUS:
        try:
            game.load_map(arguments.map)
        except TrackFileError as error:
            return _fail(str(error))
    try:
        server = GameServer(game, arguments.port, speed=UNLIMITED_SPEED if arguments.unlimited else 1.0)
    except OSError as error:
        return _fail(f"cannot listen on port {arguments.port}: {error.strerror}; choose another one with --port")
    logging.info("listening on 127.0.0.1:%d", server.port)
    try:
        server.run()
    except KeyboardInterrupt:
        logging.info("stopped")
    return 0


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
