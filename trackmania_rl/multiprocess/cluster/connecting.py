"""Connection to a Ray cluster, checks of its machines, and clusters made on one machine for a first look."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trackmania_rl.cli import is_loopback
from trackmania_rl.doctor.findings import Check, Finding, ok, problem, warning
from trackmania_rl.errors import UserError
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.processes import descendants_of, end_processes
from trackmania_rl.settings import Settings

log = logging.getLogger(__name__)

RESOURCE: Final = "collector"
"""Ray's resource of machines that take collectors: `ray start --resources '{"collector": 4}'`."""
AUTO: Final = "auto"
LOCAL: Final = re.compile(r"local:(\d{1,2})")
PROBE_WITHIN_S: Final = 10.0
"""Timeout of the probe; Ray itself waits for minutes."""
LOCAL_STORE_BYTES: Final = 100 << 20
COLLECTORS_PER_LOCAL_NODE: Final = 8
RAY_GIVES_UP_AFTER_S: Final = 90
"""Time after which Ray ends a learner that lost the head; by then the last checkpoint is written."""
RAY_STARTS_WITHIN_S: Final = 180
"""Timeout of Ray's first process; its default of 30 s is too short on a busy machine."""
MOST_SAID_BYTES: Final = 1 << 20
HEAD: Final = "joined the head "
REFUSED: Final = "InvalidAuthToken"
ANSWERS_WITHIN_S: Final = 60.0
"""A machine's first process loads this package from a cold disk."""
_PROBE: Final = (
    "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='error'); "
    f"print({HEAD!r} + ray.get_runtime_context().gcs_address, flush=True)"
)


@contextlib.contextmanager
def connected(cluster: str) -> Iterator[None]:
    """Connect to a cluster.

    Args:
        cluster: "auto" for the one that runs on this machine or that RAY_ADDRESS names, HOST:PORT, or "local:N" for N
            nodes that are made on this machine and end with this block.

    Raises:
        UserError: if it cannot be joined, or requires no token.
    """
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(RAY_GIVES_UP_AFTER_S))
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(RAY_STARTS_WITHIN_S))
    with contextlib.ExitStack() as closing:
        address = _made_here(int(local[1]), closing) if (local := LOCAL.fullmatch(cluster)) else cluster
        if local is None:
            require_answer(cluster)
        with _own_signals():
            try:
                ray.init(address, log_to_driver=False, logging_level=logging.WARNING, configure_logging=False)
            except (ConnectionError, RuntimeError) as error:
                raise UserError(_refusal(cluster, str(error))) from error
        closing.callback(ray.shutdown)
        log.info("joined the cluster: room for %d collectors on %d machines", n_places(), len(ray.nodes()))
        yield


def n_places() -> int:
    """Return the number of collectors that the cluster has room for, running ones included."""
    return int(ray.cluster_resources().get(RESOURCE, 0))


def environment() -> dict[str, str]:
    """Return variables for the collectors' processes: the path of this package, the same on all machines."""
    path = os.pathsep.join(filter(None, (str(PROJECT_FOLDER), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path}


def uses_tls() -> bool:
    """Return whether Ray uses TLS on this machine."""
    return os.environ.get("RAY_USE_TLS") == "1"


def require_answer(cluster: str) -> None:
    """Join a cluster in a child process first, as Ray waits for minutes without an answer.

    Raises:
        UserError: if it cannot be joined within `PROBE_WITHIN_S`, or is open to others without a token.
    """
    said = _said_by_probe(cluster, {})
    if HEAD not in said:
        raise UserError(_refusal(cluster, said))
    head = said.rsplit(HEAD, 1)[1].split()[0]
    if not is_loopback(head.rsplit(":", 1)[0]) and REFUSED not in _said_by_probe(head, {"RAY_AUTH_MODE": "disabled"}):
        raise UserError(
            f"the cluster at {head} accepts every machine that can reach it, and each of them may run programs on "
            "all its machines: start Ray with RAY_AUTH_MODE=token everywhere (docs/other_machines.rst)"
        )


def _said_by_probe(address: str, variables: dict[str, str]) -> str:
    """Join in a child process, and return its output until it has joined, is refused, or times out."""
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-c", _PROBE, address]
        child = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | variables)
        ends_s = time.monotonic() + PROBE_WITHIN_S
        said, is_running = "", True
        while is_running and time.monotonic() < ends_s and not any(word in said for word in (HEAD, REFUSED)):
            is_running = child.poll() is None
            time.sleep(0.1)
            if sys.platform != "win32":  # see `require_ray`
                said = os.pread(output.fileno(), MOST_SAID_BYTES, 0).decode(errors="replace")
        child.kill()  # Ray goes on asking where it was refused
        child.wait()
        return said


def _refusal(cluster: str, said: str) -> str:
    return f"--cluster {cluster}: {_reason(cluster, said)}"


def _reason(cluster: str, said: str) -> str:
    """Return in one line why a cluster cannot be joined, by Ray's output."""
    text = said.lower()
    if REFUSED in said:
        return (
            "it asks for another token: copy ~/.ray/auth_token from its head to this machine, and set "
            "RAY_AUTH_MODE=token"
        )
    if "version mismatch" in text or "same version" in text:
        return "Ray or Python there is of another version (ray --version): install the same ones on all machines"
    if any(word in text for word in ("ssl", "tls", "handshake")):
        return "one side speaks TLS and the other does not: set RAY_USE_TLS alike on all machines"
    if cluster == AUTO and "could not find any running ray instance" in text:
        return (
            f"no Ray runs on this machine: begin with ray start --head --resources '{{\"{RESOURCE}\": 4}}' "
            "(docs/other_machines.rst)"
        )
    return (
        f"no answer within {PROBE_WITHIN_S:.0f} s: is Ray started there (ray start --head), is the port open to "
        "this machine, and do both sides use RAY_USE_TLS, or neither?"
    )


def _made_here(n_nodes: int, closing: contextlib.ExitStack) -> str:
    """Make a cluster on this machine: a node for the learner, others for collectors. A single node serves both."""
    from ray.cluster_utils import Cluster

    if n_nodes < 1:
        raise UserError("--cluster local:N needs at least one node: local:2 is a learner's machine and a collector's")
    places = {RESOURCE: COLLECTORS_PER_LOCAL_NODE}
    others = set(descendants_of(os.getpid()))
    of_cluster: set[psutil.Process] = set()
    closing.callback(end_processes, of_cluster)  # after Ray's own end, which leaves agents of nodes that died before
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": LOCAL_STORE_BYTES}
    with _own_signals():
        head = node | {"include_dashboard": False, "resources": places if n_nodes == 1 else {}}
        made = Cluster(initialize_head=True, head_node_args=head)
        closing.callback(made.shutdown)
        for _ in range(n_nodes - 1):
            made.add_node(**node, resources=places)
        made.wait_for_nodes()
    of_cluster |= set(descendants_of(os.getpid())) - others
    return str(made.address)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers: Ray takes SIGTERM for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def look_there() -> tuple[str, bool]:
    """Return Python's version on the machine that this runs on, and whether it has this package."""
    from importlib.util import find_spec

    return platform.python_version(), find_spec("trackmania_rl") is not None


def check_cluster(cluster: str, settings: Settings) -> Iterator[Finding]:
    """Join a cluster and yield findings on its machines.

    Args:
        cluster: see `connected`.
        settings: of the run.
    """
    try:
        with connected(cluster):
            nodes = [node for node in ray.nodes() if node["Alive"]]
            yield _how_it_is_guarded()
            for node, answer in [(node, _ask(node)) for node in nodes]:
                yield _of_machine(node, answer)
            yield _room(n_places(), settings.game.n_collectors)
    except UserError as error:
        yield problem(Check.CLUSTER, str(error))


def _ask(node: dict[str, Any]) -> Any:
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": there, "runtime_env": {"env_vars": environment()}}
    return ray.remote(look_there).options(**options).remote()


def _of_machine(node: dict[str, Any], answer: Any) -> Finding:
    name, n_collectors = node["NodeManagerHostname"], int(node["Resources"].get(RESOURCE, 0))
    try:
        python, has_package = ray.get(answer, timeout=ANSWERS_WITHIN_S)
    except GetTimeoutError:
        return problem(
            Check.CLUSTER,
            f"{name} starts no process within {ANSWERS_WITHIN_S:.0f} s: check it or remove it from the cluster",
        )
    except RayError as error:
        return problem(Check.CLUSTER, f"{name} cannot start a process: {type(error).__name__}")
    if not has_package:
        return problem(Check.CLUSTER, f"{name} has no trackmania_rl: install it there too (docs/other_machines.rst)")
    return ok(Check.CLUSTER, f"{name}: room for {n_collectors} collectors, Python {python}")


def _how_it_is_guarded() -> Finding:
    token = "asks for a token" if os.environ.get("RAY_AUTH_MODE") == "token" else "asks for no token"
    tls = "speaks TLS" if uses_tls() else "speaks no TLS: races and weights can be read on the way"
    return ok(Check.CLUSTER, f"joined; it {token} and {tls}")


def _room(n_places_there_are: int, n_collectors: int) -> Finding:
    text = f"room for {n_places_there_are} collectors, n_collectors = {n_collectors}"
    if n_places_there_are == 0:
        return problem(Check.CLUSTER, f"{text}: start Ray with --resources '{{\"{RESOURCE}\": 4}}' on a machine")
    if n_places_there_are < n_collectors:
        return warning(Check.CLUSTER, f"{text}: the others wait until a machine joins")
    return ok(Check.CLUSTER, text)
