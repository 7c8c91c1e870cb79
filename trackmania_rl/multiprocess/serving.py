"""Learner's end of the calls of workers on other machines; `channels.over_grpc` describes them.

A worker's races go into a sink of the learner's `Rollouts`, as if a collector of this machine put them there, and the
news of the `RunState` go back. The library does TLS, keepalive, flow control and size limits.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Final

import grpc
from torch import nn
from typing_extensions import override

from trackmania_rl.agents.weights import packed
from trackmania_rl.channels import over_grpc
from trackmania_rl.channels.over_grpc import Description, MessageError, News, WorkerAccess, encode
from trackmania_rl.channels.rollouts import WAKE_EVERY_S, ChannelError, RolloutBounds, RolloutSink
from trackmania_rl.channels.run_state import NO_WEIGHTS, WeightsKind
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.paths import program_version
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.race.race import Race
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)

FIRST_NUMBER: Final = 1000
"""Number of the first worker among the run's collectors."""
MOST_WORKERS: Final = 64
MOST_CONNECTIONS: Final = 4 * MOST_WORKERS
"""Further ones are closed before authentication. The handshake of a connection has a time limit."""
MOST_FILES: Final = 1 << 14
NEWS_EVERY_S: Final = 0.05
WEIGHTS_EVERY_S: Final = 0.5
"""Weights are sent at most this often."""
OPTIONS: Final = (
    *over_grpc.OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", over_grpc.KEEPALIVE_MS // 2),
    ("grpc.server_handshake_timeout_ms", over_grpc.KEEPALIVE_MS),
    ("grpc.max_connection_idle_ms", 6 * over_grpc.KEEPALIVE_MS),
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.so_reuseport", 0),
)
Code = grpc.StatusCode


def raise_file_limit() -> None:
    """Raise this process's limit of open files, often 1,024, as far as the system permits."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@dataclass
class _Worker:
    """A worker of this run, by the id that it made for itself."""

    number: int  # among the collectors
    received: int = 0  # newest race that was put into the sink
    counted: int = 0  # newest race that hooks have counted
    saved: int = 0  # newest race that a checkpoint has counted
    n_put: int = 0  # races that were put into the sink in this session
    n_calls: int = 0  # in this session; only the newest one is answered
    is_connected: bool = False
    sink: RolloutSink | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the sink


class ServeWorkers(Hook):
    """Server of a run's workers. Checkpoints hold the count of each worker's races.

    Args:
        access: address and admission.
        networks: on the CPU, overwritten with the newest weights.

    Attributes:
        port: of the address, from `begin` on.
    """

    section: ClassVar[str] = "workers"

    def __init__(self, access: WorkerAccess, networks: Mapping[WeightsKind, nn.Module]) -> None:
        self.access, self._networks = access, networks
        self._workers: dict[str, _Worker] = {}
        self._lock = threading.Lock()
        self._receivers: set[threading.Thread] = set()  # of the calls under way
        self._weights: dict[WeightsKind, tuple[int, bytes, float]] = {}  # version, message, time of the next one
        self._in_checkpoint: dict[str, int] = {}  # counts that the newest one holds, once it is written
        self._checkpoint_time_s: float | None = None
        self._ends = False

    @override
    def begin(self) -> None:
        """Begin to answer.

        Raises:
            UserError: if the address, the certificate or its key cannot be used.
        """
        raise_file_limit()
        self._bounds = RolloutBounds.of_game(self.run.settings.game, self.run.spaces)
        self._server = grpc.server(
            ThreadPoolExecutor(MOST_WORKERS, thread_name_prefix="workers"),
            options=(*OPTIONS, ("grpc.max_receive_message_length", over_grpc.PACKET_BYTES + self._bounds.slot_bytes)),
            maximum_concurrent_rpcs=MOST_WORKERS,
        )
        play = grpc.stream_stream_rpc_method_handler(self._play)
        handler = grpc.method_handlers_generic_handler(over_grpc.SERVICE, {over_grpc.METHOD: play})
        self._server.add_generic_rpc_handlers((handler,))
        access, self.port = self.access, 0
        address = f"{access.host}:{access.port}"
        with contextlib.suppress(RuntimeError):
            if access.certificate is None:
                self.port = self._server.add_insecure_port(address)
            else:
                credentials = grpc.ssl_server_credentials([(access.key, access.certificate)])
                self.port = self._server.add_secure_port(address, credentials)
        if not self.port:
            with contextlib.suppress(OSError), socket.create_server((access.host.strip("[]"), access.port)):
                raise UserError("the certificate or the key of --worker-certificate is damaged")
            raise PassingError(f"workers cannot be served at {address}: the port or the address is not free")
        self._server.start()
        log.info("workers are served at %s:%d%s", access.host, self.port, ", with TLS" if access.certificate else "")

    @override
    def end(self) -> None:
        self._ends = True
        self._server.stop(grace=1.0).wait()
        for receiver in self._receivers:
            receiver.join(over_grpc.CONNECTION_ENDS_WITHIN_S)

    @override
    def on_race(self, race: Race) -> None:
        """Count a worker's race."""
        if race.facts.sequence > 0:
            worker = self._workers[self.worker_of(race.facts.collector)]
            worker.counted = max(worker.counted, race.facts.sequence)

    on_fragment = on_race

    def worker_of(self, collector: int) -> str:
        """Return the id of the worker with a number among the collectors."""
        return next(name for name, worker in self._workers.items() if worker.number == collector)

    @override
    def tick(self) -> None:
        """Count the workers. Acknowledge what a new checkpoint holds."""
        self.run.n_workers = sum(worker.is_connected for worker in tuple(self._workers.values()))
        if self.run.statistics.checkpoint_time_s != self._checkpoint_time_s:
            self._checkpoint_time_s = self.run.statistics.checkpoint_time_s
            for name, saved in self._in_checkpoint.items():
                self._workers[name].saved = saved

    @override
    def state_dict(self) -> dict[str, Any]:
        workers = tuple(self._workers.items())
        self._in_checkpoint = {name: worker.counted for name, worker in workers}
        return {name: [worker.number, self._in_checkpoint[name]] for name, worker in workers}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._workers = {name: _Worker(number, *[counted] * 3) for name, (number, counted) in state_dict.items()}

    def _play(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer one call. No message of a call without the token is read."""
        sent, token = dict(context.invocation_metadata()), self.access.token
        if token and not hmac.compare_digest(str(sent.get(over_grpc.TOKEN, "")).encode(), token.encode()):
            context.abort(Code.UNAUTHENTICATED, "the token differs from the learner's")
        if (version := sent.get(over_grpc.VERSION)) != program_version():
            text = f"the learner has version {program_version()} of this project, the worker {version!r:.40}"
            context.abort(Code.FAILED_PRECONDITION, f"{text}: install the same one")
        run, name = self.run, str(sent.get(over_grpc.WORKER, ""))[: over_grpc.WORKER_ID_LETTERS]
        run.channels.run_state.pull()
        settings = run.channels.run_state.settings
        facts = over_grpc.fingerprint(settings, run.spaces, self._networks["exploration"], run.maps_folder)
        worker, call = self._admit(name, context) if name else (_Worker(FIRST_NUMBER), 0)
        description = Description(
            run=settings.run.run_name,
            settings=self._settings_of(worker, settings),
            facts=facts,
            name=f"session-{run.session}/call-{call}",
            received=worker.received,
            progress=run.progress.get(worker.number, CollectorProgress()).state_dict() | {"streams": {}},
        )
        if not name:
            yield encode(description)
            return
        log.info("worker %d has joined (%s)", worker.number, context.peer())
        arguments, thread_name = (worker, call, requests, context), f"worker {worker.number}"
        try:
            yield encode(description)
            receiver = threading.Thread(target=self._receive, args=arguments, name=thread_name, daemon=True)
            receiver.start()
            with self._lock:
                self._receivers = {thread for thread in self._receivers if thread.is_alive()} | {receiver}
            yield from self._news(worker, call, settings, context)
        finally:
            worker.is_connected &= worker.n_calls != call
            log.info("worker %d has left", worker.number)

    def _settings_of(self, worker: _Worker, settings: Settings) -> dict[str, Any]:
        seed = SeedTree(settings.run.seed).integer(f"worker-{worker.number}")
        return over_grpc.settings_for_workers(settings, seed)

    def _admit(self, name: str, context: grpc.ServicerContext) -> tuple[_Worker, int]:
        """Return a worker and the number of its call."""
        with self._lock:
            if name not in self._workers and len(self._workers) >= MOST_WORKERS:
                context.abort(Code.FAILED_PRECONDITION, f"the run has had {MOST_WORKERS} workers, the most")
            worker = self._workers.setdefault(name, _Worker(FIRST_NUMBER + len(self._workers)))
            try:
                worker.sink = worker.sink or self.run.channels.rollouts.open_collector(worker.number)
            except ChannelError as error:
                context.abort(Code.RESOURCE_EXHAUSTED, str(error))
            worker.n_calls, worker.is_connected = worker.n_calls + 1, True
            return worker, worker.n_calls

    def _receive(self, worker: _Worker, call: int, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        """Put the races of a call into the worker's sink, except repeated ones."""
        assert worker.sink is not None
        try:
            for data in chain.from_iterable(map(over_grpc.split_messages, requests)):
                race = over_grpc.decode_race(data, self._bounds, self.run.spaces)
                with worker.lock:
                    while worker.sink.acquire_frames(0, WAKE_EVERY_S) is None:
                        if not context.is_active() or self._ends:
                            return
                    if worker.n_calls != call:
                        return
                    if race.facts.sequence > worker.received:
                        worker.n_put += 1
                        worker.received = race.facts.sequence  # before the learner has it
                        worker.sink.put(0, race)
        except (MessageError, ChannelError) as error:
            log.warning("worker %d is refused: %s", worker.number, error)
            context.set_details(str(error))
            context.set_code(Code.INVALID_ARGUMENT)  # ends the news
        except grpc.RpcError as error:  # the call has ended
            log.debug("worker %d: %s", worker.number, error)

    def _news(self, worker: _Worker, call: int, settings: Settings, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield weights, settings and counts as they change, until the call ends."""
        run_state, versions, sent = self.run.channels.run_state, dict[WeightsKind, int](), News()
        while context.is_active() and context.code() is None and not self._ends:
            if worker.n_calls != call:
                context.abort(Code.ABORTED, "another call of this worker has replaced this one")
            for kind in self._networks:
                version, message = self._newest_weights(kind)
                if version != versions.get(kind, NO_WEIGHTS):
                    versions[kind] = version
                    yield message
            run_state.pull()
            if run_state.settings is not settings:
                settings = run_state.settings
                yield encode(News(settings=self._settings_of(worker, settings)))
            n_waiting = worker.n_put - self.run.channels.rollouts.n_received(worker.number)
            news = News(
                frames_total=run_state.frames_total,
                taken=max(0, worker.received - n_waiting),
                acknowledged=worker.saved,
            )
            if news != sent:
                sent = news
                yield encode(news)
            time.sleep(NEWS_EVERY_S)

    def _newest_weights(self, kind: WeightsKind) -> tuple[int, bytes]:
        """Return version and message of the newest weights, at limited intervals."""
        with self._lock:
            version, message, due_s = self._weights.get(kind, (NO_WEIGHTS, b"", 0.0))
            if (now_s := time.monotonic()) >= due_s:
                network = self._networks[kind]
                newest = self.run.channels.run_state.pull_weights(kind, network, version)
                if newest != version:
                    version, message = newest, encode(News(versions={kind: newest}), {kind: packed(network).numpy()})
                    due_s = now_s + max(WEIGHTS_EVERY_S, len(message) / self.access.weights_bytes_per_s)
                self._weights[kind] = version, message, due_s
            return version, message
