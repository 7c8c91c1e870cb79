"""Actions per second of in-process games against their number, beside the same game through its socket.

A random policy that costs nothing plays races that end and begin anew, with and without pictures; processor time says
what one core gives, whatever else the machine does. The socket's figure counts both of its processes.

    python benchmarks/in_process.py
    python benchmarks/in_process.py --games 1 8 32 --map rally --json in_process.json
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from trackmania_rl.in_process.games import InProcessGames  # noqa: E402
from trackmania_rl.policy import BatchDecision, PolicyDecision  # noqa: E402
from trackmania_rl.settings import MapEntry, Settings, load_settings  # noqa: E402
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager  # noqa: E402
from trackmania_rl.tmi_interaction.launchers import SimulatedGameLauncher  # noqa: E402

IMAGE_PX = (160, 120)
N_DRAWN_ACTIONS = 1 << 16


class RandomActions:
    """An endless row of actions, half of them forward, so that cars get somewhere."""

    def __init__(self, n_actions: int) -> None:
        choices = np.concatenate((np.zeros(n_actions, dtype=np.int64), np.arange(n_actions)))
        self._actions = np.random.default_rng(0).choice(choices, N_DRAWN_ACTIONS)
        self._next = 0

    def take(self, count: int) -> np.ndarray:
        """The next `count` actions."""
        if self._next + count > N_DRAWN_ACTIONS:
            self._next = 0
        self._next += count
        return self._actions[self._next - count : self._next]


def in_process_player(settings: Settings, entry: MapEntry, n_games: int) -> Callable[[int], int]:
    """A function that plays at least so many actions in all games together and returns how many it were."""
    games = InProcessGames(n_games, settings.game, settings.observation, PROJECT / "maps")
    n_actions = len(settings.game.inputs)
    numbers, actions = np.arange(n_games), RandomActions(n_actions)
    is_greedy, q_values = np.ones(n_games, dtype=np.bool_), np.zeros((n_games, n_actions), dtype=np.float32)
    for game in range(n_games):
        games.begin(game, entry)

    def play(at_least: int) -> int:
        n_steps = -(-at_least // n_games)
        for _ in range(n_steps):
            games.observations(numbers)  # what a policy would be given
            for game, end in games.step(numbers, BatchDecision(actions.take(n_games), is_greedy, q_values)).items():
                games.results(game, end)
                games.begin(game, entry)
        return n_steps * n_games

    return play


def socket_player(manager: GameInstanceManager, settings: Settings, entry: MapEntry) -> Callable[[int], int]:
    """The same for one game at the other end of a socket."""
    actions = RandomActions(len(settings.game.inputs))
    q_values = np.zeros(len(settings.game.inputs), dtype=np.float32)

    def policy(_frame: np.ndarray, _floats: np.ndarray) -> PolicyDecision:
        return PolicyDecision(int(actions.take(1)[0]), True, q_values)

    def play(at_least: int) -> int:
        played = 0
        while played < at_least:
            played += len(manager.rollout(entry, policy)[0]["actions"])
        return played

    return play


def measure(play: Callable[[int], int], n_actions: int, repetitions: int) -> float:
    """Median actions per second of processor time, this process and its children together."""
    processes = [psutil.Process(), *psutil.Process().children()]

    def processor_s() -> float:
        return sum(times.user + times.system for times in (process.cpu_times() for process in processes))

    play(n_actions)  # compiles, and fills caches
    rates = []
    for _ in range(repetitions):
        before_s = processor_s()
        played = play(n_actions)
        rates.append(played / (processor_s() - before_s))
    return statistics.median(rates)


def measure_all(arguments: argparse.Namespace, has_image: bool) -> dict[str, float]:
    """Actions per second by way of playing."""
    width, height = IMAGE_PX if has_image else (0, 0)
    settings = load_settings(
        PROJECT / "config_files" / "config.py", [f"image_width_px={width}", f"image_height_px={height}"]
    )
    entry = MapEntry(
        map_name=arguments.map,
        map_path=f"{arguments.map}.toml",
        reference_line=f"{arguments.map}_0.5m.npy",
        is_explo=True,
        fill_buffer=False,
    )
    n_actions = arguments.actions // (10 if has_image else 1)
    figures = {
        f"{n} in process": measure(in_process_player(settings, entry, n), n_actions, arguments.repetitions)
        for n in arguments.games
    }
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    manager = GameInstanceManager(
        settings.game, settings.observation, SimulatedGameLauncher(port, PROJECT / settings.game.maps_folder)
    )
    try:
        manager.ensure_running()
        figures["1 through socket"] = measure(
            socket_player(manager, settings, entry), n_actions // 10, arguments.repetitions
        )
    finally:
        manager.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, nargs="+", default=[1, 8, 32], help="numbers of games (default 1 8 32)")
    parser.add_argument("--map", default="valley", help="track in maps/ (default %(default)s)")
    parser.add_argument("--actions", type=int, default=10_000, help="per repetition; a tenth of it with pictures")
    parser.add_argument("--repetitions", type=int, default=5, help="after a warm-up (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    report = {}
    for has_image in (False, True):
        picture = "{} x {} px pictures".format(*IMAGE_PX) if has_image else "no picture"
        report[picture] = measure_all(arguments, has_image)
        through_socket = report[picture]["1 through socket"]
        print(f"{arguments.map}, {picture}: actions per second of one core, without the policy")
        for name, rate in report[picture].items():
            print(f"  {name:18s} {rate:9,.0f}   {rate / through_socket:6.1f} x socket")
    print(f"({time.monotonic() - began_s:.0f} s)")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
