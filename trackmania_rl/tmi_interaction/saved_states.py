"""Moments of races, kept so that other races can begin there: starts from anywhere.

Most races begin at the start line, so a driver that does not arrive yet sees late sections seldom or never. Beginning a
share of the exploration races at moments of earlier ones shows all sections equally often (Salimans and Chen 2018,
"Learning Montezuma's Revenge from a Single Demonstration"; Florensa et al. 2017, "Reverse Curriculum Generation").

A place is a stretch of the reference line as long as the spacing. Each race leaves one state at each place that it
comes to, once it has gone on from there: a car that is about to leave the road is no good beginning.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from trackmania_rl.race.observation import FeatureMemory
from trackmania_rl.settings import MapEntry

STATES_PER_PLACE: Final = 4
"""The newest ones stay, so that they follow what the driver can do."""
GOES_ON_FOR_M: Final = 50.0
"""A state is good to begin at if its own race came so much further along the line: more than any action drives."""
MOST_MAPS_KEPT: Final = 16
"""Maps whose states stay in memory, some MB each for the real game; the one raced on longest ago gives way."""

StateT = TypeVar("StateT")
MapKey = tuple[str, str]
"""(map_path, reference_line): what makes states and metres those of one map."""


class SavedState(NamedTuple, Generic[StateT]):
    """A moment of a race in which a decision is due.

    Attributes:
        game_state: what the game restores: a state blob, or the car and gates of a game in this process.
        race_time_ms: the game's race time then.
        meters: along the line, from border 0.
        memory: what the observation remembers of the race so far, so that it goes on as it was.
    """

    game_state: StateT
    race_time_ms: int
    meters: float
    memory: FeatureMemory


class SavedStates(Generic[StateT]):
    """The saved states of one process, by map and place; for any thread.

    Args:
        spacing_m: length of a place.
        rng: draws where races begin.
    """

    def __init__(self, spacing_m: float, rng: np.random.Generator) -> None:
        self.spacing_m = spacing_m
        self._rng = rng
        self._lock = threading.Lock()
        self._maps: OrderedDict[MapKey, dict[int, deque[SavedState[StateT]]]] = OrderedDict()  # the newest is last

    def of_race(self, entry: MapEntry, probability: float) -> StatesOfRace[StateT]:
        """Where the next race on a map begins, and what it leaves for others.

        Args:
            entry: the map.
            probability: of beginning at a saved state, as far as there are any; the place is drawn evenly from those
                reached, then one of its states.
        """
        key = (entry.map_path, entry.reference_line)
        with self._lock:
            places = self._maps.get(key, {})
            begin = None
            if places and self._rng.random() < probability:
                place = sorted(places)[self._rng.integers(len(places))]
                begin = places[place][self._rng.integers(len(places[place]))]
        return StatesOfRace(self, key, begin)

    def add(self, key: MapKey, state: SavedState[StateT]) -> None:
        """Keep a state; at its place the oldest one gives way."""
        with self._lock:
            places = self._maps.setdefault(key, {})
            self._maps.move_to_end(key)
            places.setdefault(self.place_of(state.meters), deque(maxlen=STATES_PER_PLACE)).append(state)
            if len(self._maps) > MOST_MAPS_KEPT:
                self._maps.popitem(last=False)

    def place_of(self, meters: float) -> int:
        """The number of the place at which a point of the line lies."""
        return int(meters // self.spacing_m)

    def n_places(self, entry: MapEntry) -> int:
        """How many places of a map have a state."""
        return len(self._maps.get((entry.map_path, entry.reference_line), {}))


class StatesOfRace(Generic[StateT]):
    """Where one race starts, and the states that it saves on its way; `SavedStates.of_race` makes it.

    Whoever drives the race calls `start` once, then `keep` whenever the car is at `next_m` or beyond.

    Attributes:
        begin: where the race begins; None at the start line. May be replaced by None until it has begun.
        next_m: metres along the line at which the next state is due.
    """

    def __init__(self, states: SavedStates[StateT], key: MapKey, begin: SavedState[StateT] | None) -> None:
        self.begin = begin
        self.next_m = np.inf
        self._states = states
        self._key = key
        self._waiting: deque[SavedState[StateT]] = deque()

    def start(self, meters: float) -> None:
        """The race begins, or begins again in another game instance, so far along the line."""
        self._waiting.clear()
        self._await_place_after(meters)

    def keep(self, state: SavedState[StateT]) -> None:
        """Take a state of the race: it is handed on once the race has gone on for long enough, or lost with it."""
        while self._waiting and state.meters - self._waiting[0].meters >= GOES_ON_FOR_M:
            self._states.add(self._key, self._waiting.popleft())
        self._waiting.append(state)
        self._await_place_after(state.meters)

    def _await_place_after(self, meters: float) -> None:
        self.next_m = (self._states.place_of(meters) + 1) * self._states.spacing_m
