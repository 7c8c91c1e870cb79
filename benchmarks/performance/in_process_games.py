"""Actions per second of simulated games stepped together in one process, the policy excluded (it draws at random)."""

from __future__ import annotations

import numpy as np

from benchmarks.performance.client import MAP, TICKS_PER_ACTION, game_ms_per_action, game_settings
from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import PROJECT, Figure, Options, times_in_turns
from trackmania_rl.in_process.games import InProcessGames
from trackmania_rl.policy import BatchDecision

PART = "in process"
N_GAMES = 16
ACTIONS_PER_S_WITHOUT_FRAMES = 40_000
ACTIONS_PER_S_WITH_FRAMES = 8_000


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure games with and without pictures."""
    height_px, width_px = options.image_size_px
    return [_measure(options, width_px, height_px), _measure(options, 0, 0)]


def _measure(options: Options, width_px: int, height_px: int) -> Figure:
    settings = game_settings(options, width_px, height_px)
    games = InProcessGames(N_GAMES, settings.game, settings.observation, PROJECT / settings.game.maps_folder)
    n_actions = len(settings.game.inputs)
    rng = np.random.default_rng(0)
    # Mostly forward, so that the cars get somewhere.
    drawn = np.where(rng.random((1 << 12, N_GAMES)) < 0.5, 0, rng.integers(0, n_actions, (1 << 12, N_GAMES)))
    q_values = np.zeros((N_GAMES, n_actions), dtype=np.float32)
    is_greedy = np.ones(N_GAMES, dtype=bool)
    all_games = np.arange(N_GAMES)
    for game in range(N_GAMES):
        games.begin(game, MAP)
    # In-process games are many times as fast as those behind a socket.
    rounds = max(1, (1 if width_px else 5) * options.client_actions // N_GAMES)

    def play() -> None:
        for i in range(rounds):
            games.observations(all_games)
            ends = games.step(all_games, BatchDecision(drawn[i % len(drawn)], is_greedy, q_values))
            for game, end in ends.items():
                games.results(game, end)
                games.begin(game, MAP)

    play()  # compiles, or loads what was compiled
    timing = times_in_turns(options, play=play)["play"]
    asked_for = ACTIONS_PER_S_WITH_FRAMES if width_px else ACTIONS_PER_S_WITHOUT_FRAMES
    return Figure(
        PART,
        f"{N_GAMES} games, " + (f"{width_px} x {height_px} frames" if width_px else "floats only"),
        1e3 * rounds * N_GAMES / timing.wall_ms,
        "actions/s",
        processor_ms=timing.processor_ms / (rounds * N_GAMES),
        floor=1e3 / game_ms_per_action(width_px, height_px),
        floor_is=f"the game alone, {TICKS_PER_ACTION} ticks" + (" and a picture" if width_px else ""),
        note=f"{1e3 * rounds * N_GAMES / timing.processor_ms:,.0f} for each second of one core, {asked_for:,} are "
        "asked for; races that end and begin are part of it",
    )
