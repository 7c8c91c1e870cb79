"""The two channels between collectors and learner: `Rollouts` one way, `RunState` the other.

Everything above this package knows these protocols and nothing of how they are carried: `shared_memory` carries them
between processes of one machine, `local` within one process.

The learner's side::

    channels = open_channels(...)                            # of one implementation
    channels.run_state.publish(weights={"exploration": network, "evaluation": averaged}, settings=live.current)
    sink = channels.rollouts.open_collector(index)           # each time that a collector is started
    view = channels.run_state.view()                         # one for all collectors, or one for each
    ...                                                      # start the collector with both as arguments
    rollout = channels.rollouts.get(timeout_s=0.1)           # None if none came
    if rollout is not None:
        with rollout:                                        # its arrays are valid in here
            memory.extend(rollout.rollout_results)
    channels.run_state.publish(frames_total=frames_total)    # as often as you like
    channels.run_state.publish(stop=True)                    # once
    channels.rollouts.close()                                # when the collectors have ended

The collector's side::

    while not view.stop_requested:
        view.pull()                                          # at race boundaries: settings
        version = view.pull_weights("exploration", network, version)
        sink.beat()                                          # between any two actions
        frames = sink.acquire_frames(game)
        if frames is None:                                   # the run ends
            break
        rollout_results, end_race_stats = play(frames, view.settings, view.frames_total)
        sink.put(game, rollout_results, end_race_stats)
    sink.close()

Where they take turns, the learner calls `give_turn` and receives until no collector `is_at_turn` any more; a collector
plays from `await_turn` to `end_turn`.

Sinks and views are picklable while a process is being started with them as arguments. A collector may be killed at any
moment: nothing that it leaves half done may hold up or mislead anybody else.

Another implementation is a `RolloutSource` and a `RunStatePublisher` of its own, and what opens them as `Channels`.
`tests/channels/test_protocols.py` holds each to what is said here: name yours in `conftest.py` beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.race.progress import Fragment, RacePosition
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import nn

WeightsKind = Literal["exploration", "evaluation"]
"""Collectors explore with the online network's weights, and evaluate with averaged ones."""
WEIGHTS_KINDS: Final[tuple[WeightsKind, ...]] = ("exploration", "evaluation")
ROLLOUT_SLOTS_PER_COLLECTOR: Final = 4
"""Races of one collector that wait for the learner; without a free slot the collector waits."""
NO_WEIGHTS: Final = 0
"""The version of a network that has pulled no weights yet."""
WAIT_FOREVER_S: Final = float("inf")


class ChannelError(UserError):
    """What cannot travel, or memory for it that cannot be had; the text says what to change."""


@dataclass
class ReceivedRollout:
    """A finished race in the learner, or a fragment of one, whoever drove it: a context manager that releases it.

    Attributes:
        collector: who drove it.
        rollout_results: arrays and plain values by name; the arrays are read-only and valid until `release`.
        end_race_stats: plain values by name.
        waited_s: time that the collector's games waited for room since its last rollout, on average.
        elapsed_s: time since the collector's last rollout.
        give_back: called once by `release`; tells the channel that the arrays' memory is free.
    """

    collector: int
    rollout_results: dict[str, Any]
    end_race_stats: dict[str, Any]
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    give_back: Callable[[], None] | None = None

    @property
    def fragment(self) -> Fragment | None:
        """What of its race is new; None where the race comes as a whole, and all of it is."""
        return self.end_race_stats.get("fragment")

    @property
    def position(self) -> RacePosition | None:
        """Where its race stands among those of its collector; None where it is none of the map cycle."""
        return self.end_race_stats.get("position")

    @property
    def weights_age_s(self) -> float | None:
        """How long ago the weights had come by which it was driven; None where it was driven without any."""
        return self.end_race_stats.get("weights_age_s")

    @property
    def is_under_way(self) -> bool:
        """Whether the race goes on: this is a fragment, and there is nothing yet that is known at a race's end."""
        return self.fragment is not None and not self.fragment.is_last

    def release(self) -> None:
        """Let go of the arrays and give their memory back; a second call changes nothing."""
        give_back, self.give_back = self.give_back, None
        if give_back is not None:
            self.rollout_results = {}
            give_back()

    def __enter__(self) -> ReceivedRollout:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


@dataclass(frozen=True)
class SignsOfLife:
    """What a collector's sink tells of it.

    Attributes:
        n_beats: how often it has beaten since it was opened.
        is_waiting: whether it waits for room or for its turn, so that nothing is to be expected of it.
    """

    n_beats: int
    is_waiting: bool


class RolloutSink(Protocol):
    """A collector's end of `Rollouts`. Each of its games may use it from a thread of its own.

    Attributes:
        waited_s: total time spent waiting for room, the average of the games.
    """

    waited_s: float

    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> npt.NDArray[np.uint8] | None:
        """Wait for room for the frames of a game's next race, (longest race's states, 1, H, W).

        Frames that are written there need no copy: hand `frames[:T]` to `put`. A game that acquired room and put no
        race (it was lost) is given the same room again. With little room this waits while the learner is behind, so
        memory stays bounded, and old weights drive no further races.

        Args:
            game: number of the game within this collector.
            timeout_s: how long to wait; 0 only looks.

        Returns:
            None if the run ends, or if there is no room within the time.
        """
        ...

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        """Hand a finished race to the learner. The game's room is the learner's afterwards: acquire it anew.

        Args:
            game: who played it; it must hold room from `acquire_frames`.
            rollout_results: arrays and plain values by name; may hold `frames`, best as a leading part of the room.
            end_race_stats: plain values by name.

        Raises:
            ChannelError: if the race is larger than the channel was made for; the room stays the game's.
            ValueError: if the game holds no room.
        """
        ...

    def beat(self) -> None:
        """Say that the collector goes on; costs so little that it may be said between any two actions.

        The sink says so itself while it waits for room or for a turn.
        """
        ...

    def await_turn(self) -> int | None:
        """Wait until the learner gives this collector a turn, where they take turns.

        Returns:
            The turn's number; None if the run ends.
        """
        ...

    def end_turn(self) -> None:
        """Say that all rollouts of this turn are put."""
        ...

    def close(self) -> None:
        """Let go of everything; what was put still reaches the learner. No view of the room may be used any more."""
        ...


class RolloutSource(Protocol):
    """The learner's end of `Rollouts`: opens one sink for each collector and receives what they put.

    Attributes:
        waited_s: total time spent in `get` waiting for a rollout.
    """

    waited_s: float

    @property
    def left_out(self) -> Mapping[str, int]:
        """How much that was on its way was not received, by why; empty where nothing can be lost on the way."""
        ...

    def open_collector(self, collector: int) -> RolloutSink:
        """Make a new sink for a collector, and drop what a former one of this number put and nobody received.

        Call it only when the collector's former process has ended, however it ended.

        Raises:
            ChannelError: if the machine does not have the memory.
        """
        ...

    def close_collector(self, collector: int) -> None:
        """Free what a collector's sink holds, if there is one. Its rollouts must not be used any more."""
        ...

    def get(self, timeout_s: float) -> ReceivedRollout | None:
        """Take the next rollout, of each collector in turn; None if none arrives within the time.

        Args:
            timeout_s: 0 only looks.
        """
        ...

    def give_turn(self, collector: int, number: int) -> None:
        """Let a collector play a turn; one that is not there misses it.

        Args:
            collector: which one; it must have ended its last turn.
            number: what its `await_turn` returns.
        """
        ...

    def is_at_turn(self, collector: int) -> bool:
        """Whether a collector still plays the turn that it was given; not if it was opened again since.

        Once it does not, `get` returns at once whatever it put in its turn.
        """
        ...

    def signs_of_life(self, collector: int) -> SignsOfLife:
        """Look how a collector is that was opened; never waits, whatever became of it."""
        ...

    def close(self) -> None:
        """Free everything; call it when the collectors have ended."""
        ...


class RunStateView(Protocol):
    """What collectors see of the run: weights, settings, frame count, and whether it ends. For any thread."""

    @property
    def settings(self) -> Settings:
        """Those in force, as of the last `pull`."""
        ...

    @property
    def frames_total(self) -> int:
        """How many frames the whole run has collected, for schedules; at least as new as the last `pull`."""
        ...

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to end; costs so little that it may be looked at between any two actions."""
        ...

    def pull(self) -> bool:
        """Look for news, and return whether the settings are others than before. Costs little where there is none."""
        ...

    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        """Copy the newest weights of a kind into `network`, unless it has them.

        Weights are parameters; buffers stay as they are.

        Args:
            kind: which weights.
            network: of the published one's sizes, on any device; nobody may use it meanwhile.
            known_version: what the last call for this network returned; at first `NO_WEIGHTS`.

        Returns:
            The version that `network` has now; `known_version` if there is no newer one, or none can be had at the
            moment.
        """
        ...


class RunStatePublisher(Protocol):
    """The learner's end of `RunState`. Only one process may publish."""

    def publish(
        self,
        *,
        weights: Mapping[WeightsKind, nn.Module] | None = None,
        settings: Settings | None = None,
        frames_total: int | None = None,
        stop: bool = False,
    ) -> None:
        """Publish what is given; the rest stays as it is.

        Args:
            weights: networks by kind, of the sizes of the first ones. Costs a copy of each.
            settings: those in force. The very object that was published last costs nothing, so it may be given always.
                Settings larger than the channel was made for are refused, which is logged; the last ones stay.
            frames_total: how many frames the whole run has collected. Costs nothing worth mentioning.
            stop: whether the run is to end; there is no way back.
        """
        ...

    def view(self) -> RunStateView:
        """Make what a collector is handed."""
        ...


@dataclass(frozen=True)
class Channels:
    """The learner's ends of both channels of a run."""

    rollouts: RolloutSource
    run_state: RunStatePublisher
