"""Actions per second of the client through the socket, and the time of reading one state.

A figure includes protocol, physics, picture, features, recording, and ends and beginnings of races. The policy draws at
random.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil

from benchmarks.performance.classic_client import read_floats
from benchmarks.performance.measuring import PROJECT, Figure, Machine, Options, Timing, times_in_turns
from benchmarks.performance.simulation import FLOOR_ACTIONS, MAP, THROTTLE, TICKS_PER_ACTION, game_floor, game_settings
from trackmania_rl.protocol.state_blob import HEAD_BYTES, StateView
from trackmania_rl.race.actions import PolicyDecision
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.races import Races
from trackmania_rl.settings import Settings
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher
from trackmania_rl.tmi_interaction.race_machine import ONLY_RACE
from trackmania_rl.track.game_map import load_game_map

PART = "client"
REPETITIONS = 3


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure the client through the socket with and without pictures, and one state's floats."""
    height_px, width_px = options.image_size_px
    return [
        _measure_socket(options, width_px, height_px),
        _measure_socket(options, 0, 0),
        _measure_reading(options),
    ]


class RandomPolicy:
    """Policy that draws actions, mostly forward."""

    def __init__(self, n_actions: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        choices = np.concatenate((np.zeros(n_actions, dtype=np.int64), np.arange(n_actions)))
        self._actions = rng.choice(choices, 1 << 16).tolist()
        self._q_values = np.zeros(n_actions, dtype=np.float32)
        self._count = 0

    def __call__(self, frame: np.ndarray, floats: np.ndarray) -> PolicyDecision:
        """Return the next drawn action."""
        self._count += 1
        return PolicyDecision(self._actions[self._count % len(self._actions)], True, self._q_values)


def play(manager: GameInstanceManager, policy: RandomPolicy, n_actions: int) -> int:
    """Play races until `n_actions` are made; return the number of actions."""
    played = 0
    while played < n_actions:
        results, _ = manager.rollout(MAP, policy)
        played += len(results["actions"])
    return played


def _measure_socket(options: Options, width_px: int, height_px: int) -> Figure:
    with running_manager(game_settings(options, width_px, height_px)) as manager:
        policy = RandomPolicy(len(manager.game.inputs), seed=0)
        play(manager, policy, 200)  # compiles, and fills caches
        processes = [psutil.Process(), *psutil.Process().children()]
        samples = [_play_once(manager, policy, options.client_actions, processes) for _ in range(REPETITIONS)]
    timing = Timing.median(samples)
    picture = f"{width_px} x {height_px} frames" if width_px else "floats only"
    floor, floor_is = game_floor(width_px, height_px)
    note = f"client and game make {1e3 / timing.processor_ms:,.0f} actions per second of one core; floor: {floor_is}"
    return Figure.of_rate(PART, f"socket, {picture}", timing, 1, "actions/s", floor=floor, note=note)


def _play_once(
    manager: GameInstanceManager, policy: RandomPolicy, n_actions: int, processes: list[psutil.Process]
) -> tuple[float, float]:
    """Return (wall_ms, processor_ms) per action, the latter of all processes."""

    def processor_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    start_s, start_processor_s = time.perf_counter(), processor_s()
    played = play(manager, policy, n_actions)
    return 1e3 * (time.perf_counter() - start_s) / played, 1e3 * (processor_s() - start_processor_s) / played


@contextmanager
def running_manager(settings: Settings) -> Iterator[GameInstanceManager]:
    """Yield a manager of a simulated game at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    launcher = SimulatedGameLauncher(port, PROJECT / settings.game.maps_folder)
    manager = GameInstanceManager(settings.game, settings.observation, launcher)
    try:
        yield manager
    finally:
        manager.close()


class StateReading:
    """A state in the middle of a race, and the inputs of both ways to make floats of it."""

    def __init__(self, options: Options) -> None:
        settings = game_settings(options, 0, 0)
        race = SimulatedRace(load_track(PROJECT / "maps" / MAP.map_path))
        race.set_input(THROTTLE)
        for _ in range(FLOOR_ACTIONS):
            race.advance(TICKS_PER_ACTION)
        self.blob = race.save_state()
        zones = load_game_map(MAP, PROJECT / settings.game.maps_folder, settings.observation).zones
        layout = self.layout = ObservationLayout(settings.observation, settings.game.actions)
        self.races = Races(1, settings.game, layout)
        self.races.begin(0, MAP, zones, None, settings.game)
        self._heads = np.empty((1, HEAD_BYTES // 4), dtype=np.uint32)
        self.read()
        kernel = layout.for_kernel()
        ahead = self.races.newest(0).zone_idx + kernel.zone_stride * np.arange(kernel.n_zone_centers)
        self.zone_centers_m = zones.centers_m[ahead]
        keys_held = dict.fromkeys(("accelerate", "brake", "left", "right"), False)
        self.keys = [keys_held] * layout.n_previous_actions

    def read(self) -> None:
        """Make the floats, as `RaceMachine` does."""
        self._heads[0] = np.frombuffer(StateView(self.blob).blob, dtype="<u4", count=HEAD_BYTES // 4)
        self.races.observe(ONLY_RACE, 0, self._heads)


def _measure_reading(options: Options) -> Figure:
    reading = StateReading(options)
    calls = max(1, options.client_actions // 100)

    def ours() -> None:
        for _ in range(calls):
            reading.read()

    def classic() -> None:
        for _ in range(calls):
            read_floats(reading.blob, reading.keys, reading.zone_centers_m)

    times = times_in_turns(options, ours=ours, classic=classic)
    per_state = {name: Timing(t.wall_ms / calls, t.processor_ms / calls) for name, t in times.items()}
    return Figure.of_times(PART, "a state's bytes to floats", per_state["ours"], per_state["classic"])
