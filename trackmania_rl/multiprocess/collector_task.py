"""What a collector's process is handed when it is spawned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trackmania_rl.channels.protocols import RolloutSink, RunStateView
from trackmania_rl.games.protocol import Games
from trackmania_rl.training.demonstrations import Demonstration


class MakeGames(Protocol):
    """Makes the games of one collector, in its process; picklable, such as a function of a module."""

    def __call__(self, task: CollectorTask, /) -> Games:
        """Make the games that this collector plays."""


@dataclass(frozen=True)
class CollectorTask:
    """Everything one collector process is told.

    Attributes:
        index: its number, from 0.
        name: its name in the seed tree, a new one each time it is started; its games share its streams.
        maps_folder: where tracks and reference lines lie.
        tracks_folder: where it may write the tracks that it generates.
        rollouts: where its races go.
        run_state: what the learner publishes.
        log_queue: where its log records go.
        make_games: makes what it plays.
        demonstrations: races to drive before its own.
        n_starts_before: how often this session has started it already.
    """

    index: int
    name: str
    maps_folder: Path
    tracks_folder: Path
    rollouts: RolloutSink
    run_state: RunStateView
    log_queue: Any  # multiprocessing.Queue of logging.LogRecord
    make_games: MakeGames
    demonstrations: tuple[Demonstration, ...] = ()
    n_starts_before: int = 0
