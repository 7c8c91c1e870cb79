"""Checks of `doctor.py --cluster`: the machines of a cluster, their room and their packages."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trackmania_rl.doctor.findings import Check, Finding, ok, problem, warning
from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess.cluster.connecting import RESOURCE, connected, environment, n_places
from trackmania_rl.settings import Settings

ANSWERS_WITHIN_S: Final = 60.0
"""A machine's first process loads this package from a cold disk."""
LEAST_STORE_BYTES: Final = 200 << 20


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
    name, resources = node["NodeManagerHostname"], node["Resources"]
    n_collectors, store_bytes = int(resources.get(RESOURCE, 0)), int(resources.get("object_store_memory", 0))
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
    text = f"{name}: room for {n_collectors} collectors, store of {store_bytes >> 20} MB, Python {python}"
    if n_collectors > 0 and store_bytes < LEAST_STORE_BYTES:
        return warning(Check.CLUSTER, f"{text}: a small store spills races to disk; ray start --object-store-memory")
    return ok(Check.CLUSTER, text)


def _how_it_is_guarded() -> Finding:
    token = "asks for a token" if os.environ.get("RAY_AUTH_MODE") == "token" else "asks for no token"
    tls = (
        "speaks TLS"
        if os.environ.get("RAY_USE_TLS") == "1"
        else "speaks no TLS: races and weights can be read on the way"
    )
    return ok(Check.CLUSTER, f"joined; it {token} and {tls}")


def _room(n_places_there_are: int, n_collectors: int) -> Finding:
    text = f"room for {n_places_there_are} collectors, n_collectors = {n_collectors}"
    if n_places_there_are == 0:
        return problem(Check.CLUSTER, f"{text}: start Ray with --resources '{{\"{RESOURCE}\": 4}}' on a machine")
    if n_places_there_are < n_collectors:
        return warning(Check.CLUSTER, f"{text}: the others wait until a machine joins")
    return ok(Check.CLUSTER, text)
