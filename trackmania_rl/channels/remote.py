"""Collector's ends of the channels to a learner on another machine, over gRPC; `workers.proto` has the calls.

While the learner is away, finished races wait in memory, and the library connects again with backoff. Races that the
learner has not acknowledged are sent again; it drops those that it has by their numbers.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import grpc
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from typing_extensions import override

from trackmania_rl.agents.weights import digest_of, unpack, weights_of
from trackmania_rl.channels import over_grpc
from trackmania_rl.channels import workers_pb2 as pb
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.over_grpc import parse, printable
from trackmania_rl.channels.rollouts import (
    ROLLOUT_SLOTS_PER_COLLECTOR,
    WAIT_FOREVER_S,
    WAKE_EVERY_S,
    RolloutSink,
)
from trackmania_rl.channels.run_state import NO_WEIGHTS, WEIGHTS_KINDS, LearnerFaultError, RunState, WeightsKind
from trackmania_rl.cli import is_loopback
from trackmania_rl.errors import UserError
from trackmania_rl.files import parse_json
from trackmania_rl.paths import program_version
from trackmania_rl.race.race import CollectorProgress, Race
from trackmania_rl.settings import Settings
from trackmania_rl.settings.groups import COLLECTOR_SETTINGS
from trackmania_rl.settings.loading import changed_settings
from trackmania_rl.telemetry.live.feed import LiveReader

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Interval of calls; the library delays its connections longer."""
ANSWERS_WITHIN_S: Final = 20.0
MOST_RACES: Final = 16
MOST_BYTES: Final = 1 << 28
"""Bounds of races that the learner has not acknowledged; beyond one of them the collector waits."""
MOST_QUEUED: Final = ROLLOUT_SLOTS_PER_COLLECTOR
MOST_ACTIONS_QUEUED: Final = 1_000
"""With so many races and actions in the learner's queue the collector waits, as a local one does."""
Code = grpc.StatusCode
REFUSALS: Final = (Code.UNAUTHENTICATED, Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT)
"""Codes that a further attempt does not change."""
OPTIONS: Final = (
    *over_grpc.OPTIONS,
    ("grpc.max_receive_message_length", over_grpc.MOST_NEWS_BYTES),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 30_000),
)


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

    def open(self) -> grpc.Channel:
        """Open a channel, which connects at its first call."""
        parts = urlsplit(self.address)
        if parts.scheme == "http":
            return grpc.insecure_channel(parts.netloc, OPTIONS)
        return grpc.secure_channel(parts.netloc, grpc.ssl_channel_credentials(self.certificate), OPTIONS)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of each call."""
        return (over_grpc.TOKEN, self.token), (over_grpc.VERSION, program_version())

    def describe(self) -> pb.Description:
        """Return the learner's description of its run.

        Raises:
            grpc.RpcError: if there is no answer.
            MessageError: if the answer is damaged.
        """
        with self.open() as channel:
            call = channel.unary_unary(f"/{over_grpc.SERVICE}/Describe")
            hello = pb.Hello().SerializeToString()
            return parse(pb.Description, call(hello, metadata=self.metadata(), timeout=ANSWERS_WITHIN_S))

    def refusal(self, error: grpc.RpcError) -> LearnerFaultError | None:
        """Return the error of a call that a further attempt does not mend; None for others."""
        details = details_of(error)
        if error.code() in REFUSALS:
            return LearnerFaultError(f"{self.address} refuses this worker: {details}")
        if error.code() is Code.RESOURCE_EXHAUSTED and "message" in details.lower():
            return LearnerFaultError(f"{self.address} sends a message that is too large: {details}")
        if any(word in details.lower() for word in ("ssl", "tls", "certificate")):
            return LearnerFaultError(
                f"{self.address}: no TLS connection ({details}): is --certificate the learner's one, made for this "
                "host name, and does the learner serve https?"
            )
        return None


def details_of(error: grpc.RpcError) -> str:
    """Return the text of a call's error in one line."""
    return printable(error.details())


def progress_of(text: str) -> CollectorProgress:
    """Return the progress of a collector, without the states of random streams.

    Raises:
        LearnerFaultError: if the learner's text is none.
    """
    try:
        return CollectorProgress.of_state(parse_json(text) | {"streams": {}})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LearnerFaultError("the learner's progress of this collector is damaged") from None


@dataclass(frozen=True)
class WorkerSide:
    """Facts of a worker's machine about its learner's run, picklable.

    Attributes:
        settings_of: reads the learner's settings, JSON, as those of this machine.
        settings: the first ones.
        facts: see `over_grpc.fingerprint`, besides those of maps.
        folder: of this worker, temporary.
        frames_shape: of the longest race.
        weights_bytes: size of a network's weights.
    """

    settings_of: Callable[[str], Settings]
    settings: Settings
    facts: Mapping[str, str]
    maps_folder: Path
    folder: Path
    frames_shape: tuple[int, int, int, int]
    weights_bytes: int

    def require_playable(self, description: pb.Description) -> Settings:
        """Return the settings of a description.

        Raises:
            UserError: if it is another run than that of the first settings, or the machines differ.
        """
        settings = self.settings_of(description.settings)
        if changed := sorted(changed_settings(self.settings, settings).keys() & COLLECTOR_SETTINGS):
            raise UserError(
                f"the learner's run has other settings than before ({', '.join(changed)}): start this worker again"
            )
        own = {**self.facts, **over_grpc.map_facts(settings, self.maps_folder)}
        over_grpc.require_same(dict(description.facts), own)
        return settings


class RemoteLearner(RolloutSink, RunState):
    """A collector's ends of both channels to a learner on another machine.

    It is picklable. The first `pull` connects, and waits for the first weights. An error of the connection's thread is
    raised by the next call.

    Args:
        address: of the learner.
        collector: its id, at most 32 letters.
        machine: of this collector.
        stop: see `make_stop_flag`.
        heartbeat: of the collector's process.
    """

    def __init__(
        self, address: LearnerAddress, collector: str, machine: WorkerSide, stop: Any, heartbeat: Heartbeat
    ) -> None:
        game = machine.settings.game
        super().__init__(1 if game.is_in_process else game.games_per_collector, heartbeat, stop)
        self._arguments = address, collector, machine, stop, heartbeat
        self._address, self._collector, self._machine = address, collector, machine
        self._settings = self._newest_settings = machine.settings
        self._compressor = over_grpc.make_sample_compressor(machine.settings)
        self._frames_total = 0
        self._progress: CollectorProgress | None = None
        self._weights: dict[str, tuple[int, bytes]] = {}  # version and bytes, by kind
        self._digests: dict[str, bytes] = {}
        self._arriving = bytearray()
        self._live = LiveReader(machine.folder)
        self._is_watched = False
        self._changed = threading.Condition()
        self._run_id = ""
        self._n_calls = 0
        self._is_connected = False
        self._newest = self._sent = self._received = 0  # numbers of races; none is received without a connection
        self._races: dict[int, tuple[int, bytes]] = {}  # not acknowledged: actions and message
        self._channel: grpc.Channel | None = None
        self._error: Exception | None = None

    def __reduce__(self) -> tuple[type[RemoteLearner], tuple[Any, ...]]:
        return RemoteLearner, self._arguments

    @property
    @override
    def settings(self) -> Settings:
        return self._settings

    @property
    @override
    def frames_total(self) -> int:
        return self._frames_total

    @property
    @override
    def stop_requested(self) -> bool:
        self._check()
        return bool(self._stop.value)

    @property
    @override
    def progress(self) -> CollectorProgress | None:
        return self._progress

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    @override
    def pull(self) -> bool:
        if self._channel is None:
            self._channel = self._address.open()
            atexit.register(self._channel.close)  # its calls end, and with them the thread
            threading.Thread(target=self._connect, name="connection", daemon=True).start()
            self._wait(self._take_first_weights, WAIT_FOREVER_S)
        self._check()
        is_new = self._newest_settings is not self._settings
        self._settings = self._newest_settings
        return is_new

    def _take_first_weights(self, timeout_s: float) -> bool | None:
        self._check()
        with self._changed:
            return self._changed.wait_for(lambda: len(self._weights) == len(WEIGHTS_KINDS), timeout_s) or None

    @override
    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        self._check()
        version, weights = self._weights.get(kind, (NO_WEIGHTS, b""))
        if version == known_version:
            return known_version
        try:
            unpack(torch.frombuffer(bytearray(weights), dtype=torch.uint8), network)
        except ValueError as error:
            raise LearnerFaultError(f"the learner's weights do not fit: {error}") from None
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights_of(network)):
            raise LearnerFaultError("the learner's weights hold numbers that are not finite")
        return version

    @override
    def _take_room(self, timeout_s: float) -> npt.NDArray[np.uint8] | None:
        self._check()
        with self._changed:
            if not self._changed.wait_for(self._has_room, timeout_s):
                return None
        return np.empty(self._machine.frames_shape, dtype=np.uint8)

    def _has_room(self) -> bool:
        queued = [n_actions for number, (n_actions, _) in self._races.items() if number <= self._received]
        is_learner_busy = len(queued) >= MOST_QUEUED and sum(queued) >= MOST_ACTIONS_QUEUED
        n_held = len(self._races) + len(self._held)
        return not (is_learner_busy or self._n_bytes >= MOST_BYTES or n_held >= max(MOST_RACES, self._n_games))

    @override
    def _frames(self, room: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return room

    @override
    def _send(self, game: int, race: Race) -> None:
        """Send a race, now or after the next connection.

        Raises:
            MessageError: if a column of it holds no numbers.
        """
        with self._changed:
            message = over_grpc.encode_race(race, self._newest + 1, self._compressor.compress)
            self._newest += 1
            self._races[self._newest] = race.n_actions, message
            del self._held[game]
            self._changed.notify_all()

    @property
    def _n_bytes(self) -> int:
        return sum(len(message) for _, message in self._races.values())

    def _connect(self) -> None:
        """Make one call after the other, and keep the error of one that a further attempt does not mend."""
        try:
            while not self._stop.value:
                self._call()
                time.sleep(RETRY_S)
        except Exception as error:  # raised in the main thread
            with self._changed:
                self._error = LearnerFaultError(str(error)) if isinstance(error, UserError) else error
                self._changed.notify_all()

    def _call(self) -> None:
        """Send races and receive news until the call ends.

        Raises:
            UserError: if the learner refuses this collector, or its news cannot be used here.
        """
        assert self._channel is not None
        self._n_calls += 1
        play = self._channel.stream_stream(f"/{over_grpc.SERVICE}/Play")
        why = "it has ended the call"
        try:
            for data in cast(Iterator[bytes], play(self._uploads(self._n_calls), metadata=self._address.metadata())):
                self._receive(parse(pb.News, data))
        except grpc.RpcError as error:
            why = details_of(error)
            if (refusal := self._address.refusal(error)) is not None:
                raise refusal from None
        with self._changed:
            is_away = not self._is_connected and self._n_calls > 1
            self._is_connected, self._received = False, 0
        if not is_away and not self._stop.value:
            log_away(self._address, why)

    def _uploads(self, call: int) -> Iterator[bytes]:
        """Yield the messages of a call: first a hello, then races, those that belong together at once, and cars."""
        yield pb.Upload(hello=pb.Hello(collector=self._collector, digests=self._digests)).SerializeToString()
        while self._n_calls == call and not self._stop.value:
            with self._changed:
                self._changed.wait_for(self._waiting, WAKE_EVERY_S)
                packet = self._waiting() if self._n_calls == call else {}
                self._sent = max(packet, default=self._sent)
            for race in packet.values():
                yield pb.Upload(race=race).SerializeToString()
            if self._is_watched and (cars := self._live.cars()):
                yield pb.Upload(cars=over_grpc.encode_cars(cars)).SerializeToString()

    def _waiting(self) -> dict[int, bytes]:
        """Return the races to send by their numbers; none without a connection, or if more are to come."""
        waiting = {number: race for number, race in self._races.items() if number > self._sent}
        n_actions = sum(n for n, _ in waiting.values())
        is_full = len(self._races) >= MOST_RACES // 2 or self._n_bytes >= MOST_BYTES
        if not self._is_connected or not (is_full or n_actions >= self._settings.sync.min_samples_per_worker_packet):
            return {}
        return {number: message for number, (_, message) in waiting.items()}

    def _receive(self, news: pb.News) -> None:
        """Take over news.

        Raises:
            UserError: if they cannot be used here.
        """
        if news.HasField("description"):
            description = news.description
            settings = self._machine.require_playable(description)
            progress = progress_of(description.progress)
            with self._changed:
                if description.run_id != self._run_id:  # a run that begins anew gets no race of the one before
                    self._races.clear()
                self._run_id = description.run_id
                self._newest_settings = settings
                self._progress = progress
                self._sent = news.received
                self._newest = max(self._newest, news.received)
                self._is_connected = True
                self._arriving = bytearray()
            log.info("connected to %s, run %s", self._address.address, settings.run.run_name)
        if news.settings:
            self._newest_settings = self._machine.settings_of(news.settings)
        if news.HasField("weights"):
            self._receive_weights(news.weights)
        self._frames_total = max(self._frames_total, min(news.frames_total, 2**62))
        self._is_watched = news.is_watched
        with self._changed:
            self._received = news.received
            for number in [number for number in self._races if number <= news.taken]:
                del self._races[number]
            self._changed.notify_all()

    def _receive_weights(self, weights: pb.Weights) -> None:
        """Add a piece of weights; the last one completes a new version."""
        if weights.offset == 0:
            self._arriving = bytearray()
        is_sound = weights.kind in WEIGHTS_KINDS and weights.size == self._machine.weights_bytes
        if not is_sound or weights.offset != len(self._arriving):
            raise LearnerFaultError("the learner's weights are of another network, or damaged")
        self._arriving += weights.piece
        if len(self._arriving) < weights.size:
            return
        if digest_of(self._arriving) != weights.digest:
            raise LearnerFaultError("the learner's weights are damaged")
        with self._changed:
            version = self._weights.get(weights.kind, (NO_WEIGHTS, b""))[0] + 1
            self._weights[weights.kind] = version, bytes(self._arriving)
            self._digests[weights.kind] = weights.digest
            self._changed.notify_all()


def log_away(learner: LearnerAddress, why: str) -> None:
    """Log that the learner does not answer."""
    log.warning("the learner at %s is away (%s); races wait in memory until it answers", learner.address, why)
