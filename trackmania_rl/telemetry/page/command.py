"""The live page of a run, in a browser: cars on the map, pictures, curves, records, messages and settings.

RUN is a run's folder or its name in save/, beside a running training or after it; by default the newest run. A driver's
file drives each of its tracks once, and the page shows these races. Only this machine reaches the page, unless --host
and --token are given.

Examples:
  python scripts/dashboard.py
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
import socket
import sys
import threading
from pathlib import Path
from typing import Final

from trackmania_rl.cli import command, port
from trackmania_rl.errors import UserError
from trackmania_rl.places import PROJECT_FOLDER, WORKING_FOLDER
from trackmania_rl.settings.run_folder import RunFolder
from trackmania_rl.telemetry.page.apart import DRIVER_ENDING, run_of_driver
from trackmania_rl.telemetry.page.runs import find_run

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
    add("--save-folder", type=Path, default=WORKING_FOLDER / "save", help="where runs are looked for (default: save/)")
    add("--host", default="127.0.0.1", help="address to listen at; others than loopback need --token")
    add("--port", type=port, default=FIRST_PORT, help="default %(default)s")
    add("--token", help=f"what the address must carry, at least {SHORTEST_TOKEN} characters of your choice")
    add("--ends-with-stdin", action="store_true", help="end when the standard input is closed (a training's page)")
    return parser.parse_args()


def check_packages() -> None:
    """Raise a `UserError` if a package of the page is missing."""
    missing = [name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the live page needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            'python -m pip install "trackmania-rl[dashboard]"'
        )


def check_token(host: str, token: str | None) -> None:
    """Raise a `UserError` if a page for other machines has no long token."""
    from trackmania_rl.telemetry.page.guard import is_loopback  # needs packages that --help does without

    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host} lets other machines see this page and edit settings: give --token as well, a word of your "
            "choice that its address must carry"
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(f"--token has {len(token)} characters: take {SHORTEST_TOKEN} or more, letters and digits")


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
    from trackmania_rl.telemetry.page.guard import make_server
    from trackmania_rl.telemetry.page.page import RunPage
    from trackmania_rl.telemetry.page.server import make_app

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
    """Return the address of the page for a browser."""
    name = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={token}")


if __name__ == "__main__":
    sys.exit(main())
