"""`train.py --cluster`: a Ray cluster places workers on its machines, and they connect to the learner over gRPC.

Unless RAY_AUTH_MODE is set, this process shows a token and asks others for one. Without a token of the user's it makes
one for itself and the processes that it starts.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil
import ray
import ray.util
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from typing_extensions import override

from trackmania_rl.channels.heartbeat import BEAT_EVERY_S, Heartbeat
from trackmania_rl.channels.over_grpc import WorkerAccess, read_pem
from trackmania_rl.cli import is_loopback
from trackmania_rl.doctor.findings import Check, Finding, ok, problem, warning
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.multiprocess.collectors import COLLECTOR_POLICY, CollectorSetup
from trackmania_rl.multiprocess.serving import ServeWorkers
from trackmania_rl.multiprocess.supervisor import HangWatch, Job, Limits, Supervisor
from trackmania_rl.multiprocess.worker import LearnerAddress, Worker, WorkerConfig
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.processes import descendants_of, end_processes
from trackmania_rl.settings import Settings

if "RAY_AUTH_MODE" not in os.environ:
    os.environ["RAY_AUTH_MODE"] = "token"
    has_token = (Path.home() / ".ray" / "auth_token").is_file()
    if not has_token and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray._raylet.Config.initialize("")  # type: ignore[attr-defined]  # torchrl has imported Ray, with its environment
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "90")  # the last checkpoint is written by then
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "180")  # the first process of a busy machine takes long

log = logging.getLogger(__name__)

RESOURCE: Final = "collector"
"""Ray's resource of machines that take collectors: `ray start --resources '{"collector": 4}'`."""
PROBE_WITHIN_S: Final = 10.0
"""Timeout of the probe; Ray itself waits for minutes."""
HEAD_LOST_AFTER_S: Final = 15.0
WORKER_ENDS_WITHIN_S: Final = 5.0
"""A worker that runs so long after the end of the run is killed; it gives its collector some of this time."""
HEAD: Final = "joined the head "
REFUSED: Final = "InvalidAuthToken"
_PROBE: Final = (
    "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='error'); "
    f"print({HEAD!r} + ray.get_runtime_context().gcs_address, flush=True)"
)
_REASONS: Final = {
    REFUSED: "it asks for another token: copy ~/.ray/auth_token from its head, and set RAY_AUTH_MODE=token",
    "version mismatch|same version": "Ray or Python there is of another version: install the same on all machines",
    "ssl|tls|handshake": "one side speaks TLS and the other does not: set RAY_USE_TLS alike on all machines",
    "could not find any running ray": "no Ray runs here: begin with ray start --head (docs/other_machines.rst)",
    "": (
        f"no answer within {PROBE_WITHIN_S:.0f} s: is Ray started there (ray start --head), is the port open to this "
        "machine, and do both sides use RAY_USE_TLS, or neither?"
    ),
}
"""Reasons why a cluster cannot be joined, by a pattern in Ray's output."""


@contextlib.contextmanager
def connected(cluster: str) -> Iterator[WorkerAccess]:
    """Connect to a cluster, and yield the address at which its workers connect to this machine.

    Args:
        cluster: "auto" for the one that runs on this machine or that RAY_ADDRESS names, HOST:PORT, or "local:N" for N
            nodes that are made on this machine and end with this block.

    Raises:
        UserError: if it cannot be joined, or requires no token, or its certificate cannot be read.
    """
    local = re.fullmatch(r"local:(\d{1,2})", cluster)
    if local is None:
        require_answer(cluster)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with contextlib.ExitStack() as closing:
        address = cluster if local is None else _made_here(int(local[1]), closing)
        try:
            ray.init(address, logging_level=logging.WARNING, configure_logging=False)
        except (ConnectionError, RuntimeError) as error:
            raise _refusal(cluster, str(error)) from error
        closing.callback(ray.shutdown)
        for number, handler in handlers.items():  # Ray takes SIGTERM for itself
            signal.signal(number, handler)
        host, token = ray.util.get_node_ip_address(), secrets.token_hex(32)
        access = WorkerAccess(host, 0, token, weights_bytes_per_s=5 << 20)
        if _uses_tls():
            access = replace(access, certificate=_pem("RAY_TLS_SERVER_CERT"), key=_pem("RAY_TLS_SERVER_KEY"))
        log.info("joined the cluster: room for %d collectors on %d machines", n_places(), len(ray.nodes()))
        yield access


def n_places() -> int:
    """Return the number of collectors that the cluster has room for, running ones included."""
    return int(ray.cluster_resources().get(RESOURCE, 0))


def _uses_tls() -> bool:
    return os.environ.get("RAY_USE_TLS") == "1"


def _pem(variable: str) -> bytes:
    return read_pem(Path(os.environ.get(variable, "")))


def _made_here(n_nodes: int, closing: contextlib.ExitStack) -> str:
    """Make a cluster on this machine: a node for the learner, others for collectors. A single node serves both."""
    from ray.cluster_utils import Cluster

    if n_nodes < 1:
        raise UserError("--cluster local:N needs at least one node: local:2 is a learner's machine and a collector's")
    others = set(descendants_of(os.getpid()))
    of_cluster: set[psutil.Process] = set()
    closing.callback(end_processes, of_cluster)  # after Ray's own end, which leaves agents of nodes that died before
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}
    player = node | {"resources": {RESOURCE: 8}}
    made = Cluster(True, head_node_args={**(player if n_nodes == 1 else node), "include_dashboard": False})
    closing.callback(made.shutdown)
    for _ in range(n_nodes - 1):
        made.add_node(**player)
    made.wait_for_nodes()
    of_cluster |= set(descendants_of(os.getpid())) - others
    return str(made.address)


def require_answer(cluster: str) -> None:
    """Join a cluster in a child process first, as Ray waits for minutes without an answer.

    Raises:
        UserError: if it cannot be joined within `PROBE_WITHIN_S`, or is open to others without a token.
    """
    said = _said_by_probe(cluster, {})
    if HEAD not in said:
        raise _refusal(cluster, said)
    head = said.rsplit(HEAD, 1)[1].split()[0]
    if not is_loopback(head.rsplit(":", 1)[0]) and REFUSED not in _said_by_probe(head, {"RAY_AUTH_MODE": "disabled"}):
        raise UserError(
            f"the cluster at {head} accepts every machine that can reach it, and each of them may run programs on "
            "all its machines: start Ray with RAY_AUTH_MODE=token everywhere (docs/other_machines.rst)"
        )


def _said_by_probe(address: str, variables: dict[str, str]) -> str:
    """Join in a child process, and return its output until it has joined, is refused, or times out."""
    command = [sys.executable, "-c", _PROBE, address]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    said = ""
    with subprocess.Popen(command, env=os.environ | variables, **streams) as child:
        timer = threading.Timer(PROBE_WITHIN_S, child.kill)
        timer.start()
        for line in child.stdout or ():
            said += line
            if HEAD in line or REFUSED in line:
                break
        timer.cancel()
        child.kill()  # Ray keeps asking where it was refused
    return said


def _refusal(cluster: str, said: str) -> UserError:
    reason = next(text for pattern, text in _REASONS.items() if re.search(pattern, said, re.IGNORECASE))
    return UserError(f"--cluster {cluster} cannot be joined: {reason}")


def check_cluster(cluster: str, settings: Settings) -> Iterator[Finding]:
    """Join a cluster and yield findings on its guard and its room.

    Args:
        cluster: see `connected`.
        settings: of the run.
    """
    try:
        with connected(cluster):
            token = "asks for a token" if os.environ["RAY_AUTH_MODE"] == "token" else "asks for no token"
            tls = "speaks TLS" if _uses_tls() else "speaks no TLS: races and weights can be read on the way"
            yield ok(Check.CLUSTER, f"joined; it {token} and {tls}")
            found, n_needed = n_places(), settings.game.n_collectors
            text = f"room for {found} collectors, n_collectors = {n_needed}"
            if found == 0:
                text = f"{text}: start Ray with --resources '{{\"{RESOURCE}\": 4}}' on a machine"
                yield problem(Check.CLUSTER, text)
            elif found < n_needed:
                yield warning(Check.CLUSTER, f"{text}: the others wait until a machine joins")
            else:
                yield ok(Check.CLUSTER, text)
    except UserError as error:
        yield problem(Check.CLUSTER, str(error))


class WorkerJob(Job):
    """A worker of the cluster as a `Job`: an actor, whose heartbeats are its answers."""

    def __init__(self, index: int, serving: ServeWorkers, learner: LearnerAddress, config: WorkerConfig) -> None:
        self.name = f"collector {index}"
        self._id = f"collector-{index}"
        self._serving, self._learner, self._config = serving, learner, config
        self._actor: Any = None
        self.ended: concurrent.futures.Future[None] | None = None  # of `play`

    @property
    @override
    def has_succeeded(self) -> bool:
        return self._serving.n_received(self._id) > self._n_received_before

    @override
    def start(self) -> None:
        """Start it where there is room, now or later."""
        self._n_received_before = self._serving.n_received(self._id)
        self._heartbeat = Heartbeat(n_waiting=1)
        self._watch = HangWatch()
        path = os.pathsep.join(filter(None, (str(PROJECT_FOLDER), os.environ.get("PYTHONPATH"))))
        actor = ray.remote(Worker).options(
            num_cpus=0,
            resources={RESOURCE: 1},
            max_restarts=0,  # the supervisor restarts it
            max_concurrency=3,  # `play`, `wait` and `end`
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
        self._actor = actor.remote(self._learner, self._config, self._id)
        self.ended = self._actor.play.remote().future()
        self._answer = self._actor.wait.remote(BEAT_EVERY_S).future()

    @override
    def failure(self, passed_s: float) -> str | None:
        """Return its failure; see `Job`. A worker that waits for a machine is well."""
        assert self.ended is not None
        if self.ended.done():
            return self._reason(self.ended.exception())
        if self._answer.done():
            self._heartbeat.beat()
            self._answer = self._actor.wait.remote(BEAT_EVERY_S).future()
        silence_s = self._serving.run.settings.run.collector_silence_s
        limits = Limits(silence_s, math.inf, math.inf, math.inf)
        how = self._watch.check(self._heartbeat, passed_s, limits)
        return how and f"{how} and is killed with its games"

    def _reason(self, error: BaseException | None) -> str:
        if isinstance(error, RayTaskError):
            return f"ended: {one_line(error.cause)}"
        if isinstance(error, ActorDiedError) and error.actor_init_failed:  # without this package there
            return f"could not be started: {str(error).splitlines()[-1]}"
        return "was lost with its process or machine"

    def ask_to_end(self) -> None:
        """Ask it to end soon."""
        if self._actor is not None:
            self._actor.end.remote()

    @override
    def end(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)  # also a stopped one; on a machine that is out of reach, Ray ends it there
            self._actor = None


class ClusterWorkers(Supervisor[WorkerJob]):
    """The workers of a run on the machines of a cluster.

    Args:
        serving: to which they connect, at the address that `connected` yields; it has begun.
        setup: of the collectors.
        settings: of the run.
    """

    n_alive = 0
    """Connected workers are counted by `ServeWorkers`."""

    def __init__(self, serving: ServeWorkers, setup: CollectorSetup, settings: Settings) -> None:
        access = serving.access
        learner = LearnerAddress(
            f"{'https' if access.certificate else 'http'}://{access.host}:{serving.port}",
            access.token or "",
            _pem("RAY_TLS_CA_CERT") if access.certificate else None,
        )
        is_new = serving.run.channels.run_state.frames_total == 0
        jobs = []
        for index in range(setup.n_collectors):
            port = settings.game.base_tmi_port + index * settings.game.games_per_collector
            maps_folder = str(setup.maps_folder.absolute())
            config = WorkerConfig(
                PROJECT_FOLDER,
                user=settings.user,
                overrides=[f"base_tmi_port={port}", f"maps_folder={maps_folder!r}"],
                code=None,  # a cluster's members may run any program there
                games=setup.games,
                agent=setup.agent,
                demonstrations=setup.demonstrations[index :: setup.n_collectors] if is_new else (),
            )
            jobs.append(WorkerJob(index, serving, learner, config))
        super().__init__(jobs, COLLECTOR_POLICY)
        self._head_answered_s = time.monotonic()

    @override
    def start(self) -> None:
        super().start()
        threading.Thread(target=self._ask_head, name="head", daemon=True).start()  # a call does not return without it
        if (n_waiting := len(self.jobs) - n_places()) > 0:
            log.warning(
                "the cluster has no room for %d of the collectors, which wait: start Ray on another machine with "
                "--resources '{\"%s\": N}', or lower n_collectors",
                n_waiting,
                RESOURCE,
            )

    @override
    def check(self) -> None:
        """Restart failed workers.

        Raises:
            KeepsFailingError: if no worker can be kept running.
            PassingError: if the cluster's head no longer answers: Ray would end this process by itself.
        """
        if time.monotonic() - self._head_answered_s > HEAD_LOST_AFTER_S:
            raise PassingError(
                f"the head of the Ray cluster has not answered for {HEAD_LOST_AFTER_S:.0f} s: start it again, and then "
                "repeat the command, which resumes from the last checkpoint"
            )
        super().check()

    def stop(self) -> None:
        """Ask every worker to end, and kill those that are busy."""
        for job in self.jobs:
            job.ask_to_end()
        concurrent.futures.wait([job.ended for job in self.jobs if job.ended is not None], WORKER_ENDS_WITHIN_S)
        for job in self.jobs:
            job.end()

    def _ask_head(self) -> None:
        with contextlib.suppress(RayError):  # this process ends
            while True:
                ray.cluster_resources()
                self._head_answered_s = time.monotonic()
                time.sleep(2.0)
