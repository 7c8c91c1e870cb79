"""A worker: a collector on any machine, whose learner is reached by one outgoing connection; `scripts/worker.py`.

The collector is a supervised process with the usual channels. This process is their other end: it keeps finished races
on disk (`Spool`), sends them, and publishes the news of the run. While the learner is away the games are played until
the spool is full.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import logging
import queue
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import torch
from filelock import FileLock, Timeout
from pydantic import ValidationError

from trackmania_rl.agents.builder import MakeAgentBuilder, make_agent_builder
from trackmania_rl.agents.weights import unpack
from trackmania_rl.channels import over_grpc
from trackmania_rl.channels.over_grpc import MOST_SETUP_BYTES, Description, MessageError, News, decode
from trackmania_rl.channels.rollouts import POLL_S, ROLLOUT_SLOTS_PER_COLLECTOR
from trackmania_rl.channels.run_state import WEIGHTS_KINDS, open_channels
from trackmania_rl.cli import is_loopback
from trackmania_rl.doctor.findings import Check, Finding, ok, problem
from trackmania_rl.drivers.loading import code_of_driver, names_in, require_known_code
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.files import write_durably
from trackmania_rl.games.race_games import MakeGamesBuilder, make_games_builder
from trackmania_rl.multiprocess.collectors import CollectorSetup, CollectorSupervisor
from trackmania_rl.parts import load_part
from trackmania_rl.paths import program_version
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.race.race import Race
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, UserSettings
from trackmania_rl.settings.groups import DEFAULTS, NEEDS_RESTART, groups
from trackmania_rl.settings.loading import changed_settings, parse_override
from trackmania_rl.tmi_interaction.launchers.plugin_files import put_plugin_in_place
from trackmania_rl.training.demonstrations import Demonstration

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 30.0
"""Backoff of connections."""
ANSWERS_WITHIN_S: Final = 20.0
WAIT_S: Final = 0.01
PACKET_EVERY_S: Final = 0.02
MOST_UNDER_WAY: Final = ROLLOUT_SLOTS_PER_COLLECTOR
MOST_ACTIONS_UNDER_WAY: Final = 1_000
"""With so many races and actions under way or in the learner's queue the collector waits, as a local one does."""
OF_MACHINE: Final = ("n_collectors", "maps_folder", "base_tmi_port", "demonstrations", "offline")
"""Settings that a worker does not take from its learner."""
OF_COLLECTOR: Final = ("game", "observation", "agent", "sync")
"""Groups of settings that a running collector depends on."""
Code = grpc.StatusCode
REFUSALS: Final = (Code.UNAUTHENTICATED, Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT)
"""Codes that a further attempt does not change."""


@dataclass(frozen=True)
class LearnerAddress:
    """Address of a learner, `https://HOST:PORT`, or `http://` without TLS.

    Attributes:
        token: that the learner asks for; empty for none.
        certificate: PEM certificate to trust; None for the system's authorities.
    """

    address: str
    token: str = field(default="", repr=False)
    certificate: bytes | None = field(default=None, repr=False)

    @classmethod
    def of_command(cls, address: str, token: str, certificate: Path | None, is_insecure: bool) -> LearnerAddress:
        """Return the address by the options of a command line.

        Raises:
            UserError: if the address is none, or is beyond loopback without TLS, or the file cannot be read.
        """
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.port or parts.path.strip("/"):
            raise UserError(f"--connect {address}: write https://HOST:PORT")
        if parts.scheme == "http" and not is_insecure and not is_loopback(parts.hostname or ""):
            raise UserError(f"--connect {address} sends the token without TLS: write https://, or ask for --insecure")
        return cls(address, token, over_grpc.read_pem(certificate) if certificate else None)

    @contextlib.contextmanager
    def call(self, requests: Iterator[bytes], worker: str = "") -> Iterator[tuple[Description, Any]]:
        """Open a call; yield its first message and the call, an iterator over the others.

        Without the id of a `worker` there are no others.

        Raises:
            grpc.RpcError: if there is no answer.
        """
        parts = urlsplit(self.address)
        options = (*over_grpc.OPTIONS, ("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0))
        if parts.scheme == "https":
            channel = grpc.secure_channel(parts.netloc, grpc.ssl_channel_credentials(self.certificate), options)
        else:
            channel = grpc.insecure_channel(parts.netloc, options)
        metadata = (
            (over_grpc.TOKEN, self.token),
            (over_grpc.VERSION, program_version()),
            (over_grpc.WORKER, worker),
        )
        with channel:
            call = channel.stream_stream(f"/{over_grpc.SERVICE}/{over_grpc.METHOD}")(requests, metadata=metadata)
            try:
                yield decode(next(call), Description, MOST_SETUP_BYTES)[0], call
            finally:
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


def check_learner(learner: LearnerAddress) -> Iterator[Finding]:
    """Yield findings on a learner from the worker's side: the round trip, and the first answer."""
    parts = urlsplit(learner.address)
    try:
        began_s = time.monotonic()
        with socket.create_connection((parts.hostname or "", parts.port or 0), ANSWERS_WITHIN_S):
            round_trip_ms = 1000 * (time.monotonic() - began_s)
        with learner.call(iter(())) as (description, _):
            how = f"{'a' if learner.token else 'no'} token, round trip {round_trip_ms:.1f} ms"
            yield ok(Check.LEARNER, f"{learner.address} serves run {description.run} to this worker: {how}")
    except (OSError, grpc.RpcError, MessageError) as error:
        refusal = learner.refusal(error) if isinstance(error, grpc.RpcError) else None
        text = f"{learner.address} does not answer ({one_line(error, 100)}): is train.py --workers running there?"
        yield problem(Check.LEARNER, refusal or text)


class Spool:
    """Finished races of one run on disk, until a checkpoint of the learner holds them.

    Args:
        folder: of this worker alone.
        most_bytes: bound, beyond which races that the learner has taken are removed; without a connection the collector
            waits then.
        worker: the worker's id; made once for a folder by default.

    Attributes:
        worker: the worker's id.
        taken: number of the newest race that the learner has taken from its queue.
    """

    def __init__(self, folder: Path, most_bytes: int, worker: str = "") -> None:
        self._folder, self._run_file, self._most_bytes = folder / "races", folder / "run", most_bytes
        self._lock = threading.Lock()
        self._races: dict[int, Path] = {}
        self._n_bytes = self.taken = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.lock_file = FileLock(folder / "lock")
            self.lock_file.acquire(blocking=False)
            if not (id_file := folder / "id").is_file():
                write_durably(id_file, worker or uuid.uuid4().hex)
            self.worker = id_file.read_text().strip()
            for file in sorted(self._folder.glob("*-*.race")):
                self._races[int(file.stem.partition("-")[0])] = file
                self._n_bytes += file.stat().st_size
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
        """Return whether the collector waits: for the learner to take races, or without a connection for room."""
        with self._lock:
            if not is_connected:
                return self._n_bytes >= self._most_bytes and next(iter(self._races)) > self.taken
            under_way = self._after(self.taken)
        n_actions = sum(map(_n_actions, under_way.values()))
        return len(under_way) >= MOST_UNDER_WAY and n_actions >= max(MOST_ACTIONS_UNDER_WAY, least_actions)

    def add(self, sequence: int, n_actions: int, message: bytes) -> None:
        """Add a race."""
        file, temporary = self._folder / f"{sequence:012}-{n_actions}.race", self._folder / "next"
        temporary.write_bytes(message)
        temporary.replace(file)
        with self._lock:
            self._races[sequence] = file
            self._n_bytes += len(message)
            while self._n_bytes > self._most_bytes and (oldest := next(iter(self._races))) <= self.taken:
                self._remove(oldest)

    def acknowledge(self, sequence: int) -> None:
        """Remove the races up to a number."""
        with self._lock:
            for number in [number for number in self._races if number <= sequence]:
                self._remove(number)

    def packet_after(self, sequence: int, least_actions: int) -> tuple[int, bytes]:
        """Return the races after a number as a packet, with the number of its last race.

        The packet is empty until these races have `least_actions` in all.
        """
        with self._lock:
            waiting = self._after(sequence)
        messages: list[bytes] = []
        if sum(map(_n_actions, waiting.values())) >= least_actions:
            for sequence, file in waiting.items():  # noqa: B007 (the last one is returned)
                messages.append(file.read_bytes())
                if sum(map(len, messages)) >= over_grpc.PACKET_BYTES:
                    break
        return sequence, over_grpc.join_messages(messages)

    def _after(self, sequence: int) -> dict[int, Path]:
        newest = itertools.takewhile(lambda number: number > sequence, reversed(self._races))
        return {number: self._races[number] for number in sorted(newest)}

    def _remove(self, number: int) -> None:
        file = self._races.pop(number)
        with contextlib.suppress(OSError):
            self._n_bytes -= file.stat().st_size
            file.unlink()


def _n_actions(race: Path) -> int:
    return int(race.stem.partition("-")[2])


@dataclass(frozen=True)
class WorkerConfig:
    """Folders, settings and parts of a worker on its own machine."""

    folder: Path  # of the spool, generated tracks and live state
    project_folder: Path  # holds the maps
    user: UserSettings
    overrides: Sequence[str] = ()  # settings such as base_tmi_port=8500
    code: Collection[str] | None = ()  # modules that a run may name besides the shipped ones; None for any
    games: MakeGamesBuilder = make_games_builder
    agent: MakeAgentBuilder = make_agent_builder
    demonstrations: tuple[Demonstration, ...] = ()

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
        if self.code is not None:
            compressors = [("sample_compressor", name) for name in names_in(settings.sync.sample_compressor)]
            require_known_code([*code_of_driver(settings), *compressors], self.code, "the learner's run")
        return settings


class Worker:
    """Supervisor of one collector, whose races are sent and whose news are received by a thread."""

    def __init__(self, learner: LearnerAddress, config: WorkerConfig, spool: Spool) -> None:
        self._learner, self._config, self._spool = learner, config, spool
        self._run: _Run | None = None
        self._is_connected = False
        self._ends = threading.Event()
        self._error: Exception | None = None

    def end(self) -> None:
        """Let `play` return soon; for other threads."""
        self._ends.set()

    def play(self) -> None:
        """Play until `end`, an error or Ctrl-C.

        Raises:
            UserError: if the learner refuses this worker, or the collector cannot play.
        """
        thread = threading.Thread(target=self._stay_connected, name="connection", daemon=True)
        thread.start()
        try:
            while (run := self._run) is None or not run.has_weights:
                if not self._is_to_play(POLL_S):
                    return
            self._supervise(run)
        finally:
            self._ends.set()
            thread.join(over_grpc.CONNECTION_ENDS_WITHIN_S)

    def _is_to_play(self, wait_s: float) -> bool:
        """Wait for the end. Raise the error of the connection."""
        ends = self._ends.wait(wait_s)
        if self._error is not None:
            raise self._error
        return not ends

    def _supervise(self, run: _Run) -> None:
        """Keep the collector running, and its races on disk."""
        rollouts = run.channels.rollouts
        supervisor = CollectorSupervisor(run.collector_setup())
        try:
            supervisor.start()
            is_full = False
            while self._is_to_play(WAIT_S if is_full else 0.0):
                supervisor.check()
                if not is_full and (race := rollouts.get(POLL_S)) is not None:
                    with race:
                        run.keep(race)
                    supervisor.jobs[0].n_delivered += 1
                is_full = self._spool.is_full(self._is_connected, run.least_actions)
        finally:
            supervisor.stop()
            rollouts.close()

    def _stay_connected(self) -> None:
        """Connect, again and again with backoff, until the worker ends or is refused."""
        delay_s = FIRST_DELAY_S
        while not self._ends.is_set():
            began_s, why = time.monotonic(), "it has ended the call"
            try:
                self._talk()
            except grpc.RpcError as error:
                why, self._error = details_of(error), self._learner.refusal(error)
            except Exception as error:  # raised in the main thread
                self._error = error
            if self._error is not None:
                return
            if time.monotonic() - began_s > LONGEST_DELAY_S:
                delay_s = FIRST_DELAY_S
            log.warning("the learner at %s is away (%s); next attempt in %.0f s", self._learner.address, why, delay_s)
            self._ends.wait(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _talk(self) -> None:
        """Make one call, until it ends."""
        received: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # the learner's newest race; None at the end
        try:
            with self._learner.call(self._packets(received), self._spool.worker) as (description, call):
                if (run := self._run) is None:
                    self._run = run = _Run(description, self._config, self._spool)
                else:
                    run.check(description)
                self._spool.taken = description.received
                received.put(description.received)
                self._is_connected = True
                log.info("connected to %s, run %s", self._learner.address, description.run)
                for message in call:
                    run.receive(message)
        finally:
            self._is_connected = False
            received.put(None)

    def _packets(self, received: queue.SimpleQueue[int | None]) -> Iterator[bytes]:
        """Yield the packets of one call, at intervals."""
        sent = received.get()
        while sent is not None and self._run is not None and received.empty():
            time.sleep(PACKET_EVERY_S)
            sent, packet = self._spool.packet_after(sent, self._run.least_actions)
            if packet:
                yield packet


class _Run:
    """The learner's run on this machine: channels to the collector, and the collector's task.

    Raises:
        UserError: if the run cannot be played here.
    """

    def __init__(self, description: Description, config: WorkerConfig, spool: Spool) -> None:
        self.has_weights = False
        self._config, self._spool, self._name = config, spool, description.name
        self._settings = settings = config.settings_of(description.settings)
        if settings.game.game != "simulated" and not settings.game.games_are_kept:
            put_plugin_in_place(settings.user.trackmania_base_path)
        self._maps_folder = config.project_folder / settings.game.maps_folder
        self._spaces = config.games(settings).spaces
        self._network = config.agent(settings, self._spaces, SeedTree(settings.run.seed)).make_network()
        self._compress = load_part(settings.sync.sample_compressor, "sample_compressor")
        self._progress = {0: CollectorProgress.of_state(description.progress)}
        self.check(description)
        run = f"{description.run} {description.facts['observation']} {description.facts['network']}"
        self._sequence = spool.begin(run, description.received)
        networks = {kind: copy.deepcopy(self._network) for kind in WEIGHTS_KINDS}
        self.channels = open_channels(settings, self._spaces, uncompiled_shared_networks=networks)

    @property
    def least_actions(self) -> int:
        """Actions of the races that are sent together."""
        return self._settings.sync.min_samples_per_worker_packet

    def check(self, description: Description) -> None:
        """Check that this is still the learner's run, and that the machines share the facts about it.

        Raises:
            UserError: if they differ.
        """
        settings = self._config.settings_of(description.settings)
        shaping = {name for group in OF_COLLECTOR for name in groups()[group].model_fields} & NEEDS_RESTART
        if changed := sorted(changed_settings(self._settings, settings).keys() & (shaping | {"run_name"})):
            raise UserError(
                f"the learner's run has other settings than before ({', '.join(changed)}): start this worker again"
            )
        own = over_grpc.fingerprint(settings, self._spaces, self._network, self._maps_folder)
        over_grpc.require_same(description.facts, own)

    def receive(self, message: bytes) -> None:
        """Publish news of the run to the collector, and remove acknowledged races."""
        news, arrays = decode(message, News, over_grpc.MOST_WEIGHTS_BYTES)
        run_state = self.channels.run_state
        for kind in news.versions:
            unpack(torch.from_numpy(arrays[kind]), self._network)
            run_state.publish(weights={kind: self._network})
            self.has_weights = True
        if news.settings is not None:
            self._settings = self._config.settings_of(news.settings)
            run_state.publish(settings=self._settings)
        run_state.publish(frames_total=news.frames_total)
        self._spool.taken = max(self._spool.taken, news.taken)  # 0 in news of weights
        self._spool.acknowledge(news.acknowledged)

    def keep(self, race: Race) -> None:
        """Write a race of the collector to disk, to be sent.

        Raises:
            PassingError: if there is no room on the disk.
        """
        if race.facts.position is not None:
            self._progress[0] = self._progress[0].after(race.facts.position)
        self._sequence += 1
        message = over_grpc.encode_race(race, self._sequence, self._compress)
        try:
            self._spool.add(self._sequence, race.n_actions, message)
        except OSError as error:
            raise PassingError(f"{self._config.folder} takes no more races: {error.strerror}") from error

    def collector_setup(self) -> CollectorSetup:
        """Return the setup of the collector."""
        config = self._config
        return CollectorSetup(
            n_collectors=1,
            session=self._name,
            channels=self.channels,
            progress=self._progress,
            maps_folder=self._maps_folder,
            folder=config.folder,
            games=config.games,
            agent=config.agent,
            demonstrations=config.demonstrations,
        )
