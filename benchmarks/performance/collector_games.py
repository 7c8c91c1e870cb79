"""Actions per second of one collector with several games at the other ends of sockets, the policy included.

The yardstick is one game whose policy is called directly, without a thread and without a batch. A figure holds all that
a collector does: protocol, physics, pictures, features, decisions by the default network, recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import psutil

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import DEFAULT_SIZE, PROJECT, Figure, Options, Timing, settings_for
from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.channels.protocols import WAIT_FOREVER_S, WeightsKind
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.training.collector import Collector, CollectorParts, WeightPuller, map_cycle

PART = "collector"
NUMBERS_OF_GAMES = (1, 2, 4, 8)
REPETITIONS = 3


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure collectors without and with pictures."""
    height_px, width_px = options.image_size_px
    return [*_measure(options, 0, 0), *_measure(options, width_px, height_px)]


def _measure(options: Options, width_px: int, height_px: int) -> list[Figure]:
    size = (f"image_width_px={width_px}", f"image_height_px={height_px}")
    settings = settings_for(DEFAULT_SIZE, options, "running_speed=1000.0", *size)
    picture = f"{width_px} x {height_px} frames" if width_px else "floats only"
    with _Surroundings(settings) as alone:
        yardstick = alone.time_directly(options.client_actions)
    figures = []
    for n_games in NUMBERS_OF_GAMES:
        with _Surroundings(settings) as surroundings:
            timing = surroundings.time_collector(n_games, options.client_actions)
        figures.append(
            Figure(
                PART,
                f"{n_games} games, {picture}",
                1e3 / timing.wall_ms,
                "actions/s",
                processor_ms=timing.processor_ms,
                classic=1e3 / yardstick.wall_ms,
                classic_processor_ms=yardstick.processor_ms,
                note=f"{1e3 / timing.processor_ms:,.0f} for each second of one core, all processes together; "
                "the classic way was measured once, before all these",
            )
        )
    return figures


class _Sink:
    """Counts actions and tells when enough were made."""

    def __init__(self, settings: Settings) -> None:
        self.waited_s = 0.0
        self.actions = 0
        self.games: set[int] = set()
        self._frames_shape = (1, settings.game.image_height_px, settings.game.image_width_px)
        self._max_actions = settings.game.cutoff_race_longer_than_ms // settings.game.ms_per_action + 2
        self._rooms: dict[int, Any] = {}

    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> Any:
        if game not in self._rooms:
            self._rooms[game] = np.empty((self._max_actions, *self._frames_shape), dtype=np.uint8)
        return self._rooms[game]

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        self.actions += len(rollout_results["actions"])
        self.games.add(game)

    def beat(self) -> None:
        """Nobody watches."""

    def await_turn(self) -> None:
        """Give no turn: nobody takes turns here."""

    def end_turn(self) -> None:
        """Nothing is waited for."""

    def close(self) -> None:
        """Nothing to let go of."""


class _TimedRunState(LocalRunState):
    """A run that ends when `is_over()`."""

    def __init__(self, settings: Settings) -> None:
        self.is_over: Callable[[], bool] = lambda: False
        super().__init__(settings)

    @property
    def stop_requested(self) -> bool:
        """Asked after every action."""
        return self.is_over()

    @stop_requested.setter
    def stop_requested(self, _: bool) -> None:
        """It ends by `is_over` only."""


class _Surroundings:
    """Everything around a collector, made afresh; a context manager that ends the games."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._managers: list[GameInstanceManager] = []
        seeds = SeedTree(0)

        def puller(name: str, kind: WeightsKind) -> WeightPuller:
            network = make_network(settings, race_spaces(settings), SeedTree(0)).eval()
            inferer = Inferer(
                network,
                n_quantiles=settings.agent.iqn_k,
                throttle_actions=race_spaces(settings).throttle_actions,
                exploration_settings=settings.exploration,
                rng=seeds.rng(name),
            )
            return WeightPuller(inferer, self._run_state, kind)

        self.sink = _Sink(settings)
        self._run_state = _TimedRunState(settings)
        self.parts = CollectorParts(
            self._run_state, self.sink, puller("explorer", "exploration"), puller("evaluator", "evaluation")
        )

    def __enter__(self) -> _Surroundings:
        return self

    def __exit__(self, *_: object) -> None:
        for manager in self._managers:
            manager.close()

    def time_collector(self, n_games: int, n_actions: int) -> Timing:
        """Per action, by a collector."""
        clock = _Clock(self.sink, n_games, n_actions)
        self._run_state.is_over = clock.is_over
        games = SocketGames([self._manager() for _ in range(n_games)])
        Collector(self.parts, games).run()
        games.close()
        return clock.timing

    def time_directly(self, n_actions: int) -> Timing:
        """Per action, by one game that calls its policy itself."""
        manager, entries = self._manager(), map_cycle(self._run_state)
        clock = _Clock(self.sink, 1, n_actions)
        while not clock.is_over():
            entry = next(entries).entry
            inferer = (self.parts.explorer if entry.is_explo else self.parts.evaluator).actor
            assert isinstance(inferer, Inferer)
            inferer.begin_race(is_explo=entry.is_explo, frame_count=0)
            results, stats = manager.rollout(entry, inferer.act, self.sink.acquire_frames(0))
            self.sink.put(0, results, stats)
        return clock.timing

    def _manager(self) -> GameInstanceManager:
        game = self._settings.game
        launcher = SimulatedGameLauncher(find_free_port(), PROJECT / game.maps_folder)
        self._managers.append(GameInstanceManager(game, self._settings.observation, launcher))
        return self._managers[-1]


class _Clock:
    """Asked after every action, it times spans of `n_actions` once each game has finished a race."""

    def __init__(self, sink: _Sink, n_games: int, n_actions: int) -> None:
        self._sink = sink
        self._n_games = n_games
        self._n_actions = n_actions
        self._marks: list[tuple[int, float, float]] = []
        self._processes: list[psutil.Process] = []

    def is_over(self) -> bool:
        """Whether all repetitions are timed."""
        if not self._marks and len(self._sink.games) < self._n_games:
            return False
        if not self._marks:
            self._processes = [psutil.Process(), *psutil.Process().children()]
        if not self._marks or self._sink.actions >= self._marks[-1][0] + self._n_actions:
            self._marks.append((self._sink.actions, time.perf_counter(), self._processor_s()))
        return len(self._marks) > REPETITIONS

    @property
    def timing(self) -> Timing:
        """Median per action; the processor time is that of all processes."""
        spans = zip(self._marks, self._marks[1:], strict=False)
        return Timing.median(
            [(1e3 * (s1 - s0) / (n1 - n0), 1e3 * (p1 - p0) / (n1 - n0)) for (n0, s0, p0), (n1, s1, p1) in spans]
        )

    def _processor_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)
