"""What a collector's process is handed when it is spawned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trackmania_rl.agents.builder import MakeAgentBuilder
from trackmania_rl.channels.protocols import RolloutSink, RunStateView
from trackmania_rl.games.race_games import MakeGamesBuilder
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.training.demonstrations import Demonstration


class LogPipe(Protocol):
    """Where a collector's log records go."""

    def send(self, record: Any, /) -> None:
        """Hand on a record."""
        ...


@dataclass(frozen=True)
class CollectorTask:
    """Everything one collector process is told.

    Attributes:
        index: its number, from 0.
        name: its name in the seed tree, a new one each time it is started; its games share its streams.
        maps_folder: where tracks and reference lines lie.
        tracks_folder: where it may write the tracks that it generates.
        live_folder: where it shows its games to whoever looks.
        rollouts: where its races go.
        run_state: what the learner publishes.
        log_pipe: where its log records go.
        make_games_builder: called with the settings, makes what it plays; a function that can be pickled.
        make_agent_builder: called with settings, spaces and seeds, makes what it decides by; likewise.
        demonstrations: races to drive before its own.
        progress: what it has driven already, where it goes on.
        n_starts_before: how often this session has started it already since its last race came in.
    """

    index: int
    name: str
    maps_folder: Path
    tracks_folder: Path
    live_folder: Path
    rollouts: RolloutSink
    run_state: RunStateView
    log_pipe: LogPipe
    make_games_builder: MakeGamesBuilder
    make_agent_builder: MakeAgentBuilder
    demonstrations: tuple[Demonstration, ...] = ()
    progress: CollectorProgress = field(default_factory=CollectorProgress)
    n_starts_before: int = 0
