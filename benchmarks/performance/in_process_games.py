"""Actions per second of simulated games stepped together in one process, the policy excluded (it draws at random)."""

from __future__ import annotations

import numpy as np

from benchmarks.performance.client import MAP, TICKS_PER_ACTION, game_ms_per_action, game_settings
from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import PROJECT, Figure, Options, times_in_turns
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.policy import BatchDecision

PART = "in process"
ACTIONS_PER_S_WITHOUT_FRAMES = 40_000
ACTIONS_PER_S_WITH_FRAMES = 8_000


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure games with and without pictures."""
    height_px, width_px = options.image_size_px
    sizes_px = ((width_px, height_px), (0, 0))
    return [_measure(options, n_games, *size_px) for size_px in sizes_px for n_games in options.in_process_games]


def _measure(options: Options, n_games: int, width_px: int, height_px: int) -> Figure:
    settings = game_settings(options, width_px, height_px)
    games = InProcessGames(n_games, settings.game, settings.observation, PROJECT / settings.game.maps_folder)
    n_actions = len(settings.game.inputs)
    rng = np.random.default_rng(0)
    # Mostly forward, so that the cars get somewhere.
    drawn = np.where(rng.random((1 << 12, n_games)) < 0.5, 0, rng.integers(0, n_actions, (1 << 12, n_games)))
    q_values = np.zeros((n_games, n_actions), dtype=np.float32)
    is_greedy = np.ones(n_games, dtype=bool)
    for game in range(n_games):
        games.begin(game, MAP)
    # In-process games are many times as fast as those behind a socket.
    rounds = max(1, (1 if width_px else 5) * options.client_actions // n_games)

    def play() -> None:
        for i in range(rounds):
            received = games.recv()
            for game in received.ended:
                games.begin(game, MAP)
            n = len(received.ids)
            decision = BatchDecision(drawn[i % len(drawn), :n], is_greedy[:n], q_values[:n])
            games.send(received.ids, decision)

    play()  # compiles, or loads what was compiled
    timing = times_in_turns(options, play=play)["play"]
    asked_for = ACTIONS_PER_S_WITH_FRAMES if width_px else ACTIONS_PER_S_WITHOUT_FRAMES
    return Figure(
        PART,
        f"{n_games} games, " + (f"{width_px} x {height_px} frames" if width_px else "floats only"),
        1e3 * rounds * n_games / timing.wall_ms,
        "actions/s",
        processor_ms=timing.processor_ms / (rounds * n_games),
        floor=1e3 / game_ms_per_action(width_px, height_px),
        floor_is=f"the game alone, {TICKS_PER_ACTION} ticks" + (" and a picture" if width_px else ""),
        note=f"{1e3 * rounds * n_games / timing.processor_ms:,.0f} for each second of one core, {asked_for:,} are "
        "asked for; races that end and begin are part of it",
    )
