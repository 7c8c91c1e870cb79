"""A worker: a collector on any machine, whose learner is reached by one outgoing connection; `scripts/worker.py`.

The collector is a supervised process of this machine with the usual channels. This process is their other end: it
keeps finished races on disk (`Spool`), sends them over gRPC, and publishes the news of the run here. While the learner
is away the games are played until the spool is full.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
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
from trackmania_rl.channels.messages import (
    Description,
    Join,
    Joined,
    News,
    decode,
    encode,
    encode_race,
    fingerprint,
)
from trackmania_rl.channels.over_grpc import (
    METHOD,
    MOST_PEM_BYTES,
    MOST_SETUP_BYTES,
    OPTIONS,
    SERVICE,
    TOKEN,
    VERSION,
    is_loopback,
)
from trackmania_rl.channels.protocols import ROLLOUT_SLOTS_PER_COLLECTOR, WEIGHTS_KINDS, Channels, ReceivedRollout
from trackmania_rl.channels.shared_memory.run_state import open_channels
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.files import read_bounded, write_durably
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.multiprocess.collector_process import CollectorTask
from trackmania_rl.multiprocess.collectors import COLLECTOR_POLICY, ENDS_WITHIN_S, CollectorJob, Placement
from trackmania_rl.multiprocess.supervisor import Supervisor
from trackmania_rl.parts import load_part
from trackmania_rl.places import MAPS, program_version
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, UserSettings
from trackmania_rl.settings.groups import NEEDS_RESTART
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
REFUSALS: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
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
        if parts.scheme == "http" and not is_insecure and not is_loopback(parts.hostname or ""):
            raise UserError(f"--connect {address} sends the token without TLS: write https://, or ask for --insecure")
        return cls(address, token, bytes(read_bounded(certificate, MOST_PEM_BYTES)) if certificate else None)

    @contextlib.contextmanager
    def call(self, requests: Iterator[bytes]) -> Iterator[Any]:
        """Open a call and yield it: an iterator over messages. Its first one is due within `ANSWERS_WITHIN_S`."""
        parts = urlsplit(self.address)
        options = (*OPTIONS, ("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0))
        if parts.scheme == "https":
            credentials = grpc.ssl_channel_credentials(self.certificate)
            channel = grpc.secure_channel(parts.netloc, credentials, options)
        else:
            channel = grpc.insecure_channel(parts.netloc, options)
        with channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
                requests, metadata=((TOKEN, self.token), (VERSION, program_version()))
            )
            try:
                yield call
            finally:
                call.cancel()

    def describe(self, call: Any) -> Description:
        """Receive the first message of a call."""
        timer = threading.Timer(ANSWERS_WITHIN_S, call.cancel)
        timer.start()
        try:
            return decode(next(call), Description, MOST_SETUP_BYTES)[0]
        finally:
            timer.cancel()

    def refusal(self, error: grpc.RpcError) -> UserError | None:
        """Return the error of a call that a further attempt does not mend; None for others."""
        details = one_line(Exception(error.details()))
        if error.code() in REFUSALS:
            return UserError(f"{self.address} refuses this worker: {details}")
        if any(word in details.lower() for word in ("ssl", "tls", "certificate", "wrong_version")):
            return UserError(
                f"{self.address}: no TLS connection ({details}): is --certificate the learner's one, made for this "
                "host name, and does the learner serve https?"
            )
        return None


class Spool:
    """Races on disk that the learner has not acknowledged, one file each, up to a number of bytes.

    Args:
        folder: of the worker; a lock keeps other workers out.
        most_bytes: the spool is full beyond it.

    Attributes:
        worker: the worker's id, made once for a folder.
        changed: notified when a race is added or the connection ends.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder / "races", most_bytes
        self.changed = threading.Condition()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(folder / "lock")
            self.lock.acquire(blocking=False)
            self._id_file, self._run_file = folder / "id", folder / "run"
            if not self._id_file.is_file():
                write_durably(self._id_file, uuid.uuid4().hex)
            self.worker = self._id_file.read_text().strip()
            for file in self._folder.glob("*.tmp"):
                file.unlink()
            self._races = {int(file.name.partition("-")[0]): file for file in sorted(self._folder.glob("*-*.race"))}
            self._n_bytes = sum(file.stat().st_size for file in self._races.values())
        except Timeout as error:
            raise PassingError(f"{folder} is in use by another worker: give this one its own --folder") from error
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be used by a worker: {one_line(error)}; name another --folder") from error

    def begin(self, run: str, received: int) -> int:
        """Keep the races of this run that the learner has not received; return the number of the newest race."""
        if not self._run_file.is_file() or self._run_file.read_text() != run:
            if self._races:
                log.warning("%d races of another run are removed from %s", len(self._races), self._folder)
            self.acknowledge(max(self._races, default=0))
            write_durably(self._run_file, run)
        return max(self._races, default=received)

    def is_full(self, is_connected: bool, least_actions: int) -> bool:
        """Return whether the collector waits: until races are acknowledged, or without a connection for good."""
        if not is_connected:
            return self._n_bytes >= self._most_bytes
        return len(self._races) >= MOST_UNACKNOWLEDGED and sum(map(_n_actions, self._races.values())) >= least_actions

    def add(self, sequence: int, n_actions: int, message: bytes) -> None:
        """Add a race."""
        file = self._folder / f"{sequence:012}-{n_actions}.race"
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(message)
        temporary.replace(file)
        with self.changed:
            self._races[sequence] = file
            self._n_bytes += len(message)
            self.changed.notify_all()

    def acknowledge(self, sequence: int) -> None:
        """Remove the races up to a number."""
        with self.changed:
            for number in [number for number in self._races if number <= sequence]:
                file = self._races.pop(number)
                with contextlib.suppress(OSError):
                    self._n_bytes -= file.stat().st_size
                    file.unlink()

    def after(self, sequence: int, least_actions: int, timeout_s: float) -> list[tuple[int, Path]]:
        """Return the races after a number, once they have `least_actions` in all; none after the time-out."""

        def waiting() -> list[tuple[int, Path]]:
            return [(number, file) for number, file in self._races.items() if number > sequence]

        def are_enough() -> bool:
            return sum(_n_actions(file) for _, file in waiting()) >= least_actions

        with self.changed:
            return waiting() if self.changed.wait_for(are_enough, timeout_s) else []


def _n_actions(race: Path) -> int:
    return int(race.stem.partition("-")[2])


@dataclass(frozen=True)
class Options:
    """Command line of a worker."""

    server: Server
    folder: Path
    project_folder: Path
    user: UserSettings  # of this machine
    overrides: Sequence[str] = ()  # settings of this machine, such as base_tmi_port=8500
    code: Collection[str] = ()  # modules that the run may name besides the shipped ones
    spool_bytes: int = 1 << 30


def own_settings(of_run: Mapping[str, Any], options: Options) -> Settings:
    """Return a run's settings on this machine.

    Raises:
        UserError: if they are not valid here, or name code that neither ships nor is allowed.
    """
    values: Any = {**of_run, "user": options.user.model_dump()}
    own = {
        "n_collectors": 1,
        "maps_folder": MAPS,
        "demonstrations": (),
        "offline": (),
        **dict(map(parse_override, options.overrides)),
    }
    try:
        for group in values.values():
            group |= {name: value for name, value in own.items() if name in group}
        settings = Settings.model_validate_json(json.dumps(values))
    except (ValidationError, TypeError, AttributeError) as error:
        raise UserError(f"the learner's settings cannot be used here: {one_line(error)}") from error
    compressors = [("sample_compressor", name) for name in names_in(settings.sync.sample_compressor)]
    require_known_code([*code_of_driver(settings), *compressors], options.code, "the learner's run")
    return settings


class Worker:
    """Supervisor of one collector, whose races are sent and whose news are received by a thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._spool = Spool(options.folder, options.spool_bytes)
        self._run: _Run | None = None
        self._ends = threading.Event()
        self._is_connected = False
        self._error: Exception | None = None

    def play(self) -> None:
        """Play until an error or Ctrl-C.

        Raises:
            UserError: if the learner refuses this worker, or the collector cannot play.
        """
        thread = threading.Thread(target=self._stay_connected, name="connection", daemon=True)
        thread.start()
        try:
            while (run := self._run) is None or not run.has_weights.wait(POLL_S):
                self._check_connection(POLL_S)
            self._supervise(run)
        finally:
            self._ends.set()
            thread.join(ENDS_WITHIN_S)

    def _check_connection(self, wait_s: float = 0.0) -> None:
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
                    least_actions = run.settings.sync.min_samples_per_worker_packet
                    is_full = self._spool.is_full(self._is_connected, least_actions)
                    self._check_connection(WAIT_S if is_full else 0.0)
                    supervisor.check()
                    if not is_full and (rollout := rollouts.get(POLL_S)) is not None:
                        with rollout:
                            run.keep(rollout)
                        job.n_delivered += 1
            finally:
                run.channels.run_state.publish(stop=True)
                if job.process is not None:
                    job.process.join(ENDS_WITHIN_S)
                job.end()
                rollouts.close()

    def _stay_connected(self) -> None:
        """Connect, again and again with backoff, until the worker ends or is refused."""
        delay_s = FIRST_DELAY_S
        while not self._ends.is_set():
            began_s, why = time.monotonic(), "it has ended the call"
            try:
                self._talk()
            except grpc.RpcError as error:
                why = one_line(Exception(error.details()))
                self._error = self._options.server.refusal(error)
            except Exception as error:  # raised in the main thread
                self._error = error
            if self._error is not None or self._ends.is_set():
                return
            if time.monotonic() - began_s > LONGEST_DELAY_S:
                delay_s = FIRST_DELAY_S
            address = self._options.server.address
            log.warning("the learner at %s is away (%s); the next attempt is in %.0f s", address, why, delay_s)
            self._ends.wait(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _talk(self) -> None:
        """Make one call, until it ends."""
        outgoing = _Outgoing(self._spool)
        try:
            with self._options.server.call(iter(outgoing)) as call:
                description = self._options.server.describe(call)
                self._run = run = self._run or _Run(description, self._options, self._spool)
                outgoing.first.put(encode(run.join(description)))
                joined, _ = decode(next(call), Joined, MOST_SETUP_BYTES)
                run.begin(joined)
                outgoing.least_actions = run.settings.sync.min_samples_per_worker_packet
                outgoing.first.put(joined.received)
                self._is_connected = True
                log.info("connected to %s, run %s", self._options.server.address, description.run)
                for message in call:
                    run.receive(message)
                    if self._ends.is_set():
                        return
        finally:
            self._is_connected = False
            outgoing.close()


class _Outgoing:
    """Messages of one call: the answer to the learner, then races from the spool."""

    least_actions = 1

    def __init__(self, spool: Spool) -> None:
        self.first: queue.SimpleQueue[Any] = queue.SimpleQueue()  # a `Join`, the number of the last race received
        self._spool = spool
        self._ends = False

    def close(self) -> None:
        self._ends = True
        self.first.put(None)
        self.first.put(None)

    def __iter__(self) -> Iterator[bytes]:
        if (join := self.first.get()) is None:
            return
        yield join
        sent = self.first.get()
        while not self._ends:
            for number, file in self._spool.after(sent, self.least_actions, POLL_S):
                sent = number
                with contextlib.suppress(FileNotFoundError):  # acknowledged meanwhile
                    yield file.read_bytes()


class _Run:
    """The learner's run on this machine: channels to the collector, and the collector's task.

    Raises:
        UserError: if the run cannot be played here.
    """

    channels: Channels

    def __init__(self, description: Description, options: Options, spool: Spool) -> None:
        self.has_weights = threading.Event()
        self._options, self._spool, self._name = options, spool, ""
        self.settings = settings = own_settings(description.settings, options)
        if settings.game.game != "simulated" and not settings.game.games_are_kept:
            put_plugin_in_place(settings.user.trackmania_base_path)
        self._maps_folder = options.project_folder / settings.game.maps_folder
        self._spaces = make_games_builder(settings).spaces
        builder = make_agent_builder(settings, self._spaces, SeedTree(settings.run.seed))
        self._uncompiled_shared_networks = {kind: builder.make_network() for kind in WEIGHTS_KINDS}
        self._networks = {kind: builder.make_network() for kind in WEIGHTS_KINDS}  # the newest weights
        self._compress = load_part(settings.sync.sample_compressor, "sample_compressor")
        self._progress, self._n_races, self._sequence = CollectorProgress(), 0, 0
        self._n_starts: Counter[int] = Counter()  # by the number of races before
        self._vector_bytes = sum(4 * one.numel() for one in builder.make_network().parameters())

    def join(self, description: Description) -> Join:
        """Answer a description.

        Raises:
            UserError: if the learner has another run now.
        """
        settings = self._seeded(own_settings(description.settings, self._options), self.settings.run.seed)
        if changed := sorted(changed_settings(self.settings, settings).keys() & NEEDS_RESTART):
            raise UserError(
                f"the learner's run has other settings than before ({', '.join(changed)}): start this worker again"
            )
        network = self._networks["exploration"]
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        facts = fingerprint(settings, self._spaces, shapes, self._maps_folder)
        self._run_name = f"{description.run} {facts['observation']} {facts['network']}"
        return Join(worker=self._spool.worker, fingerprint=facts)

    def begin(self, joined: Joined) -> None:
        """Take the worker's place in the run, at the first call."""
        if self._name:
            return
        self._name = joined.name
        self._progress = CollectorProgress.of_state(joined.progress)
        self._sequence = self._spool.begin(self._run_name, joined.received)
        self.settings = self._seeded(self.settings, joined.seed)
        self.channels = open_channels(self.settings, self._spaces, self._uncompiled_shared_networks)

    def receive(self, message: bytes) -> None:
        """Publish news of the run to the collector, and remove acknowledged races."""
        news, arrays = decode(message, News, MOST_SETUP_BYTES + self._vector_bytes)
        run_state = self.channels.run_state
        for kind in news.versions:
            network = self._networks[kind]
            flatten_parameters(network).copy_(torch.from_numpy(arrays[kind]))
            run_state.publish(weights={kind: network})
            self.has_weights.set()
        if news.settings is not None:
            self.settings = self._seeded(own_settings(news.settings, self._options), self.settings.run.seed)
            run_state.publish(settings=self.settings)
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
        self._n_races += 1
        message = encode_race(rollout, self._sequence, self._compress)
        try:
            self._spool.add(self._sequence, len(rollout.rollout_results["actions"]), message)
        except OSError as error:
            raise PassingError(
                f"{self._options.folder} takes no more races: {error.strerror}; free some space"
            ) from error

    def make_task(self, index: int) -> CollectorTask:
        """Make the task of the collector's next start."""
        self._n_starts[self._n_races] += 1
        return CollectorTask(
            index=index,
            name=f"{self._name}/start-{self._n_starts.total()}",
            maps_folder=self._maps_folder,
            tracks_folder=self._options.folder / "tracks",
            live_folder=self._options.folder / "live",
            rollouts=self.channels.rollouts.open_collector(index),
            run_state=self.channels.run_state,
            make_games_builder=make_games_builder,
            make_agent_builder=make_agent_builder,
            progress=self._progress,
            n_starts_before=self._n_starts[self._n_races] - 1,
        )

    def _seeded(self, settings: Settings, seed: int) -> Settings:
        return settings.model_copy(update={"run": settings.run.model_copy(update={"seed": seed})})
