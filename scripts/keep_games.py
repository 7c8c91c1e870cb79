"""Keep games running for collectors that only connect (games_are_kept = True), from this machine or, by SSH, another.

Each game listens at a port of its own, on this machine only. A game that has ended, hangs, does not greet or has run
for 12 hours is restarted. Ctrl-C ends all of them. Neither torch nor a GPU is needed: docs/other_machines.rst.

Example:
  python scripts/keep_games.py --preset tmnf --ports 8478-8481
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

from trackmania_rl.cli import add_configuration_arguments, command, end_in_order_when_terminated, port, whole_number
from trackmania_rl.multiprocess.supervisor import RestartPolicy, Supervisor
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.keeper import GameKeeper, clients_by_port
from trackmania_rl.tmi_interaction.launchers.plugin_files import put_plugin_in_place

log = logging.getLogger("keep_games")

POLICY = RestartPolicy(first_delay_s=1.0, longest_delay_s=60.0)
CHECK_GAMES_EVERY_S = 1.0
CHECK_STARTING_GAMES_EVERY_S = 0.1


def ports(text: str) -> range:
    """Parse consecutive TCP ports, written 8478 or 8478-8481."""
    first, dash, last = text.partition("-")
    found = range(port(first), port(last if dash else first) + 1)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return found


@command
def main() -> int:
    arguments = parse_arguments()
    end_in_order_when_terminated()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    settings = load_settings(arguments.config, arguments.set)
    game = settings.game.model_copy(update={"games_are_kept": False})
    if game.game != "simulated":
        put_plugin_in_place(settings.user.trackmania_base_path)
    maps_folder = PROJECT_FOLDER / game.maps_folder
    launchers = [make_launcher(game, settings.user, port, maps_folder) for port in arguments.ports]
    with contextlib.suppress(KeyboardInterrupt):
        keep([GameKeeper(one, game.game_reboot_interval_s, arguments.greets_within) for one in launchers])
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_configuration_arguments(parser, PROJECT_FOLDER / "config_files")
    add("--ports", type=ports, required=True, metavar="FIRST-LAST", help="a game for each port: 8478, or 8478-8481")
    add(
        "--greets-within",
        type=whole_number(1, 3600),
        default=60,
        metavar="S",
        help="start a game again that takes longer for a greeting, or to let go of a connection (default %(default)s)",
    )
    return parser.parse_args()


def keep(keepers: list[GameKeeper]) -> None:
    """Keep the games running until Ctrl-C or SIGTERM, then end them.

    Raises:
        UserError: if a game's first start fails.
    """
    supervisor = Supervisor(keepers, POLICY, log.warning)
    try:
        supervisor.start()
        while True:
            clients = clients_by_port([keeper.port for keeper in keepers])
            for keeper in keepers:
                keeper.clients = clients[keeper.port]
            supervisor.check()
            is_any_starting = any(keeper.is_starting for keeper in keepers)
            time.sleep(CHECK_STARTING_GAMES_EVERY_S if is_any_starting else CHECK_GAMES_EVERY_S)
    finally:
        log.info("ending the games")
        for keeper in keepers:
            keeper.end()


if __name__ == "__main__":
    sys.exit(main())
