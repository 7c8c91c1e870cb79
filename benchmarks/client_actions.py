"""Actions per second that the client plays against the simulated game, through the socket, with a random policy.

The figure holds everything between two decisions: protocol, physics, picture, features, recording; races that end and
begin anew are part of it. Processor time of both processes says what one core gives, whatever else the machine does.

    python benchmarks/client_actions.py                 # 160 x 120 pictures
    python benchmarks/client_actions.py --no-image
    python benchmarks/client_actions.py --one-core --json client.json
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from trackmania_rl.policy import PolicyDecision  # noqa: E402
from trackmania_rl.settings import MapEntry, load_settings  # noqa: E402
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager  # noqa: E402
from trackmania_rl.tmi_interaction.launchers import SimulatedGameLauncher  # noqa: E402


@dataclass(frozen=True)
class Repetition:
    """One measurement.

    Attributes:
        actions_per_s: by the wall clock.
        actions_per_core_s: by the processor time of client and game together.
        client_us_per_action: processor time of the client.
        game_us_per_action: processor time of the game.
    """

    actions_per_s: float
    actions_per_core_s: float
    client_us_per_action: float
    game_us_per_action: float


class RandomPolicy:
    """Draws an action: mostly forward, so that the car gets somewhere."""

    def __init__(self, n_actions: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        choices = np.concatenate((np.zeros(n_actions, dtype=np.int64), np.arange(n_actions)))
        self._actions = rng.choice(choices, 1 << 16).tolist()
        self._q_values = np.zeros(n_actions, dtype=np.float32)
        self._count = 0

    def __call__(self, frame: np.ndarray, floats: np.ndarray) -> PolicyDecision:
        """Decide; see `trackmania_rl.policy.Policy`."""
        self._count += 1
        return PolicyDecision(self._actions[self._count % len(self._actions)], True, self._q_values)


def play(manager: GameInstanceManager, entry: MapEntry, policy: RandomPolicy, n_actions: int) -> int:
    """Play races until so many actions are made; returns how many it were."""
    played = 0
    while played < n_actions:
        results, _ = manager.rollout(entry, policy)
        played += len(results["actions"])
    return played


def measure(manager: GameInstanceManager, entry: MapEntry, policy: RandomPolicy, n_actions: int) -> Repetition:
    """Play and measure."""
    client, game = psutil.Process(), psutil.Process(psutil.Process().children()[0].pid)

    def processor_s(process: psutil.Process) -> float:
        times = process.cpu_times()
        return times.user + times.system

    before = (time.perf_counter(), processor_s(client), processor_s(game))
    played = play(manager, entry, policy, n_actions)
    after = (time.perf_counter(), processor_s(client), processor_s(game))
    wall_s, client_s, game_s = (b - a for a, b in zip(before, after, strict=True))
    return Repetition(played / wall_s, played / (client_s + game_s), 1e6 * client_s / played, 1e6 * game_s / played)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", default="valley", help="track in maps/ (default %(default)s)")
    parser.add_argument("--width", type=int, default=160, help="picture's width in pixels (default %(default)s)")
    parser.add_argument("--height", type=int, default=120, help="picture's height in pixels (default %(default)s)")
    parser.add_argument("--no-image", action="store_true", help="floats only")
    parser.add_argument("--actions", type=int, default=3000, help="per repetition (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="after a warm-up (default %(default)s)")
    parser.add_argument("--one-core", action="store_true", help="both processes on one core (not on macOS)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    width, height = (0, 0) if arguments.no_image else (arguments.width, arguments.height)
    settings = load_settings(
        PROJECT / "config_files" / "config_tmnf.py",
        ["game=simulated", f"image_width_px={width}", f"image_height_px={height}", "running_speed=1000.0"],
    )
    entry = MapEntry(
        map_name=arguments.map,
        map_path=f"{arguments.map}.toml",
        reference_line=f"{arguments.map}_0.5m.npy",
        is_explo=True,
        fill_buffer=False,
    )
    if arguments.one_core:
        psutil.Process().cpu_affinity([min(os.sched_getaffinity(0))])  # the game inherits it
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    manager = GameInstanceManager(
        settings.game, settings.observation, SimulatedGameLauncher(port, PROJECT / settings.game.maps_folder)
    )
    policy = RandomPolicy(len(settings.game.inputs), seed=0)
    try:
        play(manager, entry, policy, 500)  # compiles, and fills caches
        repetitions = [measure(manager, entry, policy, arguments.actions) for _ in range(arguments.repetitions)]
    finally:
        manager.close()
    medians = {name: statistics.median(getattr(r, name) for r in repetitions) for name in asdict(repetitions[0])}
    picture = f"{width} x {height} pictures" if width else "no picture"
    cores = "both processes on one core" if arguments.one_core else "one core each, where there are two"
    print(f"{arguments.map}, {picture}, {cores}; median of {len(repetitions)} x {arguments.actions} actions")
    for name, value in medians.items():
        values = [getattr(r, name) for r in repetitions]
        print(f"  {name:22s} {value:8.1f}   ({min(values):.1f} to {max(values):.1f})")
    if arguments.json:
        report = {"arguments": {k: str(v) for k, v in vars(arguments).items()}, "median": medians}
        report["repetitions"] = [asdict(r) for r in repetitions]
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
