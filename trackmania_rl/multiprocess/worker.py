"""A worker: a collector on any machine, whose learner is reached by one outgoing connection; `scripts/worker.py`.

This process learns from the learner which run it is, checks it, and keeps the collector's process running. The
collector connects by itself.
"""

from __future__ import annotations

import json
import logging
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc

from trackmania_rl.agents.builder import MakeAgentBuilder, make_agent_builder
from trackmania_rl.agents.weights import packed
from trackmania_rl.channels import over_grpc
from trackmania_rl.channels import workers_pb2 as pb
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.over_grpc import MessageError, printable
from trackmania_rl.channels.remote import (
    ANSWERS_WITHIN_S,
    RETRY_S,
    LearnerAddress,
    RemoteLearner,
    WorkerSide,
    details_of,
    log_away,
)
from trackmania_rl.channels.rollouts import POLL_S, SPAWN, RolloutSink, frames_shape, make_stop_flag
from trackmania_rl.channels.run_state import RunState
from trackmania_rl.doctor.findings import Check, Finding, ok, problem
from trackmania_rl.drivers.loading import code_of_driver, names_in, require_known_code
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import parse_json, within
from trackmania_rl.games.race_games import MakeGamesBuilder, make_games_builder
from trackmania_rl.multiprocess.collectors import CollectorSetup, CollectorSupervisor
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, UserSettings
from trackmania_rl.settings.groups import DEFAULTS, MACHINE_SETTINGS
from trackmania_rl.settings.loading import parse_override
from trackmania_rl.tmi_interaction.launchers.plugin_files import put_plugin_in_place
from trackmania_rl.training.demonstrations import Demonstration

log = logging.getLogger(__name__)


def check_learner(learner: LearnerAddress) -> Iterator[Finding]:
    """Yield findings on a learner from the worker's side: the round trip, and the first answer."""
    parts = urlsplit(learner.address)
    try:
        began_s = time.monotonic()
        with socket.create_connection((parts.hostname or "", parts.port or 0), ANSWERS_WITHIN_S):
            round_trip_ms = 1000 * (time.monotonic() - began_s)
        run = printable(learner.describe().run)
        how = f"{'a' if learner.token else 'no'} token, round trip {round_trip_ms:.1f} ms"
        yield ok(Check.LEARNER, f"{learner.address} serves run {run} to this worker: {how}")
    except (OSError, grpc.RpcError, MessageError) as error:
        refusal = learner.refusal(error) if isinstance(error, grpc.RpcError) else None
        text = f"{learner.address} does not answer ({one_line(error, 100)}): is train.py --workers running there?"
        yield problem(Check.LEARNER, refusal or text)


@dataclass(frozen=True)
class WorkerConfig:
    """Folders, settings and parts of a worker on its own machine."""

    project_folder: Path  # holds the maps
    user: UserSettings
    overrides: Sequence[str] = ()  # settings such as base_tmi_port=8500
    code: Collection[str] | None = ()  # modules that a run may name besides the shipped ones; None for any
    games: MakeGamesBuilder = make_games_builder
    agent: MakeAgentBuilder = make_agent_builder
    demonstrations: tuple[Demonstration, ...] = ()

    def maps_folder(self, settings: Settings) -> Path:
        """Return the folder of the maps of this machine."""
        return self.project_folder / settings.game.maps_folder

    def settings_of(self, text: str) -> Settings:
        """Return a run's settings, sent as JSON, on this machine.

        Raises:
            UserError: if they are not valid here, or name code that neither ships nor is allowed.
        """
        own = {name: DEFAULTS[name] for name in MACHINE_SETTINGS}
        own |= dict(map(parse_override, self.overrides))
        try:
            values: Any = {**parse_json(text), "user": self.user.model_dump()}
            for group in values.values():
                group |= {name: value for name, value in own.items() if name in group}
            settings = Settings.model_validate_json(json.dumps(values))
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"the learner's settings cannot be used here: {printable(error)}") from error
        for entry in settings.game.map_cycle:
            for name in filter(None, (entry.map_path, entry.reference_line)):
                within(self.maps_folder(settings), name)
        if self.code is not None:
            compressors = [("sample_compressor", name) for name in names_in(settings.sync.sample_compressor)]
            require_known_code([*code_of_driver(settings), *compressors], self.code, "the learner's run")
        return settings


class Worker:
    """Supervisor of one collector, which plays for a learner on another machine.

    Args:
        learner: to connect to.
        config: of this machine.
        name: id of the collector, at most 32 letters; a new one by default.
    """

    def __init__(self, learner: LearnerAddress, config: WorkerConfig, name: str = "") -> None:
        self._learner, self._config = learner, config
        self._name = name or uuid.uuid4().hex
        self._ends, self._stop = threading.Event(), make_stop_flag()

    def __repr__(self) -> str:
        return self._name  # Ray shows it in front of the messages of an actor

    def end(self) -> None:
        """Let `play` return soon; for other threads."""
        self._ends.set()

    def wait(self, timeout_s: float) -> None:
        """Wait for `end`, or a time; for other threads."""
        self._ends.wait(timeout_s)

    def play(self) -> None:
        """Play until `end`, an error or Ctrl-C.

        Raises:
            UserError: if the learner refuses this worker, or the collector cannot play.
        """
        description = self._wait_for_learner()
        if description is None:
            return
        with tempfile.TemporaryDirectory(prefix="trackmania_rl_worker_") as folder:  # tracks, and state of games
            supervisor = CollectorSupervisor(self._setup(description, Path(folder)))
            try:
                supervisor.start()
                while not self._ends.wait(POLL_S):
                    supervisor.check()
            finally:
                self._stop.value = True
                supervisor.stop()

    def _wait_for_learner(self) -> pb.Description | None:
        """Return the learner's description of its run as soon as it answers; None at the end."""
        is_first = True
        while not self._ends.is_set():
            try:
                return self._learner.describe()
            except grpc.RpcError as error:
                if (refusal := self._learner.refusal(error)) is not None:
                    raise refusal from None
                if is_first:
                    log_away(self._learner, details_of(error))
                is_first = False
            self._ends.wait(RETRY_S)
        return None

    def _setup(self, description: pb.Description, folder: Path) -> CollectorSetup:
        """Return the setup of the collector.

        Raises:
            UserError: if the run cannot be played here.
        """
        config = self._config
        settings = config.settings_of(description.settings)
        if settings.sync.is_synchronous:
            raise UserError("the learner's run has synchronous sampling, which is for one machine")
        if settings.game.game != "simulated" and not settings.game.games_are_kept:
            put_plugin_in_place(settings.user.trackmania_base_path)
        spaces = config.games(settings).spaces
        network = config.agent(settings, spaces, SeedTree(settings.run.seed)).make_network()
        maps_folder = config.maps_folder(settings)
        machine = WorkerSide(
            settings_of=config.settings_of,
            settings=settings,
            facts=over_grpc.fingerprint(settings, spaces, network, maps_folder),
            maps_folder=maps_folder,
            folder=folder,
            frames_shape=frames_shape(settings.game.most_states, spaces),
            weights_bytes=packed(network).numel(),
        )
        machine.require_playable(description)

        def open_collector(_: int) -> tuple[RolloutSink, RunState]:
            learner = RemoteLearner(self._learner, self._name, machine, self._stop, SPAWN.RawValue(Heartbeat))
            return learner, learner

        return CollectorSetup(
            n_collectors=1,
            session=uuid.uuid4().hex,
            open_collector=open_collector,
            close_collector=lambda _: None,
            progress={},  # the collector gets it from the learner
            maps_folder=maps_folder,
            folder=folder,
            games=config.games,
            agent=config.agent,
            demonstrations=config.demonstrations,
        )
