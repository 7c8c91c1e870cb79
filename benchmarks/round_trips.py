"""Actions per second of one game on another machine, by the round trip between the two; see docs/other_machines.rst.

The simulated game is on this machine, behind a link with a delay.

python -m benchmarks.round_trips
python -m benchmarks.round_trips --round-trips-ms 0 0.3 20 --seconds 10
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.delayed_link import link_process, measured_round_trip_s
from benchmarks.performance.client import RandomPolicy
from benchmarks.performance.measuring import PROJECT, Options
from benchmarks.performance.simulation import MAP, game_settings
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


def actions_per_s(settings: Settings, port: int, seconds: float) -> float:
    """Play on the kept game at a port for a time; return the rate."""
    game = settings.game.model_copy(update={"games_are_kept": True})
    manager = GameInstanceManager(game, settings.observation, KeptGame(port, PROJECT / game.maps_folder))
    policy, times_s = RandomPolicy(len(game.inputs), seed=0), list[float]()

    def decide(frame: np.ndarray, floats: np.ndarray) -> PolicyDecision:
        times_s.append(time.perf_counter())
        if len(times_s) > WARM_UP_ACTIONS and times_s[-1] - times_s[WARM_UP_ACTIONS] > seconds:
            raise TimeIsUp
        return policy(frame, floats)

    with contextlib.closing(manager), contextlib.suppress(TimeIsUp):
        while True:
            manager.rollout(MAP, decide)
    return (len(times_s) - 1 - WARM_UP_ACTIONS) / (times_s[-1] - times_s[WARM_UP_ACTIONS])


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
