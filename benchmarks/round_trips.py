"""Actions per second of one game on another machine, by the round trip between the two; see docs/game_machines.rst.

The game, simulated, is on this machine, and a link in between delays what each side says.

python -m benchmarks.round_trips
python -m benchmarks.round_trips --round-trips-ms 0 0.3 20 --seconds 10
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from rich.console import Console
from rich.table import Table

from benchmarks.delayed_link import link_process, measured_round_trip_s
from benchmarks.performance.client import MAP, RandomPolicy, game_settings
from benchmarks.performance.measuring import PROJECT, Options
from trackmania_rl.cli import command
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.settings import Settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import (
    LISTENS_WITHIN_S,
    SimulatedGameLauncher,
    find_free_port,
)

PICTURE_PX = (160, 120)
WARM_UP_ACTIONS = 20


class TimeIsUp(Exception):  # noqa: N818
    """Ends a race that is measured."""


class TimedPolicy:
    """Draws actions, and counts them until the time is up."""

    def __init__(self, n_actions: int, seconds: float) -> None:
        self._policy = RandomPolicy(n_actions, seed=0)
        self._seconds = seconds
        self._count = 0
        self._began_s = 0.0
        self.actions_per_s = 0.0

    def __call__(self, frame: object, floats: object) -> PolicyDecision:
        """Decide; see `trackmania_rl.race.policy.Policy`."""
        self._count += 1
        if self._count == WARM_UP_ACTIONS:
            self._began_s = time.perf_counter()
        elapsed_s = time.perf_counter() - self._began_s
        if self._count > WARM_UP_ACTIONS and elapsed_s > self._seconds:
            self.actions_per_s = (self._count - WARM_UP_ACTIONS) / elapsed_s
            raise TimeIsUp
        return self._policy(frame, floats)  # type: ignore[arg-type]


def actions_per_s(settings: Settings, port: int, seconds: float) -> float:
    """Play on the kept game at a port for so long."""
    game = settings.game.model_copy(update={"games_are_kept": True})
    maps_folder = PROJECT / game.maps_folder
    manager = GameInstanceManager(game, settings.observation, KeptGame(port, maps_folder))
    policy = TimedPolicy(len(game.inputs), seconds)
    with contextlib.closing(manager), contextlib.suppress(TimeIsUp):
        while True:
            manager.rollout(MAP, policy)
    return policy.actions_per_s


@command
def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.round_trips",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--round-trips-ms", type=float, nargs="+", default=[0.0, 0.3, 1.0, 5.0, 20.0], metavar="MS")
    add("--seconds", type=float, default=5.0, help="for each figure (default %(default)s)")
    arguments = parser.parse_args()
    console = Console()
    table = Table("round trip asked for", "measured", "actions/s", "actions/s with a picture")
    launcher = SimulatedGameLauncher(find_free_port(), PROJECT / "maps")
    launcher.start()
    try:
        launcher.wait_until_connectable(LISTENS_WITHIN_S)
        for round_trip_ms in arguments.round_trips_ms:
            one_way_s = round_trip_ms / 2000
            figures = []
            for size_px in ((0, 0), PICTURE_PX):
                with link_process(launcher.port, one_way_s) as port:
                    settings = game_settings(Options(), *size_px)
                    figures.append(actions_per_s(settings, port, arguments.seconds))
            measured_ms = 1000 * measured_round_trip_s(one_way_s)
            table.add_row(f"{round_trip_ms:g} ms", f"{measured_ms:.2f} ms", *(f"{figure:,.0f}" for figure in figures))
    finally:
        launcher.kill()
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
