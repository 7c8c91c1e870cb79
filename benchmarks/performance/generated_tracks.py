"""Simulated games on generated tracks, the policy excluded: the beginning of a race, and actions per second.

Every race has 300 actions, whatever becomes of it: one that is cut off goes on from the start of its track.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import PROJECT, Figure, Options
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import MapEntry, Settings, load_settings
from trackmania_rl.track.generated_maps import GeneratedMaps

PART: Final = "generated tracks"
N_GAMES: Final = (8, 32)
RACES_PER_TRACK: Final = (1, 4)
RACE_ACTIONS: Final = 300


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure games on tracks that are driven once, or a few times."""
    settings = load_settings(PROJECT / "config_files" / "config_many_tracks.py")
    figures = []
    for n_games in N_GAMES:
        for races in RACES_PER_TRACK:
            figures += _measure(settings, n_games, races, max(1, 5 * options.client_actions // n_games))
    return figures


def _measure(settings: Settings, n_games: int, races_per_track: int, rounds: int) -> list[Figure]:
    entry = settings.game.map_cycle[0]
    assert entry.generator is not None
    generator = entry.generator.model_copy(update={"races_per_track": races_per_track})
    entry = entry.model_copy(update={"generator": generator})
    games = InProcessGames(n_games, settings.game, settings.observation, PROJECT / settings.game.maps_folder)
    rng = np.random.default_rng(0)
    forward = [index for index, keys in enumerate(settings.game.inputs) if keys.accelerate and not keys.brake]
    q_values = np.zeros((n_games, len(settings.game.inputs)), dtype=np.float32)
    is_greedy = np.ones(n_games, dtype=bool)
    driven: dict[int, MapEntry] = {}
    begin_s: list[float] = []

    def begin(game: int) -> None:
        before_s = time.process_time()
        driven[game] = maps.draw(entry)
        games.begin(game, driven[game])
        begin_s.append(time.process_time() - before_s)

    def play(n_rounds: int) -> None:
        actions_left = rng.integers(1, RACE_ACTIONS, n_games)
        for _ in range(n_rounds):
            received = games.recv()
            n = len(received.ids)
            games.send(received.ids, BatchDecision(rng.choice(forward, n), is_greedy[:n], q_values[:n]))
            actions_left -= 1
            for game in range(n_games):
                if actions_left[game] == 0:
                    begin(game)
                    actions_left[game] = RACE_ACTIONS
                elif game in received.ended:
                    games.begin(game, driven[game])

    with tempfile.TemporaryDirectory() as folder:
        maps = GeneratedMaps(Path(folder) / "tracks", np.random.SeedSequence(1))
        for game in range(n_games):
            begin(game)
        play(10)  # compiles, or loads what was compiled
        begin_s.clear()
        began_s, began_processor_s = time.perf_counter(), time.process_time()
        play(rounds)
        wall_s, processor_s = time.perf_counter() - began_s, time.process_time() - began_processor_s
    what, n_actions = f"{n_games} games, {races_per_track} races per track", rounds * n_games
    figures = [Figure(PART, what, n_actions / wall_s, "actions/s", processor_ms=1e3 * processor_s / n_actions)]
    if begin_s:
        mean_ms = 1e3 * float(np.mean(begin_s))
        figures.append(Figure(PART, f"{what}: begin", mean_ms, "ms", note=f"processor time, mean of {len(begin_s)}"))
    return figures
