"""Learner's end of the channels to workers on other machines, over gRPC. Only `--workers` imports it.

A worker plays with a collector of its own and keeps one call open. `WorkerServer` answers it in the learner's process:
races go into a sink of the learner's `Rollouts`, and the news of its `RunState` go back. The library does TLS,
keepalive, flow control and size limits.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from typing_extensions import override

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.channels.messages import (
    Description,
    Join,
    Joined,
    MessageError,
    News,
    SentBy,
    decode,
    decode_race,
    encode,
    settings_for_workers,
)
from trackmania_rl.channels.protocols import (
    LOOK_EVERY_S,
    NO_WEIGHTS,
    ChannelError,
    Channels,
    ReceivedRollout,
    RolloutSink,
    WeightsKind,
)
from trackmania_rl.channels.shared_memory.rollouts import RolloutBounds
from trackmania_rl.cli import TOKEN_VARIABLE
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.files import read_bounded
from trackmania_rl.places import program_version
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings
from trackmania_rl.settings.values import LAST_PORT

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

SERVICE: Final = "trackmania_rl.Workers"
METHOD: Final = "Play"
TOKEN: Final = "authorization"
VERSION: Final = "trackmania-rl-version"
"""Metadata of a call."""
FIRST_NUMBER: Final = 1000
"""Number of the first worker among the run's collectors."""
MOST_WORKERS: Final = 64
MOST_SETUP_BYTES: Final = 1 << 22
"""Size of a message before the first race."""
MOST_PEM_BYTES: Final = 1 << 20
JOIN_WITHIN_S: Final = 120.0
NEWS_EVERY_S: Final = 0.2
WEIGHTS_EVERY_S: Final = 0.5
WEIGHTS_BYTES_PER_S: Final = 1 << 20
"""Weights are sent at most this often, and at most so many bytes a second of each kind to each worker."""
KEEPALIVE_MS: Final = 10_000
OPTIONS: Final = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)
OPTIONS_OF_SERVER: Final = (
    *OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.server_handshake_timeout_ms", KEEPALIVE_MS),
    ("grpc.max_connection_idle_ms", 6 * KEEPALIVE_MS),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True)
class WorkerAccess:
    """Address at which workers connect, and their admission.

    Attributes:
        host: address of this machine; "0.0.0.0" or "[::]" for all.
        port: 0 for any free one.
        token: that workers send; None without one.
        certificate: PEM certificate chain of the server, None without TLS.
        key: its PEM key.
    """

    host: str
    port: int
    token: str | None = None
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of_command(
        cls, address: str, token: str, certificate_and_key: Sequence[Path] | None, is_insecure: bool
    ) -> WorkerAccess:
        """Return the access by the options of `train.py`.

        Raises:
            UserError: if a file cannot be read, or the address is beyond loopback, without token and TLS.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > LAST_PORT:
            raise UserError(f"--workers {address}: write HOST:PORT, such as 0.0.0.0:8470")
        if not (is_insecure or is_loopback(host) or (token and certificate_and_key)):
            raise UserError(
                f"--workers {address} is reached from other machines: give a token ({TOKEN_VARIABLE} or "
                "--worker-token-file) and --worker-certificate, or ask for --insecure-workers"
            )
        files = [bytes(read_bounded(file, MOST_PEM_BYTES)) for file in certificate_and_key or (None, None) if file]
        return cls(host, int(port), token or None, *files)


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


@dataclass(frozen=True)
class Offer:
    """Facts of a run that its workers receive or must share."""

    run: str
    session: int
    settings: Settings  # at the start
    spaces: Spaces
    fingerprint_of: Callable[[Settings], dict[str, str]]
    networks: Mapping[WeightsKind, nn.Module]  # on the CPU, overwritten with the newest weights


@dataclass
class _Worker:
    """A worker of this run, by the id that it made for itself."""

    number: int  # among the collectors
    counted: int = 0  # newest race that hooks have counted
    received: int = 0  # newest race in the sink
    n_calls: int = 0  # in this session
    is_connected: bool = False
    sink: RolloutSink | None = None
    refusal: str = ""  # error of its last message
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the sink


class _TokenCheck(grpc.ServerInterceptor):
    """Refuses calls without the token, or of another version, before a message is read."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    @override
    def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        sent = dict(details.invocation_metadata)
        token, version = sent.get(TOKEN, ""), sent.get(VERSION, "")
        if self._token is not None and not hmac.compare_digest(str(token).encode(), self._token.encode()):
            return _refusing(grpc.StatusCode.UNAUTHENTICATED, "the token differs from the learner's")
        if version != program_version():
            text = f"the learner has version {program_version()} of this project, the worker {version!r:.40}"
            return _refusing(grpc.StatusCode.FAILED_PRECONDITION, f"{text}: install the same one")
        return continuation(details)


def _refusing(code: grpc.StatusCode, text: str) -> grpc.RpcMethodHandler:
    def refuse(_: object, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(code, text)
        yield b""

    return grpc.stream_stream_rpc_method_handler(refuse)


class WorkerServer:
    """Server of a run's workers. Each worker has one call; its next one replaces it.

    Args:
        access: address and admission.
        channels: the learner's.
        offer: facts of the run.
        progress_of: returns the position of a collector in its map cycle.

    Raises:
        UserError: if the address cannot be used, or certificate and key are none.
    """

    def __init__(
        self,
        access: WorkerAccess,
        channels: Channels,
        offer: Offer,
        progress_of: Callable[[int], CollectorProgress],
    ) -> None:
        self._channels, self._offer, self._progress_of = channels, offer, progress_of
        self._bounds = RolloutBounds.of_game(offer.settings.game, offer.spaces)
        self._workers: dict[str, _Worker] = {}
        self._changed = threading.Condition()
        self._sharing = threading.Lock()
        self._weights: dict[WeightsKind, tuple[int, bytes, float]] = {}  # version, message, time of the next one
        self._closes = False
        pool = ThreadPoolExecutor(MOST_WORKERS, thread_name_prefix="worker")
        sizes = (("grpc.max_receive_message_length", self._bounds.slot_bytes), ("grpc.max_send_message_length", -1))
        self._server = grpc.server(
            pool,
            interceptors=(_TokenCheck(access.token),),
            options=OPTIONS_OF_SERVER + sizes,
            maximum_concurrent_rpcs=MOST_WORKERS,
        )
        play = grpc.stream_stream_rpc_method_handler(self._play)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: play}),))
        self.port = self._bind(access)

    def _bind(self, access: WorkerAccess) -> int:
        address = f"{access.host}:{access.port}"
        try:
            if access.certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                credentials = grpc.ssl_server_credentials([(access.key, access.certificate)])
                port = self._server.add_secure_port(address, credentials)
        except (RuntimeError, ValueError) as error:
            port, cause = 0, error
            with contextlib.suppress(OSError), socket.create_server((access.host.strip("[]"), access.port)):
                raise UserError("the certificate or the key of --worker-certificate is damaged") from cause
        if not port:
            raise PassingError(
                f"workers cannot be served at {address}: is the port in use, and the address this one's?"
            )
        return int(port)

    def start(self) -> None:
        """Begin to answer workers."""
        self._server.start()

    def close(self) -> None:
        """End all calls."""
        with self._changed:
            self._closes = True
            self._changed.notify_all()
        self._server.stop(grace=1.0).wait()

    def count(self, race: ReceivedRollout) -> None:
        """Count a race that the run has learned from, if it is a worker's, and so acknowledge it."""
        sent_by = race.end_race_stats.get("sent_by")
        if sent_by is not None:
            with self._changed:
                worker = self._workers[sent_by.worker]
                worker.counted = max(worker.counted, sent_by.sequence)
                self._changed.notify_all()

    def counts(self) -> dict[str, list[int]]:
        """Return number and newest counted race of each worker, for a checkpoint."""
        return {name: [worker.number, worker.counted] for name, worker in self._workers.items()}

    def load_counts(self, counts: Mapping[str, list[int]]) -> None:
        """Load the result of `counts`, before the start."""
        self._workers = {name: _Worker(number, counted, counted) for name, (number, counted) in counts.items()}

    @property
    def n_connected(self) -> int:
        """Number of workers with an open call."""
        return sum(worker.is_connected for worker in tuple(self._workers.values()))

    def _play(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer one call."""
        self._channels.run_state.pull()
        settings = self._channels.run_state.settings
        values = settings_for_workers(settings)
        yield encode(Description(version=program_version(), run=self._offer.run, settings=values))
        join = self._join(requests, context)
        self._require_same(self._offer.fingerprint_of(settings), join.fingerprint, context)
        worker, call = self._admit(join.worker, context)
        seed = SeedTree(settings.run.seed).integer(f"worker-{worker.number}")
        name = f"session-{self._offer.session}/call-{call}"
        progress = self._progress_of(worker.number).state_dict() | {"streams": {}}
        log.info("worker %d has joined (%s)", worker.number, context.peer())
        try:
            yield encode(Joined(name=name, seed=seed, received=worker.received, progress=progress))
            arguments = (join.worker, worker, call, requests, context)
            threading.Thread(target=self._receive, args=arguments, name=f"worker {worker.number}", daemon=True).start()
            yield from self._news(worker, call, settings, context)
        finally:
            if worker.n_calls == call:
                worker.is_connected = False
                log.info("worker %d has left", worker.number)

    def _join(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Join:
        timer = threading.Timer(JOIN_WITHIN_S, context.cancel)
        timer.start()
        try:
            return decode(next(requests), Join, MOST_SETUP_BYTES)[0]
        except MessageError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except StopIteration:
            context.abort(grpc.StatusCode.CANCELLED, "the call has ended")
            raise
        finally:
            timer.cancel()

    def _require_same(self, own: Mapping[str, str], sent: Mapping[str, str], context: grpc.ServicerContext) -> None:
        for name, fact in own.items():
            if sent.get(name) != fact:
                remedy = "copy the file" if name.startswith("map ") else "install the same parts and version"
                text = (
                    f"{name} is {fact} on the learner's machine, here {sent.get(name, 'missing')}: {remedy} from there"
                )
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    def _admit(self, name: str, context: grpc.ServicerContext) -> tuple[_Worker, int]:
        """Return a worker and the number of its call."""
        with self._changed:
            if name not in self._workers and len(self._workers) >= MOST_WORKERS:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the run has had {MOST_WORKERS} workers, the most")
            worker = self._workers.setdefault(name, _Worker(FIRST_NUMBER + len(self._workers)))
            try:
                worker.sink = worker.sink or self._channels.rollouts.open_collector(worker.number)
            except ChannelError as error:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            worker.n_calls += 1
            worker.refusal, worker.is_connected = "", True
            self._changed.notify_all()
            return worker, worker.n_calls

    def _receive(
        self, name: str, worker: _Worker, call: int, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> None:
        """Put the races of a call into the worker's sink, except repeated ones."""
        assert worker.sink is not None
        try:
            for data in requests:
                header, results, stats = decode_race(data, self._bounds, self._offer.spaces)
                with worker.lock:
                    while worker.sink.acquire_frames(0, LOOK_EVERY_S) is None:
                        if not context.is_active() or self._closes:
                            return
                    if worker.n_calls != call:
                        return
                    if header.sequence > worker.received:
                        stats["sent_by"] = SentBy(name, header.sequence)
                        worker.sink.put(0, results, stats)
                        worker.received = header.sequence
        except (MessageError, ChannelError) as error:
            worker.refusal = str(error)
        except grpc.RpcError as error:  # the call has ended
            log.debug("worker %d: %s", worker.number, error)

    def _news(self, worker: _Worker, call: int, settings: Settings, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield weights, settings and counts as they change, until the call ends."""
        run_state, versions, sent = self._channels.run_state, dict[WeightsKind, int](), News()
        while context.is_active() and not self._closes:
            if worker.n_calls != call:
                context.abort(grpc.StatusCode.ABORTED, "another call of this worker has replaced this one")
            if worker.refusal:
                log.warning("worker %d is refused: %s", worker.number, worker.refusal)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, worker.refusal)
            for kind in self._offer.networks:
                version, message = self._newest_weights(kind)
                if version != versions.get(kind, NO_WEIGHTS):
                    versions[kind] = version
                    yield message
            run_state.pull()
            if run_state.settings is not settings:
                settings = run_state.settings
                yield encode(News(settings=settings_for_workers(settings)))
            news = News(frames_total=run_state.frames_total, acknowledged=worker.counted)
            if news != sent:
                sent = news
                yield encode(news)
            with self._changed:
                self._changed.wait(NEWS_EVERY_S)

    def _newest_weights(self, kind: WeightsKind) -> tuple[int, bytes]:
        """Return version and message of the newest weights, at limited intervals of one kind."""
        with self._sharing:
            version, message, due_s = self._weights.get(kind, (NO_WEIGHTS, b"", 0.0))
            if (now_s := time.monotonic()) >= due_s:
                network = self._offer.networks[kind]
                newest = self._channels.run_state.pull_weights(kind, network, version)
                if newest != version:
                    vector = flatten_parameters(network).numpy()
                    version, message = newest, encode(News(versions={kind: newest}), {kind: vector})
                    due_s = now_s + max(WEIGHTS_EVERY_S, len(message) / WEIGHTS_BYTES_PER_S)
                self._weights[kind] = version, message, due_s
            return version, message
