"""The collector: it plays the map cycle on games of any kind, with the newest weights.

One thread, one loop: receive what waits, decide with one pass through the network, send; a race that is over goes into
the rollout sink, and the next one of the map cycle begins in its place. Nothing here knows of processes; a test drives
it in one, and `multiprocess/collector_process.py` is the shell around it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trackmania_rl.agents.builder import Actor
from trackmania_rl.agents.exploration import Exploration
from trackmania_rl.channels.protocols import NO_WEIGHTS, RolloutSink, RunStateView, WeightsKind
from trackmania_rl.games.protocol import GameIds, Games, Received
from trackmania_rl.race.results import EndedRace
from trackmania_rl.settings import MapEntry
from trackmania_rl.track.generated_maps import GeneratedMaps


@dataclass
class WeightPuller:
    """Keeps one actor's network at the newest weights of its kind."""

    actor: Actor
    run_state: RunStateView
    kind: WeightsKind
    version: int = NO_WEIGHTS
    passes_until_pull: int = 0

    def pull_at_next_pass(self) -> None:
        """Look for newer weights before the next pass, whenever the last look was."""
        self.passes_until_pull = 0

    def pull_if_due(self, every_n_passes: int) -> None:
        """Pull the weights before a pass through the network, if it is time and there are newer ones."""
        if self.passes_until_pull <= 0:
            self.passes_until_pull = every_n_passes
            version = self.run_state.pull_weights(self.kind, self.actor.network, self.version)
            if version != self.version:
                self.version = version
                self.actor.weights_changed()
        self.passes_until_pull -= 1


@dataclass(frozen=True)
class CollectorParts:
    """What a collector needs besides its games.

    Attributes:
        run_state: what the learner publishes; a race is played by the settings at its beginning.
        rollouts: where finished races go.
        explorer: drives exploration races.
        evaluator: drives evaluation races, by averaged weights.
        generated_maps: where tracks for the map cycle's generators come from; not needed where it has none.
        first_entry: of the map cycle: a collector that is started again begins further on, since it may be the first
            map that no game can play.
    """

    run_state: RunStateView
    rollouts: RolloutSink
    explorer: WeightPuller
    evaluator: WeightPuller
    generated_maps: GeneratedMaps | None = None
    first_entry: int = 0


@dataclass(frozen=True, slots=True)
class Race:
    """A race of the map cycle: its map, the network that drives it, and how much it explores."""

    entry: MapEntry
    puller: WeightPuller
    exploration: Exploration
    is_generated: bool

    def stats(self, end_race_stats: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the learner is told of the race: its `end_race_stats` and where they belong."""
        return {**end_race_stats, **stats_of_entry(self.entry), "is_generated": self.is_generated}


def stats_of_entry(entry: MapEntry) -> dict[str, Any]:
    """Return where a race belongs, for its `end_race_stats`."""
    return {
        "map_name": entry.map_name,
        "track": Path(entry.map_path.replace("\\", "/")).stem,  # which may have been written on Windows
        "is_explo": entry.is_explo,
        "fill_buffer": entry.fill_buffer,
    }


def map_cycle(
    run_state: RunStateView, generated_maps: GeneratedMaps | None = None, first: int = 0
) -> Iterator[tuple[MapEntry, bool]]:
    """Go through the races in order; an edited map cycle starts afresh when the old one has come round.

    A generator gives each of its races a track of its own, under the generator's name.

    Args:
        run_state: has the settings in force.
        generated_maps: makes the tracks of generators.
        first: the entry to begin with; beyond the last one it counts on from the first.

    Yields:
        The race's map, and whether it is a generator's, one of many under the same name.

    Raises:
        UserError: if a generated track cannot be written.
        ValueError: if there is a generator, but no `generated_maps`.
    """
    while True:
        cycle = run_state.settings.game.map_cycle
        entries, first = cycle[first % len(cycle) :], 0
        for entry in entries:
            for _ in range(entry.repeat):
                if entry.generator is None:
                    yield entry, False
                elif generated_maps is not None:
                    yield generated_maps.draw(entry), True
                else:
                    raise ValueError(f"the map cycle's {entry.map_name} is a generator: generated_maps is needed")


class Collector:
    """Plays the map cycle in all games: exploration races with noise, evaluation races greedily.

    A race is played by the settings in force when it begins. While the learner is behind, games wait for room: races
    begun later would only be driven by older weights.

    Args:
        parts: what surrounds the collector.
        games: what is played; a race begins in each of them.

    Raises:
        UserError: if a map of the cycle can't be used.
    """

    def __init__(self, parts: CollectorParts, games: Games) -> None:
        self._parts = parts
        self._games = games
        self._entries = map_cycle(parts.run_state, parts.generated_maps, parts.first_entry)
        self._races: dict[int, Race] = {}
        for game in range(games.n_games):
            self._begin_race(game)

    def run(self) -> None:
        """Play until the run ends.

        Raises:
            UserError: if a map or port can't be used.
            GameError: if no game plays any more.
        """
        while not self._parts.run_state.stop_requested and self.play_once():
            pass

    def play_once(self) -> bool:
        """Answer the games that wait, and begin the next race where one has ended; False if the run ends meanwhile."""
        received = self._games.recv()
        for puller in (self._parts.explorer, self._parts.evaluator):
            asked = [self._races[game].puller is puller for game in received.ids.tolist()]
            if any(asked):
                self._decide(puller, received, np.flatnonzero(asked))
        for game, race in received.ended.items():
            if not self._hand_on(game, race):
                return False
            self._begin_race(game)
        for game in received.lost:  # with another race: it may be this one that the game cannot play
            self._begin_race(game)
        return True

    def _decide(self, puller: WeightPuller, received: Received, rows: GameIds) -> None:
        """Answer some of the games by one pass through one network."""
        puller.pull_if_due(self._parts.run_state.settings.sync.update_inference_network_every_n_actions)
        began_s = time.perf_counter()
        ids = received.ids[rows]
        explorations = [self._races[game].exploration for game in ids.tolist()]
        decision = puller.actor.act_batch(received.images[rows], received.floats[rows], explorations)
        self._games.send(ids, decision, policy_s=time.perf_counter() - began_s)

    def _hand_on(self, game: int, race: EndedRace) -> bool:
        """Put a race into the sink, whose frames may lie in its room already; False if the run ends meanwhile."""
        if self._parts.rollouts.acquire_frames(game) is None:
            return False
        self._parts.rollouts.put(game, race.rollout_results, self._races[game].stats(race.end_race_stats))
        return True

    def _begin_race(self, game: int) -> None:
        """Begin the map cycle's next race in a game; whoever drives it looks for newer weights first."""
        run_state = self._parts.run_state
        run_state.pull()
        entry, is_generated = next(self._entries)
        puller = self._parts.explorer if entry.is_explo else self._parts.evaluator
        puller.actor.exploration_settings = run_state.settings.exploration
        puller.pull_at_next_pass()
        exploration = puller.actor.exploration_of_race(is_explo=entry.is_explo, frame_count=run_state.frames_total)
        self._races[game] = Race(entry, puller, exploration, is_generated)
        self._games.game = run_state.settings.game
        self._games.begin(game, entry, functools.partial(self._parts.rollouts.acquire_frames, game))
