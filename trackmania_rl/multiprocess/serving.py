"""Learner's end of the calls of collectors on other machines; `channels/workers.proto` has the calls.

Their races are added to the learner's `Rollouts`, and the news of the `SharedRunState` go back. The library does TLS,
keepalive, flow control and size limits.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import logging
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import grpc
from torch import nn
from typing_extensions import override

from trackmania_rl.agents.weights import digest_of, packed
from trackmania_rl.channels import over_grpc
from trackmania_rl.channels import workers_pb2 as pb
from trackmania_rl.channels.over_grpc import AMessage, MessageError, WorkerAccess
from trackmania_rl.channels.rollouts import slot_bytes
from trackmania_rl.channels.run_state import NO_WEIGHTS, WEIGHTS_KINDS, WeightsKind
from trackmania_rl.errors import PassingError, UserError, is_logged
from trackmania_rl.paths import program_version
from trackmania_rl.race.race import CollectorProgress, Race
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.live.feed import ASKED, CARS_EVERY_S, FOLDER, LiveCar, is_asked, write_cars
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)

FIRST_NUMBER: Final = 1000
"""Number of the first worker among the run's collectors."""
MOST_WORKERS: Final = 64
"""Workers that are connected at the same time."""
MOST_REMEMBERED: Final = 1000
"""Workers whose numbers of races are kept."""
MOST_CALLS: Final = 3 * MOST_WORKERS
MOST_QUEUED: Final = 16
"""Races of a worker that wait for the learner; further ones wait in their call."""
MOST_UPLOAD_BYTES: Final = 1 << 20
"""Size of the largest message of a worker beyond that of the largest race."""
MOST_CONNECTIONS: Final = 4 * MOST_WORKERS
"""Further ones are closed before authentication. The handshake of a connection has a time limit."""
MOST_FILES: Final = 1 << 14
NEWS_EVERY_S: Final = 0.05
"""Interval of news, besides those of each race that is received or taken."""
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
ID_PATTERN: Final = re.compile(rf"[A-Za-z0-9-]{{1,{over_grpc.ID_LETTERS}}}")


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
    """A collector on another machine, by the id that it made for itself."""

    number: int  # among the collectors
    received: int = 0  # newest race that was put into the learner's queue
    taken: int = 0  # newest race that the learner has learned from, or refused
    n_refused: int = 0  # messages, of which the 1st, 10th, 100th ... are logged
    call: grpc.ServicerContext | None = None  # newest one of this session, which alone is answered; None if it is away
    refusal: str = ""  # of a message of this call
    shown_at_s: float = 0.0  # time of its newest cars on the live page
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for_change(self, sent: pb.News) -> None:
        """Wait for other numbers of races than those in news that were sent, at most until the next news are due."""
        with self.changed:
            self.changed.wait_for(lambda: (self.received, self.taken) != (sent.received, sent.taken), NEWS_EVERY_S)


@dataclass(frozen=True)
class _Weights:
    """Newest weights of a kind."""

    version: int = NO_WEIGHTS
    data: bytes = b""
    digest: bytes = b""
    next_at_s: float = 0.0


class _Admission(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the token or of another version, before a message of theirs is read."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    @override
    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        sent = dict(handler_call_details.invocation_metadata)
        version = sent.get(over_grpc.VERSION)
        if self._token and not hmac.compare_digest(str(sent.get(over_grpc.TOKEN, "")).encode(), self._token.encode()):
            return _refusing(Code.UNAUTHENTICATED, "the token differs from the learner's")
        if version != program_version():
            text = f"the learner has version {program_version()} of this project, the worker {version!r:.40}"
            return _refusing(Code.FAILED_PRECONDITION, f"{text}: install the same one")
        return continuation(handler_call_details)


def _refusing(code: grpc.StatusCode, text: str) -> Any:
    """Return the handler of a call that is refused; one of a stream reads no message by itself."""
    return grpc.stream_stream_rpc_method_handler(lambda _, context: context.abort(code, text))


class ServeWorkers(Hook):
    """Server of a run's workers. Checkpoints hold the number of each worker's newest race.

    Args:
        access: address and admission.
        network: on the CPU; its weights have the form of those that are sent.

    Attributes:
        port: of the address, from `begin` on.
    """

    section: ClassVar[str] = "workers"

    def __init__(self, access: WorkerAccess, network: nn.Module) -> None:
        self.access, self._network = access, network
        self._workers: dict[str, _Worker] = {}
        self._lock = threading.Lock()
        self._weights = dict.fromkeys(WEIGHTS_KINDS, _Weights())
        self._run_id = uuid.uuid4().hex
        self._ends = False
        self._is_watched = False

    @override
    def begin(self) -> None:
        """Begin to answer.

        Raises:
            UserError: if the address, the certificate or its key cannot be used.
        """
        raise_file_limit()
        self._live_folder = self.run.folder.path / FOLDER
        with contextlib.suppress(OSError):  # the live page cannot ask
            self._live_folder.mkdir(parents=True, exist_ok=True)
        self._max_actions = self.run.settings.game.most_states
        most_bytes = MOST_UPLOAD_BYTES + slot_bytes(self._max_actions, self.run.spaces)
        self._compressor = over_grpc.make_sample_compressor(self.run.settings)
        self._server = grpc.server(
            ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="workers"),
            options=(*OPTIONS, ("grpc.max_receive_message_length", most_bytes)),
            maximum_concurrent_rpcs=MOST_CALLS,
            interceptors=[_Admission(self.access.token)],
        )
        calls = {
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "Play": grpc.stream_stream_rpc_method_handler(self._play),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(over_grpc.SERVICE, calls),))
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

    def n_received(self, name: str) -> int:
        """Return the number of the newest race that has come from the worker with an id."""
        worker = self._workers.get(name)
        return 0 if worker is None else worker.received

    @override
    def tick(self) -> None:
        """Count the workers; look for an open live page."""
        self._is_watched = is_asked(self._live_folder / ASKED, time.time())
        self.run.n_workers = sum(worker.call is not None for worker in tuple(self._workers.values()))

    @override
    def state_dict(self) -> dict[str, Any]:
        workers = {name: [worker.number, worker.taken] for name, worker in tuple(self._workers.items())}
        return {"run_id": self._run_id, "workers": workers}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._run_id = state_dict["run_id"]
        workers = state_dict["workers"].items()
        self._workers = {name: _Worker(number, taken, taken) for name, (number, taken) in workers}

    def _describe(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Describe the run to a machine that has not been admitted yet."""
        self._parse(pb.Hello, data, context)
        return self._description(_Worker(FIRST_NUMBER)).SerializeToString()

    def _parse(self, kind: type[AMessage], data: bytes, context: grpc.ServicerContext) -> AMessage:
        try:
            return over_grpc.parse(kind, data)
        except MessageError as error:
            context.abort(Code.INVALID_ARGUMENT, str(error))
            raise

    def _description(self, worker: _Worker) -> pb.Description:
        settings = self.run.channels.run_state.settings
        progress = self.run.progress.get(worker.number, CollectorProgress()).state_dict()
        return pb.Description(
            run=settings.run.run_name,
            settings=self._settings_of(worker, settings),
            facts=over_grpc.fingerprint(settings, self.run.spaces, self._network, self.run.maps_folder),
            progress=json.dumps(progress | {"streams": {}}),
            run_id=self._run_id,
        )

    def _settings_of(self, worker: _Worker, settings: Settings) -> str:
        seed = SeedTree(settings.run.seed).integer(f"worker-{worker.number}")
        return json.dumps(over_grpc.settings_for_workers(settings, seed))

    def _admit(self, name: str, context: grpc.ServicerContext) -> _Worker:
        """Return the worker of a call, which replaces its earlier ones."""
        if not ID_PATTERN.fullmatch(name):
            context.abort(Code.INVALID_ARGUMENT, "the worker has no id")
        with self._lock:
            n_others = sum(worker.call is not None for one, worker in self._workers.items() if one != name)
            if n_others >= MOST_WORKERS:
                context.abort(Code.FAILED_PRECONDITION, f"the run has {MOST_WORKERS} workers, the most")
            away = [one for one, worker in self._workers.items() if worker.call is None and one != name]
            if name not in self._workers and len(self._workers) >= MOST_REMEMBERED:
                del self._workers[away[0]]
            number = 1 + max((worker.number for worker in self._workers.values()), default=FIRST_NUMBER - 1)
            worker = self._workers.setdefault(name, _Worker(number))
            with worker.changed:
                worker.call, worker.refusal = context, ""
                worker.changed.notify_all()
        return worker

    def _play(self, uploads: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Admit a worker, take its races in a thread, and yield news until the call ends."""
        hello = self._parse(pb.Upload, next(uploads, b""), context).hello
        worker = self._admit(hello.collector, context)
        log.info("worker %d has joined (%s)", worker.number, context.peer())
        threading.Thread(target=self._receive, args=(worker, uploads, context), name="races", daemon=True).start()
        try:
            for news in self._news(worker, dict(hello.digests), context):
                yield news.SerializeToString()
        finally:
            with worker.changed:
                if worker.call is context:
                    worker.call = None
                worker.changed.notify_all()
            log.info("worker %d has left", worker.number)

    def _news(self, worker: _Worker, digests: dict[str, bytes], context: grpc.ServicerContext) -> Iterator[pb.News]:
        """Yield weights, settings and counts as they change; weights in pieces, between which the others come."""
        run_state = self.run.channels.run_state
        settings = run_state.settings
        yield pb.News(description=self._description(worker), received=worker.received)
        pieces: Iterator[pb.Weights] = iter(())
        sent = pb.News()
        while context.is_active() and not self._ends:
            if worker.call is not context:
                context.abort(Code.ABORTED, "another call of this worker has replaced this one")
            if worker.refusal:
                context.abort(Code.INVALID_ARGUMENT, worker.refusal)
            news = pb.News(
                frames_total=run_state.frames_total,
                received=worker.received,
                taken=worker.taken,
                is_watched=self._is_watched,
            )
            counts = pb.News()
            counts.CopyFrom(news)
            if run_state.settings is not settings:
                settings = run_state.settings
                news.settings = self._settings_of(worker, settings)
            if (piece := next(pieces, None)) is None:
                pieces = self._pieces(digests)
                piece = next(pieces, None)
            if piece is not None:
                news.weights.CopyFrom(piece)
            if news != sent:
                sent = counts
                yield news
            if piece is None:
                worker.wait_for_change(counts)

    def _pieces(self, digests: dict[str, bytes]) -> Iterator[pb.Weights]:
        """Yield the pieces of each kind of weights that differ from those of the digests, and update these."""
        for kind in WEIGHTS_KINDS:
            newest = self._newest_weights(kind)
            if newest.data and newest.digest != digests.get(kind):
                digests[kind] = newest.digest
                for offset in range(0, len(newest.data), over_grpc.PIECE_BYTES):
                    piece = newest.data[offset : offset + over_grpc.PIECE_BYTES]
                    yield pb.Weights(kind=kind, digest=newest.digest, size=len(newest.data), offset=offset, piece=piece)

    def _newest_weights(self, kind: WeightsKind) -> _Weights:
        newest = self.run.channels.run_state.weights[kind]
        with self._lock:
            weights, now_s = self._weights[kind], time.monotonic()
            if newest.version != weights.version and now_s >= weights.next_at_s:
                vector = packed(self._network)
                version = newest.read_newer(weights.version, vector)
                data = vector.numpy().tobytes()
                interval_s = max(WEIGHTS_EVERY_S, len(data) / self.access.weights_bytes_per_s)
                weights = _Weights(version, data, digest_of(data), now_s + interval_s)
                self._weights[kind] = weights
            return weights

    def _receive(self, worker: _Worker, uploads: Iterator[bytes], context: grpc.ServicerContext) -> None:
        """Put the races of a call into the learner's queue, and show its cars."""
        with contextlib.suppress(grpc.RpcError):  # the call has ended
            for data in uploads:
                try:
                    upload = over_grpc.parse(pb.Upload, data)
                    if upload.cars:
                        self._show(worker, over_grpc.decode_cars(upload.cars))
                        continue
                    race = over_grpc.decode_race(
                        upload.race, self._max_actions, self.run.spaces, self._compressor.decompress
                    )
                except MessageError as error:
                    self._refuse(worker, context, str(error))
                    return
                self._queue(worker, context, race)

    def _show(self, worker: _Worker, cars: Sequence[LiveCar]) -> None:
        """Show a worker's cars on the live page, by this machine's clock."""
        now_s = time.time()
        if now_s - worker.shown_at_s >= CARS_EVERY_S:
            worker.shown_at_s = now_s
            own = [replace(car, collector=worker.number, timestamp_s=now_s) for car in cars]
            write_cars(self._live_folder, worker.number, own)

    def _refuse(self, worker: _Worker, context: grpc.ServicerContext, why: str) -> None:
        with worker.changed:
            worker.n_refused += 1
            if worker.call is context:
                worker.refusal = why
        if is_logged(worker.n_refused):
            log.warning("worker %d is refused: %s; so far %d times", worker.number, why, worker.n_refused)

    def _queue(self, worker: _Worker, context: grpc.ServicerContext, race: Race) -> None:
        """Wait for room in the learner's queue, and put a race; drop it if it is repeated, or its call has ended."""
        sequence = race.facts.sequence
        with worker.changed:
            worker.changed.wait_for(lambda: worker.received - worker.taken < MOST_QUEUED or worker.call is not context)
            if worker.call is context and sequence > worker.received:
                worker.received = sequence
                race.facts = race.facts.with_changes(collector=worker.number)
                race.give_back = functools.partial(_take, worker, sequence)
                self.run.channels.rollouts.add(race)
                worker.changed.notify_all()


def _take(worker: _Worker, sequence: int) -> None:
    """Count a race that the learner has released."""
    with worker.changed:
        worker.taken = max(worker.taken, sequence)
        worker.changed.notify_all()
