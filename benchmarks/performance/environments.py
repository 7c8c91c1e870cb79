"""Actions per second of the vector environments beside those of the bare games that they are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.performance.client import MAP
from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import DEFAULT_SIZE, PROJECT, Figure, Options, times_in_turns
from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import make_race_vector_env
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import load_settings

PART = "environments"
REQUIRED_RATIO = 0.6
BARE = "the games alone"


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure Gymnasium's and, where it is installed, Stable-Baselines3's, with the floats of the default."""
    return [figure for n_games in options.in_process_games for figure in _measure(options, n_games)]


def _measure(options: Options, n_games: int) -> list[Figure]:
    rounds = max(1, 5 * options.client_actions // n_games)
    rng = np.random.default_rng(0)
    n_actions = len(load_settings(DEFAULT_SIZE).game.inputs)
    # Mostly forward, so that the cars get somewhere.
    drawn = np.where(rng.random((1 << 12, n_games)) < 0.5, 0, rng.integers(0, n_actions, (1 << 12, n_games)))
    ways = {BARE: _bare(n_games), "Gymnasium": _gymnasium(n_games)}
    if (sb3 := _sb3(n_games)) is not None:
        ways["Stable-Baselines3"] = sb3

    def play(step: Callable[[np.ndarray], object]) -> Callable[[], None]:
        def play_() -> None:
            for i in range(rounds):
                step(drawn[i % len(drawn)])

        return play_

    timings = times_in_turns(options, **{name: play(step) for name, step in ways.items()})
    actions = rounds * n_games
    return [
        Figure(
            PART,
            f"{n_games} games, {name}",
            1e3 * actions / timing.wall_ms,
            "actions/s",
            processor_ms=timing.processor_ms / actions,
            classic=None if name == BARE else 1e3 * actions / timings[BARE].wall_ms,
            classic_processor_ms=None if name == BARE else timings[BARE].processor_ms / actions,
            ratio_to=BARE,
            required_ratio=None if name == BARE else REQUIRED_RATIO,
        )
        for name, timing in timings.items()
    ]


def _bare(n_games: int) -> Callable[[np.ndarray], object]:
    settings = load_settings(DEFAULT_SIZE)
    games = InProcessGames(n_games, settings.game, settings.observation, PROJECT / settings.game.maps_folder)
    for game in range(n_games):
        games.begin(game, MAP)
    is_greedy = np.ones(n_games, dtype=bool)
    q_values = np.zeros((n_games, len(settings.game.inputs)), dtype=np.float32)

    def step(actions: np.ndarray) -> None:
        received = games.recv()
        for game in received.ended:
            games.begin(game, MAP)
        n = len(received.ids)
        games.send(received.ids, BatchDecision(actions[:n], is_greedy[:n], q_values[:n]))

    return step


def _gymnasium(n_games: int) -> Callable[[np.ndarray], object]:
    envs = make_race_vector_env(n_games, MAP.map_name)
    envs.reset(seed=0)
    return envs.step


def _sb3(n_games: int) -> Callable[[np.ndarray], object] | None:
    try:
        from trackmania_rl.games.envs.sb3 import RaceVecEnv
    except UserError:  # the package is missing
        return None
    envs = RaceVecEnv(n_games, MAP.map_name)
    envs.reset()
    return envs.step  # type: ignore[no-any-return]
