"""A collector without processes: it plays the map cycle on several games at once, with the newest weights.

`Collector` is handed everything it touches (game managers, inferers, where finished races go), so that a test drives it
in one process. `collector_process.py` is the shell around it. `batch_collector.py` holds the one that steps many games
in its own process in lockstep.

Each game is played by a thread of its own, with all the waiting, failing and starting again that this may take; while a
thread waits for its game, others run. The policy that a thread asks is a `DecisionDesk`, where the collector's own
thread decides for all games that have asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.agents.exploration import Exploration
from trackmania_rl.agents.inference import Inferer
from trackmania_rl.channels.protocols import NO_WEIGHTS, RolloutSink, RunStateView, WeightsKind
from trackmania_rl.games.decision_desk import DecisionDesk, Question, StopCollecting
from trackmania_rl.race.policy import Policy
from trackmania_rl.settings import GameSettings, MapEntry
from trackmania_rl.tmi_interaction.game_instance_manager import GameKeepsFailingError
from trackmania_rl.track.generated_maps import GeneratedMaps

log = logging.getLogger(__name__)

LOOK_FOR_THE_END_EVERY_S: Final = 0.1
FIRST_GAME_WITHIN_S: Final = 60.0
"""How long the other games wait for the first one, which may have to compile what all of them use."""
RETRY_FAILING_GAME_AFTER_S: Final = 30.0
GAMES_END_WITHIN_S: Final = 1.0
PATIENCE_PASSES: Final = 2.0
"""How long games that were on time before are waited for, in durations of the last pass. With 8 games on a busy machine
0, 1 and 2 gave batches of 2.0, 4.6 and 6.7 states, and 2 took a fifth less processor time for an action than 0."""


class RaceDriver(Protocol):
    """What a collector needs of a game: `GameInstanceManager` is one."""

    game: GameSettings

    def rollout(
        self, map_entry: MapEntry, policy: Policy, frames: npt.NDArray[np.uint8] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Play one race, its frames written to `frames`, and return `(rollout_results, end_race_stats)`."""
        ...

    def close(self) -> None:
        """End the game."""
        ...


@dataclass
class WeightPuller:
    """Keeps one inference network at the newest weights of its kind."""

    inferer: Inferer
    run_state: RunStateView
    kind: WeightsKind
    version: int = NO_WEIGHTS
    passes_until_pull: int = 0

    def pull_at_next_pass(self) -> None:
        """Look for newer weights before the next pass, whenever the last look was."""
        self.passes_until_pull = 0

    def pull_if_due(self, every_n_passes: int) -> None:
        """Before a pass through the network: pull the weights, if it is time and there are newer ones."""
        if self.passes_until_pull <= 0:
            self.passes_until_pull = every_n_passes
            version = self.run_state.pull_weights(self.kind, self.inferer.network, self.version)
            if version != self.version:
                self.version = version
                self.inferer.weights_changed()
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
        """What the learner is told of the race: its `end_race_stats` and where they belong."""
        return {**end_race_stats, **stats_of_entry(self.entry), "is_generated": self.is_generated}


def stats_of_entry(entry: MapEntry) -> dict[str, Any]:
    """Where a race belongs, for its `end_race_stats`."""
    return {
        "map_name": entry.map_name,
        "track": Path(entry.map_path.replace("\\", "/")).stem,  # which may have been written on Windows
        "is_explo": entry.is_explo,
        "fill_buffer": entry.fill_buffer,
    }


def map_cycle(
    run_state: RunStateView, generated_maps: GeneratedMaps | None = None, first: int = 0
) -> Iterator[tuple[MapEntry, bool]]:
    """The races in order; an edited map cycle starts afresh when the old one has come round.

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


class Races:
    """The map cycle as races, each by the settings in force when it begins; for any thread."""

    def __init__(self, parts: CollectorParts) -> None:
        self._parts = parts
        self._entries = map_cycle(parts.run_state, parts.generated_maps, parts.first_entry)
        self._lock = threading.Lock()

    def next(self) -> tuple[Race, GameSettings]:
        """The race that comes next and how it is played; whoever drives it looks for newer weights first.

        Raises:
            UserError: if a generated track cannot be written.
        """
        parts = self._parts
        with self._lock:
            parts.run_state.pull()
            settings = parts.run_state.settings
            entry, is_generated = next(self._entries)
            puller = parts.explorer if entry.is_explo else parts.evaluator
            puller.inferer.exploration_settings = settings.exploration
            puller.pull_at_next_pass()
            exploration = puller.inferer.exploration_of_race(
                is_explo=entry.is_explo, frame_count=parts.run_state.frames_total
            )
            return Race(entry, puller, exploration, is_generated), settings.game


class Collector:
    """Plays the map cycle on games that run each by itself: exploration races with noise, evaluation races greedily.

    A game that has to be started again costs nobody else anything. One that fails again and again is left alone for
    half a minute while others play; when none plays any more, its error ends the collector.

    Args:
        parts: what surrounds the collector.
        drivers: one for each game; closed by the game's own thread.
    """

    def __init__(self, parts: CollectorParts, drivers: Sequence[RaceDriver]) -> None:
        self._parts = parts
        self._drivers = drivers
        self._races = Races(parts)
        self._desk: DecisionDesk[Race] = DecisionDesk(len(drivers))
        self._threads = [
            threading.Thread(target=self._play_races, args=(game,), name=f"game {game}", daemon=True)
            for game in range(len(drivers))
        ]
        self._failing: set[int] = set()
        self._last_pass_s = 0.0

    def run(self) -> None:
        """Play races until the run ends; then the games are given `GAMES_END_WITHIN_S` seconds to end.

        Raises:
            UserError: if a map or port can't be used.
            GameKeepsFailingError: if no game plays any more.
        """
        began_s = time.monotonic()
        waiting = self._threads[1:]
        self._threads[0].start()
        try:
            while not self._parts.run_state.stop_requested:
                patience_s = PATIENCE_PASSES * self._last_pass_s
                questions = self._desk.gather(LOOK_FOR_THE_END_EVERY_S, patience_s)
                if waiting and (questions or time.monotonic() - began_s > FIRST_GAME_WITHIN_S):
                    for thread in waiting:
                        thread.start()
                    waiting = []
                for puller in (self._parts.explorer, self._parts.evaluator):
                    asked = [question for question in questions if question.race.puller is puller]
                    if asked:
                        self._decide(puller, asked)
        finally:
            self._desk.close()
            deadline_s = time.monotonic() + GAMES_END_WITHIN_S
            for thread in self._threads:
                if thread.is_alive():
                    thread.join(max(deadline_s - time.monotonic(), 0.0))

    @property
    def games_have_ended(self) -> bool:
        """Whether no game is under way any more; one that hangs is not ended by `run`."""
        return not any(thread.is_alive() for thread in self._threads)

    def _decide(self, puller: WeightPuller, questions: Sequence[Question[Race]]) -> None:
        """Answer questions by one pass through one network."""
        began_s = time.perf_counter()
        puller.pull_if_due(self._parts.run_state.settings.sync.update_inference_network_every_n_actions)
        decision = puller.inferer.act_batch(
            np.stack([question.image for question in questions]),  # (B, S, H, W)
            np.stack([question.floats for question in questions]),  # (B, F)
            [question.race.exploration for question in questions],
        )
        self._last_pass_s = time.perf_counter() - began_s
        self._desk.answer(questions, decision)

    def _play_races(self, game: int) -> None:
        """Play on and on, in the game's thread."""
        # The kernel ends a game with the thread that started it, so that must be a thread that lives as long.
        try:
            while True:
                self._play_race(game)
        except StopCollecting:
            pass
        except Exception as error:  # whatever it is, the collector's own thread raises it from `gather`
            self._desk.give_up(error)
        finally:
            self._drivers[game].close()

    def _play_race(self, game: int) -> None:
        """Play the map cycle's next race and send it off."""
        frames = self._parts.rollouts.acquire_frames(game)
        if frames is None:
            raise StopCollecting
        while True:
            # After a failure another race: it may be this one that the game cannot play.
            race, self._drivers[game].game = self._races.next()
            try:
                results, stats = self._drivers[game].rollout(race.entry, self._policy_of(game, race), frames)
                break
            except GameKeepsFailingError as error:
                self._failing.add(game)
                if len(self._failing) == len(self._drivers):
                    raise
                log.warning("game %d is tried again in %g s: %s", game, RETRY_FAILING_GAME_AFTER_S, error)
                self._desk.pause(RETRY_FAILING_GAME_AFTER_S)
        self._failing.discard(game)
        self._parts.rollouts.put(game, results, race.stats(stats))

    def _policy_of(self, game: int, race: Race) -> Policy:
        """What a game asks for its decisions: the desk, where the collector's own thread answers."""
        return lambda image, floats: self._desk.ask(Question(game, race, image, floats))
