"""The collector: it plays the map cycle on games of any kind, with the newest weights.

One thread, one loop: receive what waits, decide with one pass through the network, send; a race that is over goes into
the rollout sink, and the next one of the map cycle begins in its place. Where races are handed on in fragments, they go
there while they go on. Nothing here knows of processes; a test drives it in one, and
`multiprocess/collector_process.py` is the shell around it. `turns.py` drives it in turns with the learner.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from trackmania_rl.agents.exploration import Exploration
from trackmania_rl.agents.inference import Actor
from trackmania_rl.channels.protocols import NO_WEIGHTS, RolloutSink, RunStateView, WeightsKind
from trackmania_rl.games.protocol import GameIds, Games, Listener, Received
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.progress import CollectorProgress, Fragment, RaceInFragments, RacePosition
from trackmania_rl.seeds import stream_state
from trackmania_rl.settings import MapEntry
from trackmania_rl.track.generated_maps import GeneratedMaps, generator_key

log = logging.getLogger(__name__)

PULL_EVERY_N_ACTIONS: Final = 20
"""Actions between two checks for new weights."""
FROM_THE_BEGINNING: Final = CollectorProgress()


@dataclass
class WeightPuller:
    """Keeps one actor's network at the newest weights of its kind.

    Attributes:
        came_s: when the weights came that the network has, by `time.monotonic`.
    """

    actor: Actor
    run_state: RunStateView
    kind: WeightsKind
    version: int = NO_WEIGHTS
    passes_until_pull: int = 0
    came_s: float = field(default_factory=time.monotonic)

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
                self.came_s = time.monotonic()
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
        progress: what was driven before, where the map cycle goes on.
        n_entries_left_out: of the map cycle: a collector that is started again and again without a race begins further
            on, since it may be that map that no game can play.
        streams: random streams whose states go with each race, so that a new process can go on with them; by name.
        beat: says that the collector goes on; called between any two actions.
        listeners: called with what the games show and what is decided.
    """

    run_state: RunStateView
    rollouts: RolloutSink
    explorer: WeightPuller
    evaluator: WeightPuller
    generated_maps: GeneratedMaps | None = None
    progress: CollectorProgress = FROM_THE_BEGINNING
    n_entries_left_out: int = 0
    streams: Mapping[str, np.random.Generator] = field(default_factory=dict)
    beat: Callable[[], object] = lambda: None
    listeners: Sequence[Listener] = ()

    def entries(self) -> Iterator[RaceOfCycle]:
        """Go through the map cycle from where this collector stands."""
        return map_cycle(self.run_state, self.generated_maps, self.progress, self.n_entries_left_out)


@dataclass(frozen=True, slots=True)
class Race:
    """A race of the map cycle: its map, the network that drives it, and how much it explores.

    Attributes:
        entry: the map.
        puller: keeps the network that drives it.
        exploration: how it explores.
        is_generated: whether the track is one of many that a generator makes.
        position: where it stands among those of the collector.
        in_fragments: how much of it was handed on already; None where it is handed on as a whole.
    """

    entry: MapEntry
    puller: WeightPuller
    exploration: Exploration
    is_generated: bool
    position: RacePosition
    in_fragments: RaceInFragments | None = field(default=None)

    def stats(
        self, end_race_stats: Mapping[str, Any], position: RacePosition, fragment: Fragment | None = None
    ) -> dict[str, Any]:
        """Return what the learner is told of the race: its `end_race_stats` and where they belong."""
        told = {**end_race_stats, **stats_of_entry(self.entry), "is_generated": self.is_generated}
        told["position"] = position
        told["weights_age_s"] = time.monotonic() - self.puller.came_s
        return told if fragment is None else {**told, "fragment": fragment}


def stats_of_entry(entry: MapEntry) -> dict[str, Any]:
    """Return where a race belongs, for its `end_race_stats`."""
    return {
        "map_name": entry.map_name,
        "track": Path(entry.map_path.replace("\\", "/")).stem,  # which may have been written on Windows
        "is_explo": entry.is_explo,
        "fill_buffer": entry.fill_buffer,
    }


class RaceOfCycle(NamedTuple):
    """A race that the map cycle asks for.

    Attributes:
        entry: its map.
        is_generated: whether the track is one of many under the same name: a generator's of more than one track.
        position: where it stands.
    """

    entry: MapEntry
    is_generated: bool
    position: RacePosition


def map_cycle(
    run_state: RunStateView,
    generated_maps: GeneratedMaps | None = None,
    progress: CollectorProgress = FROM_THE_BEGINNING,
    n_entries_left_out: int = 0,
) -> Iterator[RaceOfCycle]:
    """Go through the races in order; an edited map cycle starts afresh when the old one has come round.

    A generator gives each of its races a track of its own, under the generator's name.

    Args:
        run_state: has the settings in force.
        generated_maps: makes the tracks of generators.
        progress: where to go on. In a cycle that has become shorter, a place beyond its end counts on from its
            beginning.
        n_entries_left_out: so many entries from there on are left out the first time, the rest of the current one
            included.

    Raises:
        UserError: if a generated track cannot be written.
        ValueError: if there is a generator, but no `generated_maps`.
    """
    number, first = progress.n_races, progress.place
    while True:
        entries = [(k, entry) for k, entry in enumerate(run_state.settings.game.map_cycle) for _ in range(entry.repeat)]
        first %= len(entries)
        for _ in range(n_entries_left_out):
            of_this_one = entries[first][0]
            first = next((place for place in range(first, len(entries)) if entries[place][0] != of_this_one), 0)
        n_entries_left_out = 0
        for place in range(first, len(entries)):
            yield race_of_entry(entries[place][1], RacePosition(number, place), generated_maps)
            number += 1
        first = 0


def race_at(
    cycle: Sequence[MapEntry], position: RacePosition, generated_maps: GeneratedMaps | None
) -> RaceOfCycle | None:
    """Return the race that stood at a position, with its track; None if the cycle has become another one."""
    entries = [entry for entry in cycle for _ in range(entry.repeat)]
    entry = entries[position.place] if position.place < len(entries) else None
    if entry is None or position.generator != (generator_key(entry.generator) if entry.generator else ""):
        return None
    if entry.generator is None or generated_maps is None:
        return RaceOfCycle(entry, False, position)
    recipe = generated_maps.recipe(entry.generator, position.generator_number)
    return RaceOfCycle(generated_maps.concrete(entry, recipe), not entry.generator.is_one_track, position)


def race_of_entry(entry: MapEntry, position: RacePosition, generated_maps: GeneratedMaps | None) -> RaceOfCycle:
    """Return the race of an entry; on a track of its own, if it is a generator's."""
    if entry.generator is None:
        return RaceOfCycle(entry, False, position)
    if generated_maps is None:
        raise ValueError(f"the map cycle's {entry.map_name} is a generator: generated_maps is needed")
    generator = generator_key(entry.generator)
    position = replace(position, generator=generator, generator_number=generated_maps.n_begun(entry.generator))
    return RaceOfCycle(generated_maps.draw(entry), not entry.generator.is_one_track, position)


class Collector:
    """Plays the map cycle in all games: exploration races with noise, evaluation races greedily.

    A race is played by the settings in force when it begins. While the learner is behind, games wait for room: races
    begun later would only be driven by older weights.

    Args:
        parts: what surrounds the collector.
        games: what is played; a race begins in each of them.

    With `batch_mode = "truncate_episodes"` a race is handed on in fragments, and as a whole when it is over.
    """

    def __init__(self, parts: CollectorParts, games: Games) -> None:
        settings = parts.run_state.settings
        self._parts = parts
        self._games = games
        self._entries = parts.entries()
        self._races: dict[int, Race] = {}
        self._has_answered = False
        self._fragment_length_actions = settings.sync.fragment_length_actions

    def run(self) -> None:
        """Play until the run ends.

        Raises:
            UserError: if a map or port can't be used.
            GameError: if no game plays any more.
        """
        while not self._parts.run_state.stop_requested and self.play_once():
            pass

    def play_once(self) -> bool:
        """Answer the games that wait, and hand on the races that have ended; False if the run ends meanwhile.

        In a game without a race, the map cycle's next one begins first.
        """
        self._parts.beat()
        self.begin_races()
        received = self._receive()
        if self._fragment_length_actions is not None:
            for game in received.ids.tolist():
                if not self._hand_on_fragment(game, at_least_actions=self._fragment_length_actions):
                    return False
        self._answer(received)
        return self._hand_on_ended(received)

    def begin_races(self) -> None:
        """Begin a race in every game that is in none.

        Raises:
            UserError: if a map of the cycle can't be used.
        """
        if len(self._races) < self._games.n_games:
            for game in range(self._games.n_games):
                if game not in self._races:
                    self._begin_race(game)

    def _receive(self) -> Received:
        """Receive from the games; a race that was lost with its game and has begun again is handed on anew."""
        received = self._games.recv()
        for listener in self._parts.listeners:
            listener.received(received)
        if self._fragment_length_actions is not None:
            for game in received.ids[received.is_first].tolist():
                in_fragments = self._races[game].in_fragments
                if in_fragments is not None:
                    in_fragments.begin_again()
        return received

    def _send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        for listener in self._parts.listeners:
            listener.decided(ids, decision)
        self._games.send(ids, decision, policy_s)

    def _answer(self, received: Received) -> None:
        """Decide for the games that wait."""
        if not self._has_answered:
            self._has_answered = True
            log.info("the games are ready: the first race begins", extra={"phase": "first race"})
        for puller in (self._parts.explorer, self._parts.evaluator):
            asked = [self._races[game].puller is puller for game in received.ids.tolist()]
            if any(asked):
                self._decide(puller, received, np.flatnonzero(asked))

    def _decide(self, puller: WeightPuller, received: Received, rows: GameIds) -> None:
        """Answer some of the games by one pass through one network."""
        puller.pull_if_due(PULL_EVERY_N_ACTIONS)
        began_s = time.perf_counter()
        ids = received.ids[rows]
        races = [self._races[game] for game in ids.tolist()]
        explorations = [race.exploration for race in races]
        decision = puller.actor.act_batch(received.images[rows], received.floats[rows], explorations)
        for row, race in enumerate(races):
            if race.in_fragments is not None:
                race.in_fragments.decided(decision, row)
        self._send(ids, decision, policy_s=time.perf_counter() - began_s)

    def _hand_on_fragment(self, game: int, at_least_actions: int) -> bool:
        """Put what is new of a race under way into the sink, if it is so much; False if the run ends meanwhile."""
        race = self._races[game]
        if race.in_fragments is None or race.in_fragments.n_to_hand_on < at_least_actions:
            return True
        if self._parts.rollouts.acquire_frames(game) is None:
            return False
        states, fragment = race.in_fragments.cut()
        self._parts.rollouts.put(
            game, self._games.under_way(game, states), race.stats({}, self._position_now(race), fragment)
        )
        return True

    def _hand_on_ended(self, received: Received) -> bool:
        """Put the races that have ended into the sink; False if the run ends meanwhile."""
        for game, ended in received.ended.items():
            if self._parts.rollouts.acquire_frames(game) is None:  # in which its frames may lie already
                return False
            race = self._races.pop(game)
            n_actions = len(ended.rollout_results["actions"])
            fragment = None if race.in_fragments is None else race.in_fragments.end(n_actions)
            self._parts.rollouts.put(
                game, ended.rollout_results, race.stats(ended.end_race_stats, self._position_now(race), fragment)
            )
        for game in received.lost:  # another race begins there: it may be this one that the game cannot play
            del self._races[game]
        return True

    def _position_now(self, race: Race) -> RacePosition:
        """Return where a race stands, and the random streams are, as it is handed on."""
        streams = {name: stream_state(stream) for name, stream in self._parts.streams.items()}
        return replace(race.position, streams=streams)

    def _begin_race(self, game: int) -> None:
        """Begin the map cycle's next race in a game; whoever drives it looks for newer weights first."""
        run_state = self._parts.run_state
        run_state.pull()
        entry, is_generated, position = next(self._entries)
        position = replace(position, game=game, frames_total=run_state.frames_total)
        self._begin(RaceOfCycle(entry, is_generated, position)).puller.pull_at_next_pass()

    def _begin(self, race_of_cycle: RaceOfCycle) -> Race:
        """Begin a race by the settings in force, in the game and with the exploration that its position says."""
        settings, (entry, is_generated, position) = self._parts.run_state.settings, race_of_cycle
        puller = self._parts.explorer if entry.is_explo else self._parts.evaluator
        puller.actor.exploration_settings = settings.exploration
        exploration = puller.actor.exploration_of_race(is_explo=entry.is_explo, frame_count=position.frames_total)
        in_fragments, frames = None, None
        if self._fragment_length_actions is None:
            frames = functools.partial(self._parts.rollouts.acquire_frames, position.game)
        else:  # a fragment takes its room away while the race goes on, so the frames are written elsewhere
            in_fragments = RaceInFragments.of_settings(settings)
        race = Race(entry, puller, exploration, is_generated, position, in_fragments)
        self._races[position.game] = race
        for listener in self._parts.listeners:
            listener.begins(position.game, entry)
        self._games.game = settings.game
        self._games.begin(position.game, entry, frames)
        return race
