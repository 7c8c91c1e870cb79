"""Collectors, which play the map cycle on any kind of games with the newest weights.

One thread, one loop: receive from the games that wait, decide with one pass through the network, send. After a race
the map cycle's next one begins.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from trackmania_rl.agents.inference import Actor, Exploration
from trackmania_rl.agents.weights import hex_digest, packed
from trackmania_rl.channels.rollouts import RolloutSink
from trackmania_rl.channels.run_state import NO_WEIGHTS, RunState, WeightsKind
from trackmania_rl.games.protocol import GameIds, Games, Listener, Received
from trackmania_rl.race.race import CollectorProgress, CyclePosition, Fragment, Race, stream_state
from trackmania_rl.settings import MapEntry, Settings, shifts_of
from trackmania_rl.track.map_sources import GeneratedMaps, generator_key

log = logging.getLogger(__name__)

PULL_EVERY_N_ACTIONS: Final = 20
"""Actions between two checks for new weights."""
FROM_THE_BEGINNING: Final = CollectorProgress()


@dataclass
class WeightPuller:
    """Keeps an actor's network at the newest weights of its kind, which arrived at `came_s` (`time.monotonic`)."""

    actor: Actor
    run_state: RunState
    kind: WeightsKind
    version: int = NO_WEIGHTS
    passes_until_pull: int = 0
    came_s: float = field(default_factory=time.monotonic)

    def pull_at_next_pass(self) -> None:
        """Pull weights before the next pass."""
        self.passes_until_pull = 0

    def pull_if_due(self, every_n_passes: int) -> None:
        """Pull newer weights before a pass through the network, every `every_n_passes` passes."""
        if self.passes_until_pull <= 0:
            self.passes_until_pull = every_n_passes
            self.pull()
        self.passes_until_pull -= 1

    def pull(self) -> None:
        """Pull newer weights."""
        version = self.run_state.pull_weights(self.kind, self.actor.network, self.version)
        if version != self.version:
            self.version = version
            self.came_s = time.monotonic()
            self.actor.weights_changed()


class Evaluators:
    """Actors of evaluation races. Each keeps the weights that began the race, so a record's driver repeats it."""

    def __init__(self, make: Callable[[], WeightPuller]) -> None:
        self._make = make
        self.made = [make()]

    def newest(self, in_use: Sequence[WeightPuller]) -> WeightPuller:
        """Return an actor with the newest weights; those `in_use` keep their weights."""
        free = next((one for one in self.made if all(one is not other for other in in_use)), None)
        if free is None:
            free = self._make()
            self.made.append(free)
        free.pull()
        return next(one for one in self.made if one.version == free.version)


@dataclass(frozen=True)
class CollectorParts:
    """A collector's parts besides the games.

    A collector restarted without a race skips the map that the games may be unable to play
    (`n_entries_left_out`).
    """

    run_state: RunState
    rollouts: RolloutSink
    explorer: WeightPuller
    evaluators: Evaluators
    generated_maps: GeneratedMaps | None = None  #: tracks from the map cycle's generators
    progress: CollectorProgress = FROM_THE_BEGINNING  #: where the map cycle continues
    n_entries_left_out: int = 0  #: map cycle entries to skip
    streams: Mapping[str, np.random.Generator] = field(default_factory=dict)  #: whose states are sent with each race
    beat: Callable[[], object] = lambda: None  #: heartbeat, called between any two actions
    listeners: Sequence[Listener] = ()


class CycleEntry(NamedTuple):
    """A map cycle entry to play. If it `is_generated`, a generator makes many tracks under the map's name."""

    entry: MapEntry
    is_generated: bool
    position: CyclePosition


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A race under way. `cutter` counts what was sent already; None if the race is sent as a whole."""

    cycle_entry: CycleEntry
    puller: WeightPuller
    exploration: Exploration
    cutter: FragmentCutter | None


def map_cycle(
    run_state: RunState,
    generated_maps: GeneratedMaps | None = None,
    progress: CollectorProgress = FROM_THE_BEGINNING,
    n_entries_left_out: int = 0,
) -> Iterator[CycleEntry]:
    """Yield the races in order. An edited map cycle begins when the old one has ended.

    A place beyond a shorter cycle's end wraps around. Skipped entries include the rest of the current
    one.

    Raises:
        UserError: if a generated track cannot be written.
        ValueError: if there is a generator, but no `generated_maps`.
    """
    number = progress.n_races
    first = progress.place
    while True:
        entries = [(k, entry) for k, entry in enumerate(run_state.settings.game.map_cycle) for _ in range(entry.repeat)]
        first %= len(entries)
        for _ in range(n_entries_left_out):
            of_this_one = entries[first][0]
            first = next((place for place in range(first, len(entries)) if entries[place][0] != of_this_one), 0)
        n_entries_left_out = 0
        for place in range(first, len(entries)):
            yield _race_of_entry(entries[place][1], CyclePosition(number=number, place=place), generated_maps)
            number += 1
        first = 0


def _race_of_entry(entry: MapEntry, position: CyclePosition, generated_maps: GeneratedMaps | None) -> CycleEntry:
    if entry.generator is None:
        return CycleEntry(entry, False, position)
    if generated_maps is None:
        raise ValueError(f"the map cycle's {entry.map_name} is a generator: generated_maps is needed")
    generator = generator_key(entry.generator)
    number = generated_maps.n_begun(entry.generator)
    position = position.model_copy(update={"generator": generator, "generator_number": number})
    is_one_track = generated_maps.source(entry.generator).is_one_track
    return CycleEntry(generated_maps.draw(entry), not is_one_track, position)


class Collector:
    """Plays the map cycle in all games: exploration races with noise, evaluation races greedily.

    A race is played by the settings in force when it begins. Games wait for room in the sink. With
    `batch_mode = "truncate_episodes"` a race is sent in fragments, and as a whole when it has ended.
    """

    def __init__(self, parts: CollectorParts, games: Games) -> None:
        settings = parts.run_state.settings
        self._parts = parts
        self._games = games
        self._cycle = map_cycle(parts.run_state, parts.generated_maps, parts.progress, parts.n_entries_left_out)
        self._races: dict[int, _UnderWay] = {}
        self._has_answered = False
        self._fragment_length_actions = settings.sync.fragment_length_actions

    def run(self) -> None:
        """Play until the run ends."""
        while not self._parts.run_state.stop_requested and self.play_once():
            pass

    def play_once(self) -> bool:
        """Begin missing races, answer the games that wait, and send races that have ended; False if the run ends."""
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
        """Begin the map cycle's next race in each game without one."""
        if len(self._races) < self._games.n_games:
            for game in range(self._games.n_games):
                if game not in self._races:
                    self._begin_race(game)

    def _receive(self) -> Received:
        """Receive from the games. If a race began again with its game, the fragments are sent again."""
        received = self._games.recv()
        for listener in self._parts.listeners:
            listener.received(received)
        if self._fragment_length_actions is not None:
            for game in received.ids[received.is_first].tolist():
                cutter = self._races[game].cutter
                if cutter is not None:
                    cutter.begin_again()
        return received

    def _answer(self, received: Received) -> None:
        if not self._has_answered:
            self._has_answered = True
            if not self._parts.run_state.settings.game.is_in_process:  # else the first race compiles, too
                log.info("the games are ready: the first race begins", extra={"phase": "first race"})
        for puller in (self._parts.explorer, *self._parts.evaluators.made):
            asked = [self._races[game].puller is puller for game in received.ids.tolist()]
            if any(asked):
                self._decide(puller, received, np.flatnonzero(asked))

    def _decide(self, puller: WeightPuller, received: Received, rows: GameIds) -> None:
        if puller is self._parts.explorer:
            puller.pull_if_due(PULL_EVERY_N_ACTIONS)
        began_s = time.perf_counter()
        ids = received.ids[rows]
        races = [self._races[game] for game in ids.tolist()]
        explorations = [race.exploration for race in races]
        decision = puller.actor.act_batch(received.images[rows], received.floats[rows], explorations)
        for race in races:
            if race.cutter is not None:
                race.cutter.n_decided += 1
        self._games.send(ids, decision, policy_s=time.perf_counter() - began_s)

    def _hand_on_fragment(self, game: int, at_least_actions: int) -> bool:
        """Send the new part of a race under way if it is large enough; False if the run ends."""
        race = self._races[game]
        if race.cutter is None or race.cutter.n_to_hand_on < at_least_actions:
            return True
        if self._parts.rollouts.acquire_frames(game) is None:
            return False
        states, fragment = race.cutter.cut()
        self._put(game, race, self._games.under_way(game, states), fragment)
        return True

    def _hand_on_ended(self, received: Received) -> bool:
        """Send the races that have ended; False if the run ends."""
        for game, ended in received.ended.items():
            if self._parts.rollouts.acquire_frames(game) is None:  # frames may be there already
                return False
            race = self._races.pop(game)
            fragment = None if race.cutter is None else race.cutter.end(ended.n_actions)
            self._put(game, race, ended, fragment)
        for game in received.lost:  # the game may be unable to play this race, so the next one begins there
            del self._races[game]
        return True

    def _put(self, game: int, race: _UnderWay, driven: Race, fragment: Fragment | None) -> None:
        """Send a race, with map cycle place, weights' age and new part."""
        streams = {name: stream_state(stream) for name, stream in self._parts.streams.items()}
        is_evaluated = driven.facts.race_finished and not driven.facts.is_explo
        driven.facts = driven.facts.with_changes(
            is_generated=race.cycle_entry.is_generated,
            position=race.cycle_entry.position.model_copy(update={"streams": streams}),
            weights_age_s=time.monotonic() - race.puller.came_s,
            weights_digest=hex_digest(packed(race.puller.actor.network)) if is_evaluated else "",
            fragment=fragment,
        )
        self._parts.rollouts.put(game, driven)

    def _begin_race(self, game: int) -> None:
        run_state = self._parts.run_state
        run_state.pull()
        settings = run_state.settings
        cycle_entry = next(self._cycle)
        entry = cycle_entry.entry
        puller = self._parts.explorer
        if entry.is_explo:
            puller.pull_at_next_pass()
        else:
            puller = self._parts.evaluators.newest([race.puller for race in self._races.values()])
        puller.actor.exploration_settings = settings.exploration
        exploration = puller.actor.exploration_of_race(is_explo=entry.is_explo, frame_count=run_state.frames_total)
        cutter: FragmentCutter | None = None
        frames = None
        if self._fragment_length_actions is None:
            frames = functools.partial(self._parts.rollouts.acquire_frames, game)
        else:  # a fragment takes the room while the race continues, so frames are not written there
            cutter = FragmentCutter.of_settings(settings)
        self._races[game] = _UnderWay(cycle_entry, puller, exploration, cutter)
        for listener in self._parts.listeners:
            listener.begins(game, entry)
        self._games.game = settings.game
        self._games.begin(game, entry, frames)


BeginTurn = Callable[[int], object]
"""Called with a turn's number before it is played; seeds all random numbers."""


class TurnTakingCollector(Collector):
    """Collector that takes turns with the learner (synchronous sampling), so the same seed gives the same run.

    In a turn it plays a race in every game, or one fragment's actions, by the weights, frame count and settings at
    the turn's beginning. Random numbers depend on the seed and the turn's number, and the place in the map cycle on
    the races that it has sent, so an interrupted run resumes as the same run.

    Args:
        parts: their actors are replaced at each turn.
        games: answer all together, see `Games.recv`.
        begin_turn: gives the actors in `parts` a turn's random numbers.
        in_first_turn: called before the first races.
    """

    def __init__(
        self,
        parts: CollectorParts,
        games: Games,
        begin_turn: BeginTurn,
        in_first_turn: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(parts, games)
        self._begin_turn = begin_turn
        self._in_first_turn = in_first_turn

    def run(self) -> None:
        """Play turns until the run ends."""
        is_first = True
        while (number := self._parts.rollouts.await_turn()) is not None:
            if is_first:
                self._in_first_turn()
                is_first = False
            self._begin_turn(number)
            if not self._play_turn():
                break
            self._parts.rollouts.end_turn()

    def _play_turn(self) -> bool:
        """Play a turn; False if the run ends."""
        self._parts.explorer.pull_at_next_pass()
        self.begin_races()
        n_passes = 0
        while self._races and n_passes != self._fragment_length_actions:
            received = self._receive_all()
            if received is None:
                return False
            self._answer(received)
            n_passes += 1
        if self._races and self._receive_all() is None:  # some may have ended by the last action
            return False
        return all(self._hand_on_fragment(game, at_least_actions=1) for game in sorted(self._races))

    def _receive_all(self) -> Received | None:
        """Receive all games, and send the races that have ended; None if the run ends."""
        while not self._parts.run_state.stop_requested:
            self._parts.beat()
            received = self._receive()
            if not self._hand_on_ended(received):
                break
            if len(received.ids) == len(self._races):
                return received
        return None


@dataclass
class FragmentCutter:
    """Counts for a race in progress, sent in fragments.

    A fragment begins with the rows needed by the first transition and ends with the last transition's next state.
    """

    n_steps: int  # most actions in a transition, or in views on its state
    n_earlier_rows: int = 0  # in views
    n_decided: int = 0  # actions chosen so far
    n_actions: int = 0  # sent
    n_transitions: int = 0  # sent

    @classmethod
    def of_settings(cls, settings: Settings) -> FragmentCutter:
        """Return the counts at a race's beginning."""
        views = (shifts_of(view.shift) for view in settings.observation.views.values())
        shifts = [*settings.game.frame_shifts, *(shift for view in views for shift in view)]
        # The last row's action and reward come with the next fragment.
        return cls(max(settings.replay.n_steps, max(shifts) + 1), n_earlier_rows=-min(shifts))

    def begin_again(self) -> None:
        """Reset the counts after the race was lost and restarted."""
        self.n_decided = self.n_actions = self.n_transitions = 0

    @property
    def n_to_hand_on(self) -> int:
        """Actions that can be sent while the game waits for a decision.

        The waiting state is left out: a finish at that time is reported only with the next action.
        """
        return self.n_decided - 1 - self.n_actions

    def cut(self) -> tuple[range, Fragment]:
        """Return the next rollout's states and new part; `n_to_hand_on` must be above 0."""
        first = self._first_row_needed()
        last = self.n_decided - 1
        end_transition = max(self.n_transitions, last - self.n_steps + 1)
        fragment = Fragment(
            is_last=False,
            race_row=first,
            n_actions_before=self.n_actions - first,
            first_row=0,
            first_transition=self.n_transitions - first,
            end_transition=end_transition - first,
        )
        self.n_actions, self.n_transitions = last, end_transition
        return range(first, last + 1), fragment

    def end(self, n_actions: int) -> Fragment:
        """Return the whole race's new part after the end."""
        return Fragment(
            is_last=True,
            race_row=0,
            n_actions_before=self.n_actions,
            first_row=self._first_row_needed(),
            first_transition=self.n_transitions,
            end_transition=n_actions,
        )

    def _first_row_needed(self) -> int:
        return max(0, self.n_transitions - self.n_earlier_rows)
