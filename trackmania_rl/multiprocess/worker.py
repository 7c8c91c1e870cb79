"""A worker: a collector on any machine, whose learner is reached by one outgoing connection; `scripts/worker.py`.

The collector is a supervised process with the usual channels. This process is their other end: it keeps finished races
on disk (`Spool`), sends them, and publishes the news of the run. While the learner is away the games are played until
the spool is full.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import queue
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import torch
from filelock import FileLock, Timeout
from pydantic import ValidationError

from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.channels import over_grpc
from trackmania_rl.channels.over_grpc import (
    MOST_SETUP_BYTES,
    Description,
    Join,
    Joined,
    MessageError,
    News,
    decode,
    encode,
)
from trackmania_rl.channels.protocols import ROLLOUT_SLOTS_PER_COLLECTOR, WEIGHTS_KINDS, Channels, ReceivedRollout
from trackmania_rl.channels.shared_memory.run_state import open_channels
from trackmania_rl.doctor.findings import Check, Finding, ok, problem
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.files import read_bounded, write_durably
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.multiprocess.collector_process import CollectorTask
from trackmania_rl.multiprocess.collectors import (
    COLLECTOR_POLICY,
    ENDS_WITHIN_S,
    CollectorJob,
    Placement,
    stop_collectors,
)
from trackmania_rl.multiprocess.supervisor import Supervisor
from trackmania_rl.parts import load_part
from trackmania_rl.places import program_version
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, UserSettings
from trackmania_rl.settings.groups import DEFAULTS, NEEDS_RESTART, groups
from trackmania_rl.settings.loading import changed_settings, parse_override
from trackmania_rl.tmi_interaction.launchers.plugin_files import put_plugin_in_place
from trackmania_rl.training.driver_loading import code_of_driver, names_in, require_known_code

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 30.0
"""Backoff of connections."""
ANSWERS_WITHIN_S: Final = 20.0
POLL_S: Final = 0.1
WAIT_S: Final = 0.01
MOST_UNACKNOWLEDGED: Final = 2 * ROLLOUT_SLOTS_PER_COLLECTOR
"""Races on their way to the learner; beyond it the collector waits, so that races do not grow old."""
OF_MACHINE: Final = ("n_collectors", "maps_folder", "base_tmi_port", "demonstrations", "offline")
"""Settings that a worker does not take from its learner."""
OF_COLLECTOR: Final = ("game", "observation", "agent", "sync")
"""Groups of settings that a running collector depends on."""
Code = grpc.StatusCode
REFUSALS: Final = (Code.UNAUTHENTICATED, Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
"""Codes that a further attempt does not change."""


@dataclass(frozen=True)
class Server:
    """Address of a learner, `https://HOST:PORT`, or `http://` without TLS.

    Attributes:
        token: that the learner asks for; empty for none.
        certificate: PEM certificate to trust; None for the system's authorities.
    """

    address: str
    token: str = field(default="", repr=False)
    certificate: bytes | None = field(default=None, repr=False)

    @classmethod
    def of_command(cls, address: str, token: str, certificate: Path | None, is_insecure: bool) -> Server:
        """Return the server by the options of a command line.

        Raises:
            UserError: if the address is none, or is beyond loopback without TLS, or the file cannot be read.
        """
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.port or parts.path.strip("/"):
            raise UserError(f"--connect {address}: write https://HOST:PORT")
        if parts.scheme == "http" and not is_insecure and not over_grpc.is_loopback(parts.hostname or ""):
            raise UserError(f"--connect {address} sends the token without TLS: write https://, or ask for --insecure")
        pem = bytes(read_bounded(certificate, over_grpc.MOST_PEM_BYTES)) if certificate else None
        return cls(address, token, pem)

    @contextlib.contextmanager
    def call(self, requests: Iterator[bytes]) -> Iterator[tuple[Description, Any]]:
        """Open a call; yield its first message and the call, an iterator over the others.

        Raises:
            grpc.RpcError: if there is no answer.
        """
        parts = urlsplit(self.address)
        options = (*over_grpc.OPTIONS, ("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0))
        if parts.scheme == "https":
            channel = grpc.secure_channel(parts.netloc, grpc.ssl_channel_credentials(self.certificate), options)
        else:
            channel = grpc.insecure_channel(parts.netloc, options)
        metadata = ((over_grpc.TOKEN, self.token), (over_grpc.VERSION, program_version()))
        with channel:
            call = channel.stream_stream(f"/{over_grpc.SERVICE}/{over_grpc.METHOD}")(requests, metadata=metadata)
            timer = threading.Timer(ANSWERS_WITHIN_S, call.cancel)
            timer.start()
            try:
                first = next(call)
                timer.cancel()
                yield decode(first, Description, MOST_SETUP_BYTES)[0], call
            finally:
                timer.cancel()
                call.cancel()

    def refusal(self, error: grpc.RpcError) -> UserError | None:
        """Return the error of a call that a further attempt does not mend; None for others."""
        details = details_of(error)
        if error.code() in REFUSALS:
            return UserError(f"{self.address} refuses this worker: {details}")
        if any(word in details.lower() for word in ("ssl", "tls", "certificate")):
            return UserError(
                f"{self.address}: no TLS connection ({details}): is --certificate the learner's one, made for this "
                "host name, and does the learner serve https?"
            )
        return None


def details_of(error: grpc.RpcError) -> str:
    """Return the text of a call's error in one line."""
    return " ".join(str(error.details()).split())[:300]


def check_server(server: Server) -> Iterator[Finding]:
    """Yield findings on a learner from the worker's side: the round trip, and the first answer."""
    parts = urlsplit(server.address)
    try:
        began_s = time.monotonic()
        with socket.create_connection((parts.hostname or "", parts.port or 0), ANSWERS_WITHIN_S):
            round_trip_ms = 1000 * (time.monotonic() - began_s)
        with server.call(iter(())) as (description, _):
            how = f"{'a' if server.token else 'no'} token, round trip {round_trip_ms:.1f} ms"
            yield ok(Check.LEARNER, f"{server.address} serves run {description.run} to this worker: {how}")
    except (OSError, grpc.RpcError, MessageError) as error:
        refusal = server.refusal(error) if isinstance(error, grpc.RpcError) else None
        text = f"{server.address} does not answer ({one_line(error, 100)}): is train.py --workers running there?"
        yield problem(Check.LEARNER, refusal or text)


class Spool:
    """Races on disk that the learner has not acknowledged, one file each.

    Args:
        folder: of the worker; a lock keeps other workers out.
        most_bytes: bound while there is no connection.

    Attributes:
        worker: the worker's id, made once for a folder.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._run_file, self._most_bytes = folder / "races", folder / "run", most_bytes
        self._changed = threading.Condition()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(folder / "lock")
            self.lock.acquire(blocking=False)
            if not (id_file := folder / "id").is_file():
                write_durably(id_file, uuid.uuid4().hex)
            self.worker = id_file.read_text().strip()
            self._races = {int(file.stem.partition("-")[0]): file for file in sorted(self._folder.glob("*-*.race"))}
            self._n_bytes = sum(file.stat().st_size for file in self._races.values())
        except Timeout as error:
            raise PassingError(f"{folder} is in use by another worker: give this one its own --folder") from error
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be used by a worker: {one_line(error)}; name another --folder") from error

    def begin(self, run: str, received: int) -> int:
        """Keep the races of this run only; return the number of the newest race, at least `received`."""
        if not self._run_file.is_file() or self._run_file.read_text() != run:
            if self._races:
                log.warning("%d races of another run are removed from %s", len(self._races), self._folder)
            self.acknowledge(max(self._races, default=0))
            write_durably(self._run_file, run)
        return max(self._races, default=received)

    def is_full(self, is_connected: bool, least_actions: int) -> bool:
        """Return whether the collector waits: for acknowledgements, or without a connection for the learner."""
        if not is_connected:
            return self._n_bytes >= self._most_bytes
        with self._changed:
            n_actions = sum(map(_n_actions, self._races.values()))
            return len(self._races) >= MOST_UNACKNOWLEDGED and n_actions >= least_actions

    def add(self, sequence: int, n_actions: int, message: bytes) -> None:
        """Add a race."""
        file = self._folder / f"{sequence:012}-{n_actions}.race"
        temporary = self._folder / "next"
        temporary.write_bytes(message)
        temporary.replace(file)
        with self._changed:
            self._races[sequence] = file
            self._n_bytes += len(message)
            self._changed.notify_all()

    def acknowledge(self, sequence: int) -> None:
        """Remove the races up to a number."""
        with self._changed:
            for number in [number for number in self._races if number <= sequence]:
                file = self._races.pop(number)
                with contextlib.suppress(OSError):
                    self._n_bytes -= file.stat().st_size
                    file.unlink()

    def after(self, sequence: int, least_actions: int, timeout_s: float) -> dict[int, Path]:
        """Return the races after a number, once they have `least_actions` in all; none after the time-out."""

        def waiting() -> dict[int, Path]:
            return {number: file for number, file in self._races.items() if number > sequence}

        with self._changed:
            are_enough = self._changed.wait_for(
                lambda: sum(map(_n_actions, waiting().values())) >= least_actions, timeout_s
            )
            return waiting() if are_enough else {}


def _n_actions(race: Path) -> int:
    return int(race.stem.partition("-")[2])


@dataclass(frozen=True)
class Machine:
    """A worker's own machine."""

    folder: Path  # of the spool, generated tracks and live state
    project_folder: Path  # holds the maps
    user: UserSettings
    overrides: Sequence[str] = ()  # settings such as base_tmi_port=8500
    code: Collection[str] = ()  # modules that a run may name besides the shipped ones

    def settings_of(self, run: Mapping[str, Any]) -> Settings:
        """Return a run's settings, sent as JSON, on this machine.

        Raises:
            UserError: if they are not valid here, or name code that neither ships nor is allowed.
        """
        values: Any = {**run, "user": self.user.model_dump()}
        own = {name: DEFAULTS[name] for name in OF_MACHINE}
        own |= dict(map(parse_override, self.overrides))
        try:
            for group in values.values():
                group |= {name: value for name, value in own.items() if name in group}
            settings = Settings.model_validate_json(json.dumps(values))
        except (ValidationError, TypeError) as error:
            raise UserError(f"the learner's settings cannot be used here: {one_line(error)}") from error
        compressors = [("sample_compressor", name) for name in names_in(settings.sync.sample_compressor)]
        require_known_code([*code_of_driver(settings), *compressors], self.code, "the learner's run")
        return settings


class Worker:
    """Supervisor of one collector, whose races are sent and whose news are received by a thread."""

    def __init__(self, server: Server, machine: Machine, spool: Spool) -> None:
        self._server, self._machine, self._spool = server, machine, spool
        self._run: _Run | None = None
        self._is_connected = False
        self._ends = threading.Event()
        self._error: Exception | None = None

    def play(self) -> None:
        """Play until an error or Ctrl-C.

        Raises:
            UserError: if the learner refuses this worker, or the collector cannot play.
        """
        thread = threading.Thread(target=self._stay_connected, name="connection", daemon=True)
        thread.start()
        try:
            while (run := self._run) is None or not run.has_weights.is_set():
                self._check_connection(POLL_S)
            self._supervise(run)
        finally:
            self._ends.set()
            thread.join(ENDS_WITHIN_S)

    def _check_connection(self, wait_s: float) -> None:
        self._ends.wait(wait_s)
        if self._error is not None:
            raise self._error

    def _supervise(self, run: _Run) -> None:
        """Keep the collector running, and its races on disk."""
        rollouts = run.channels.rollouts
        with Placement(rollouts) as placement:
            job = CollectorJob(0, run.make_task, placement, run.channels)
            supervisor = Supervisor([job], COLLECTOR_POLICY)
            try:
                supervisor.start()
                while True:
                    is_full = self._spool.is_full(self._is_connected, run.least_actions)
                    self._check_connection(WAIT_S if is_full else 0.0)
                    supervisor.check()
                    if not is_full and (rollout := rollouts.get(POLL_S)) is not None:
                        with rollout:
                            run.keep(rollout)
                        job.n_delivered += 1
            finally:
                stop_collectors([job], run.channels)
                rollouts.close()

    def _stay_connected(self) -> None:
        """Connect, again and again with backoff, until the worker ends or is refused."""
        delay_s = FIRST_DELAY_S
        while not self._ends.is_set():
            began_s, why = time.monotonic(), "it has ended the call"
            try:
                self._talk()
            except grpc.RpcError as error:
                why, self._error = details_of(error), self._server.refusal(error)
            except Exception as error:  # raised in the main thread
                self._error = error
            if self._error is not None:
                return
            if time.monotonic() - began_s > LONGEST_DELAY_S:
                delay_s = FIRST_DELAY_S
            log.warning("the learner at %s is away (%s); next attempt in %.0f s", self._server.address, why, delay_s)
            self._ends.wait(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _talk(self) -> None:
        """Make one call, until it ends."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()  # a join, the number of the last race received
        try:
            with self._server.call(self._outgoing(answers)) as (description, call):
                self._run = run = self._run or _Run(description, self._machine, self._spool)
                answers.put(run.join(description))
                joined, _ = decode(next(call), Joined, MOST_SETUP_BYTES)
                run.begin(joined)
                answers.put(joined.received)
                self._is_connected = True
                log.info("connected to %s, run %s", self._server.address, description.run)
                for message in call:
                    run.receive(message)
        finally:
            self._is_connected = False
            answers.put(None)
            answers.put(None)

    def _outgoing(self, answers: queue.SimpleQueue[Any]) -> Iterator[bytes]:
        """Yield the messages of one call: the answer to the learner, then races."""
        if (join := answers.get()) is None or self._run is None:
            return
        yield join
        sent = answers.get()
        while sent is not None and answers.empty():
            for number, file in self._spool.after(sent, self._run.least_actions, POLL_S).items():
                sent = number
                with contextlib.suppress(FileNotFoundError):  # acknowledged meanwhile
                    yield file.read_bytes()


class _Run:
    """The learner's run on this machine: channels to the collector, and the collector's task.

    Raises:
        UserError: if the run cannot be played here.
    """

    channels: Channels

    def __init__(self, description: Description, machine: Machine, spool: Spool) -> None:
        self.has_weights = threading.Event()
        self._machine, self._spool, self._name = machine, spool, ""
        self._settings = settings = machine.settings_of(description.settings)
        if settings.game.game != "simulated" and not settings.game.games_are_kept:
            put_plugin_in_place(settings.user.trackmania_base_path)
        self._maps_folder = machine.project_folder / settings.game.maps_folder
        self._spaces = make_games_builder(settings).spaces
        network = make_agent_builder(settings, self._spaces, SeedTree(settings.run.seed)).make_network()
        self._uncompiled_shared_networks = {kind: copy.deepcopy(network) for kind in WEIGHTS_KINDS}
        self._networks = {kind: copy.deepcopy(network) for kind in WEIGHTS_KINDS}  # the newest weights
        self._compress = load_part(settings.sync.sample_compressor, "sample_compressor")
        self._progress, self._sequence = CollectorProgress(), 0
        self._n_starts: Counter[int] = Counter()  # by the number of the race before

    @property
    def least_actions(self) -> int:
        """Actions of the races that are sent together."""
        return self._settings.sync.min_samples_per_worker_packet

    def join(self, description: Description) -> bytes:
        """Return the answer to a description.

        Raises:
            UserError: if the learner has another run now.
        """
        settings = self._here(description.settings)
        shaping = {name for group in OF_COLLECTOR for name in groups()[group].model_fields} & NEEDS_RESTART
        if changed := sorted(changed_settings(self._settings, settings).keys() & shaping):
            raise UserError(
                f"the learner's run has other settings than before ({', '.join(changed)}): start this worker again"
            )
        facts = over_grpc.fingerprint(settings, self._spaces, self._networks["exploration"], self._maps_folder)
        self._run_name = f"{description.run} {facts['observation']} {facts['network']}"
        return encode(Join(worker=self._spool.worker, fingerprint=facts))

    def begin(self, joined: Joined) -> None:
        """Take the worker's place in the run, at the first call."""
        if not self._name:
            self._name, self._progress = joined.name, CollectorProgress.of_state(joined.progress)
            self._sequence = self._spool.begin(self._run_name, joined.received)
            self._settings = _with_seed(self._settings, joined.seed)
            self.channels = open_channels(self._settings, self._spaces, self._uncompiled_shared_networks)

    def receive(self, message: bytes) -> None:
        """Publish news of the run to the collector, and remove acknowledged races."""
        news, arrays = decode(message, News, over_grpc.MOST_WEIGHTS_BYTES)
        run_state = self.channels.run_state
        for kind in news.versions:
            network = self._networks[kind]
            flatten_parameters(network).copy_(torch.from_numpy(arrays[kind]))
            run_state.publish(weights={kind: network})
            self.has_weights.set()
        if news.settings is not None:
            self._settings = self._here(news.settings)
            run_state.publish(settings=self._settings)
        run_state.publish(frames_total=news.frames_total)
        self._spool.acknowledge(news.acknowledged)

    def keep(self, rollout: ReceivedRollout) -> None:
        """Write a race of the collector to disk, to be sent.

        Raises:
            PassingError: if there is no room on the disk.
        """
        if rollout.position is not None:
            self._progress = self._progress.after(rollout.position)
        self._sequence += 1
        message = over_grpc.encode_race(rollout, self._sequence, self._compress)
        try:
            self._spool.add(self._sequence, len(rollout.rollout_results["actions"]), message)
        except OSError as error:
            raise PassingError(f"{self._machine.folder} takes no more races: {error.strerror}") from error

    def make_task(self, index: int) -> CollectorTask:
        """Make the task of the collector's next start."""
        self._n_starts[self._sequence] += 1
        return CollectorTask(
            index=index,
            name=f"{self._name}/start-{self._n_starts.total()}",
            maps_folder=self._maps_folder,
            tracks_folder=self._machine.folder / "generated_tracks",
            live_folder=self._machine.folder / "live",
            rollouts=self.channels.rollouts.open_collector(index),
            run_state=self.channels.run_state,
            make_games_builder=make_games_builder,
            make_agent_builder=make_agent_builder,
            progress=self._progress,
            n_starts_before=self._n_starts[self._sequence] - 1,
        )

    def _here(self, settings: Mapping[str, Any]) -> Settings:
        return _with_seed(self._machine.settings_of(settings), self._settings.run.seed)


def _with_seed(settings: Settings, seed: int) -> Settings:
    return settings.model_copy(update={"run": settings.run.model_copy(update={"seed": seed})})
