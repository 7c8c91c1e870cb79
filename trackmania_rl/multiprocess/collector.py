"""A collector without processes: it plays the map cycle, one race after the other, with the newest weights.

`Collector` is handed everything it touches (game manager, inferers, where finished races go), so that a test drives it
in one process. `collector_process.py` is the shell around it. `batch_collector.py` holds the one that plays many games
in its own process at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.shared_weights import SharedWeights
from trackmania_rl.multiprocess.live_settings import LiveSettings
from trackmania_rl.policy import Policy, PolicyDecision
from trackmania_rl.settings import GameSettings, MapEntry


class StopCollecting(Exception):  # noqa: N818  # not an error: the run ends
    """Raised out of a race when the run ends while it is driven."""


class RaceDriver(Protocol):
    """What a collector needs of a game: `GameInstanceManager` is one."""

    game: GameSettings

    def rollout(
        self, map_entry: MapEntry, policy: Policy, frames: npt.NDArray[np.uint8] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Play one race, its frames written to `frames`, and return `(rollout_results, end_race_stats)`."""
        ...


class RaceOutbox(Protocol):
    """Where finished races go."""

    def frames(self) -> npt.NDArray[np.uint8] | None:
        """Room for the next race's frames; waits while the learner is behind. None if the run ends meanwhile."""
        ...

    def send(self, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        """Hand a finished race on, whose frames lie in the room given last."""
        ...


@dataclass
class WeightsFollower:
    """One inference network and the shared weights that it follows."""

    inferer: Inferer
    shared: SharedWeights
    version: int = 0

    def pull(self) -> None:
        """Copy the shared weights if they are newer than what the network holds."""
        version = self.shared.pull_if_newer(self.inferer.network, self.version)
        if version != self.version:
            self.version = version
            self.inferer.weights_changed()


def map_cycle(live: LiveSettings) -> Iterator[MapEntry]:
    """The races in order; an edited map cycle starts afresh when the old one has come round."""
    while True:
        for entry in live.current.game.map_cycle:
            yield from itertools.repeat(entry, entry.repeat)


def stats_of_entry(entry: MapEntry) -> dict[str, Any]:
    """What the learner is told of a race beside its `end_race_stats`."""
    return {"map_name": entry.map_name, "is_explo": entry.is_explo, "fill_buffer": entry.fill_buffer}


class Collector:
    """Plays the map cycle: exploration races with noise, evaluation races greedily.

    Args:
        live: the settings in force, renewed between two races.
        driver: plays a race on a game instance.
        explorer: network and shared weights of exploration races.
        evaluator: the same for evaluation races (averaged weights).
        frames_total: how many frames the whole run has collected, for the exploration schedules.
        stop_requested: whether the run is to end.
        outbox: where finished races go.
    """

    def __init__(
        self,
        live: LiveSettings,
        driver: RaceDriver,
        explorer: WeightsFollower,
        evaluator: WeightsFollower,
        frames_total: Callable[[], int],
        stop_requested: Callable[[], bool],
        outbox: RaceOutbox,
    ) -> None:
        self._live = live
        self._driver = driver
        self._explorer = explorer
        self._evaluator = evaluator
        self._frames_total = frames_total
        self._stop_requested = stop_requested
        self._outbox = outbox
        self._races = map_cycle(live)

    def run(self) -> None:
        """Play races until the run ends."""
        while not self._stop_requested():
            try:
                self.play_next_race()
            except StopCollecting:
                return

    def play_next_race(self) -> None:
        """Play the map cycle's next race and send it off."""
        self._live.refresh()
        self._driver.game = self._live.current.game
        map_entry = next(self._races)
        follower = self._explorer if map_entry.is_explo else self._evaluator
        follower.inferer.exploration_settings = self._live.current.exploration
        follower.inferer.begin_race(is_explo=map_entry.is_explo, frame_count=self._frames_total())
        frames = self._outbox.frames()
        if frames is None:
            return
        rollout_results, end_race_stats = self._driver.rollout(map_entry, self._policy(follower), frames)
        self._outbox.send(rollout_results, {**end_race_stats, **stats_of_entry(map_entry)})

    def _policy(self, follower: WeightsFollower) -> Policy:
        """The follower's policy, which now and then pulls newer weights and looks whether the run ends."""
        actions_between_pulls = self._live.current.sync.update_inference_network_every_n_actions
        action_count = itertools.count()

        def act(frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
            if next(action_count) % actions_between_pulls == 0:
                if self._stop_requested():
                    raise StopCollecting
                follower.pull()
            return follower.inferer.act(frame, floats)

        return act
