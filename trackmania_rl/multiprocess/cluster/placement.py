"""Collectors as actors of a Ray cluster, under the supervisor that those of one machine have."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Final, cast

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trackmania_rl.channels.over_ray.rollouts import RayRolloutSource
from trackmania_rl.channels.protocols import SignsOfLife
from trackmania_rl.errors import PassingError
from trackmania_rl.multiprocess.cluster.host import CollectorHost, Place, RelayLogs, end_there
from trackmania_rl.multiprocess.collector_logs import CollectorLogs
from trackmania_rl.multiprocess.collector_task import CollectorTask

log = logging.getLogger(__name__)

RESOURCE: Final = "collector"
"""What a machine has so many of as it takes collectors: `ray start --resources '{"collector": 4}'`."""
LOOK_EVERY_S: Final = 0.2
"""An actor is looked at no more often: the supervisor looks hundreds of times a second."""
KILLED: Final = -9
ASK_HEAD_EVERY_S: Final = 2.0
HEAD_LOST_AFTER_S: Final = 15.0


class RemoteCollector:
    """A collector somewhere in the cluster; see `CollectorProcess`.

    Args:
        task: what it is told.
        environment: variables of its process.
    """

    def __init__(self, task: CollectorTask, environment: dict[str, str]) -> None:
        self.name = f"collector {task.index}"
        self.exitcode: int | None = None
        self.place: Place | None = None
        options: dict[str, Any] = {"num_cpus": 0, "resources": {RESOURCE: 1}, "max_restarts": 0}
        options["runtime_env"] = {"env_vars": environment}
        self._actor = cast("Any", ray.remote(CollectorHost).options(**options).remote())
        self._asked_place = self._actor.place.remote()
        self._end = self._actor.play.remote(task)
        self._looked_s = 0.0
        self._ends: list[Any] = []

    def is_alive(self) -> bool:
        """Whether it plays, or waits for room; see `CollectorProcess`."""
        now_s = time.monotonic()
        if self.exitcode is None and now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._look(0.0)
        return self.exitcode is None

    def join(self, timeout: float) -> None:
        """Wait for its end; see `CollectorProcess`."""
        if self.exitcode is None:
            self._look(timeout)

    def terminate(self) -> None:
        """Kill it with its games: what an actor does cannot be interrupted otherwise."""
        self.kill()

    def kill(self) -> None:
        """Kill it with its games, be it stopped or hung; a machine that is out of reach does so by itself."""
        ray.kill(self._actor)
        if self.place is not None and self.exitcode is None:
            there = NodeAffinitySchedulingStrategy(self.place.node_id, soft=False)
            self._ends.append(ray.remote(end_there).options(num_cpus=0, scheduling_strategy=there).remote(self.place))
        self.exitcode = KILLED if self.exitcode is None else self.exitcode

    def _look(self, within_s: float) -> None:
        if self.place is None:
            with contextlib.suppress(GetTimeoutError, RayError):
                self.place = ray.get(self._asked_place, timeout=0)
        try:
            ray.get(self._end, timeout=within_s)
            self.exitcode = 0
        except GetTimeoutError:
            return
        except RayError as error:
            log.debug("%s ended: %s", self.name, error)
            self.exitcode = 1
        ray.kill(self._actor)  # which would wait for more to do, in the room of the next one


class HeadLostError(PassingError):
    """The cluster's head does not answer: nobody could be placed any more, and Ray would end this process by itself."""


class HeadWatch:
    """Asks the head of the cluster now and then, in a thread, as the question does not come back without it."""

    def __init__(self) -> None:
        self._answered_s = time.monotonic()
        threading.Thread(target=self._ask_on_and_on, name="head", daemon=True).start()

    def check(self) -> None:
        """Look whether it answers.

        Raises:
            HeadLostError: if it has not for `HEAD_LOST_AFTER_S`.
        """
        if time.monotonic() - self._answered_s > HEAD_LOST_AFTER_S:
            raise HeadLostError(
                f"the head of the Ray cluster has not answered for {HEAD_LOST_AFTER_S:.0f} s: start it again, and then "
                "the same command, which goes on from the last checkpoint"
            )

    def _ask_on_and_on(self) -> None:
        while True:
            try:
                ray.nodes()
            except RayError:
                return
            self._answered_s = time.monotonic()
            time.sleep(ASK_HEAD_EVERY_S)


class OnCluster:
    """See `Placement`.

    Args:
        rollouts: the collectors' channel.
        environment: variables of their processes.
    """

    def __init__(self, rollouts: RayRolloutSource, environment: dict[str, str]) -> None:
        self.logs = CollectorLogs()
        self._rollouts = rollouts
        self._environment = environment
        self._collectors: dict[int, RemoteCollector] = {}
        self._n_looks = 0
        self._head = HeadWatch()
        self._has_said_that_one_waits = False

    def log_pipe(self, name: str) -> RelayLogs:
        """Hand records to the relay; see `Placement`."""
        del name
        return RelayLogs(self._rollouts.relay)

    def start(self, task: CollectorTask) -> RemoteCollector:
        """Ask the cluster for room; see `Placement`."""
        self._collectors[task.index] = RemoteCollector(task, self._environment)
        return self._collectors[task.index]

    def end_by_force(self, process: RemoteCollector) -> None:
        """Kill it; see `Placement`."""
        process.kill()

    def signs_of_life(self, collector: int) -> SignsOfLife:
        """Look how it is; one that waits for room on a machine is as well as can be.

        Raises:
            HeadLostError: if the cluster's head no longer answers.
        """
        self._head.check()
        if self._collectors[collector].place is not None:
            return self._rollouts.signs_of_life(collector)
        self._n_looks += 1
        if not self._has_said_that_one_waits and self._waits_for_room():
            self._has_said_that_one_waits = True
            log.warning(
                "the cluster has no room for collector %d, which waits: start Ray on another machine with "
                "--resources '{\"%s\": N}', or lower n_collectors",
                collector,
                RESOURCE,
            )
        return SignsOfLife(-self._n_looks, is_waiting=True)

    def _waits_for_room(self) -> bool:
        """Whether all room of the cluster is taken, or there never was any."""
        return ray.available_resources().get(RESOURCE, 0.0) < 1.0
