"""Workers of a Ray cluster: Ray finds them a machine and starts them there, and they connect to the learner."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ray
import ray.util
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.over_grpc import WorkerAccess, read_pem
from trackmania_rl.channels.remote import RemoteChannels
from trackmania_rl.channels.run_state import Channels
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.multiprocess.cluster.connecting import RESOURCE, environment, n_places, uses_tls
from trackmania_rl.multiprocess.collector_process import send_logs_to
from trackmania_rl.multiprocess.collectors import COLLECTOR_POLICY, CollectorSetup
from trackmania_rl.multiprocess.serving import ServeWorkers
from trackmania_rl.multiprocess.supervisor import HangWatch, Job, Limits, Supervisor
from trackmania_rl.multiprocess.worker import LearnerAddress, Worker, WorkerConfig
from trackmania_rl.paths import SHIPPED_FOLDER
from trackmania_rl.race.race import RaceFacts
from trackmania_rl.settings import Settings

log = logging.getLogger(__name__)

ASK_WORKER_EVERY_S: Final = 0.5
"""The supervisor checks its jobs hundreds of times a second."""
ASK_HEAD_EVERY_S: Final = 2.0
HEAD_LOST_AFTER_S: Final = 15.0
WEIGHTS_BYTES_PER_S: Final = 5 << 20
WORKER_ENDS_WITHIN_S: Final = 5.0
"""A worker that runs so long after the end of the run is killed; it gives its collector some of this time."""


class WorkerHost:
    """Actor that is one worker; its collector and games end with its process."""

    def __init__(self) -> None:
        self._logs: deque[logging.LogRecord] = deque()
        self._worker: Worker | None = None
        send_logs_to(self)

    def play(self, learner: LearnerAddress, name: str, config: WorkerConfig) -> None:
        """Play until `end`. The config's folder of maps is that of the learner's machine, see `_on_this_machine`.

        Raises:
            UserError: see `Worker.play`.
        """
        self._worker = Worker(_with_certificate(learner), _on_this_machine(config), name)
        self._worker.play()

    def end(self) -> None:
        """Let `play` return soon."""
        if self._worker is not None:
            self._worker.end()

    def send(self, record: logging.LogRecord, /) -> None:
        """Keep a log record for the next `take_logs`."""
        self._logs.append(record)

    def take_logs(self) -> list[logging.LogRecord]:
        """Return the log records that were not taken yet."""
        return [self._logs.popleft() for _ in range(len(self._logs))]


def _on_this_machine(config: WorkerConfig) -> WorkerConfig:
    """Let the config name a folder of maps on this machine."""
    maps_folder = next((one for one in (config.project_folder, SHIPPED_FOLDER / "maps") if one.is_dir()), None)
    if maps_folder is None:
        raise UserError(f"{socket.gethostname()} has no folder {config.project_folder}: copy the maps there")
    return replace(config, overrides=[*config.overrides, f"maps_folder={str(maps_folder)!r}"])


def _of_ray(variable: str) -> bytes:
    """Read a PEM file that a variable of Ray's names."""
    return read_pem(Path(os.environ.get(variable, "")))


def _with_certificate(learner: LearnerAddress) -> LearnerAddress:
    return replace(learner, certificate=_of_ray("RAY_TLS_CA_CERT")) if uses_tls() else learner


def access_on_cluster() -> WorkerAccess:
    """Return an address of this machine in the cluster, with a new token, and with Ray's certificate where it has one.

    Raises:
        UserError: if the certificate cannot be read.
    """
    access = WorkerAccess(
        ray.util.get_node_ip_address(), 0, secrets.token_hex(32), weights_bytes_per_s=WEIGHTS_BYTES_PER_S
    )
    if not uses_tls():
        return access
    return replace(access, certificate=_of_ray("RAY_TLS_SERVER_CERT"), key=_of_ray("RAY_TLS_SERVER_KEY"))


class WorkerJob(Job):
    """A worker of the cluster as a `Job`. `n_delivered` counts the rollouts that came since its start."""

    def __init__(
        self, index: int, learner: LearnerAddress, config: WorkerConfig, channels: Channels | RemoteChannels
    ) -> None:
        self.name = f"collector {index}"
        self.worker = f"collector-{index}"
        self.n_delivered = 0
        self._learner, self._config, self._channels = learner, config, channels
        self._actor: Any = None
        self._answered_s = self._looked_s = 0.0
        self._watch = HangWatch()

    @property
    @override
    def has_succeeded(self) -> bool:
        return self.n_delivered > 0

    @override
    def start(self) -> None:
        """Start it where there is room, now or later."""
        self.n_delivered, self._answered_s, self._watch = 0, 0.0, HangWatch()
        actor = ray.remote(WorkerHost).options(
            num_cpus=0,
            resources={RESOURCE: 1},
            max_restarts=0,  # the supervisor restarts it
            max_concurrency=3,  # it plays and answers calls
            runtime_env={"env_vars": environment()},
        )
        self._actor = actor.remote()
        self._end = self._actor.play.remote(self._learner, self.worker, self._config)
        self._logs = self._actor.take_logs.remote()

    @override
    def failure(self, passed_s: float) -> str | None:
        """Return its failure; see `Job`. A worker that waits for a machine is well."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= ASK_WORKER_EVERY_S:
            self._looked_s = now_s
            try:
                self._take_logs()
                ray.get(self._end, timeout=0)
            except GetTimeoutError:
                pass
            except RayTaskError as error:
                return f"ended: {one_line(error.cause)}"
            except RayError as error:
                log.debug("%s: %s", self.name, error)
                if isinstance(error, ActorDiedError) and error.actor_init_failed:  # without this package there
                    return f"could not be started: {str(error).splitlines()[-1]}"
                return "was lost with its process or machine"
            else:
                return "ended"
        silence_s = self._channels.settings.run.collector_silence_s
        limits = Limits(silence_s, math.inf, math.inf, math.inf)
        how = self._watch.look(Heartbeat(at_s=self._answered_s, n_waiting=1), 0.0, passed_s, limits)
        return how and f"{how} and is killed with its games"

    def ask_to_end(self) -> list[Any]:
        """Ask it to end soon; return Ray's reference to its end, if it was started."""
        if self._actor is None:
            return []
        self._actor.end.remote()
        return [self._end]

    @override
    def end(self) -> None:
        if self._actor is not None:
            with contextlib.suppress(RayError):
                self._take_logs()
            ray.kill(self._actor)  # also a stopped one; on a machine that is out of reach, Ray ends it there
            self._actor = None

    def _take_logs(self) -> None:
        """Handle the log records that have come, as those of this collector, which is number 0 there."""
        if not ray.wait([self._logs], timeout=0)[0]:
            return
        for record in ray.get(self._logs):
            text = record.msg.replace("collector 0", self.name)
            record.msg = text if self.name in text else f"{self.name}: {text}"
            logging.getLogger().handle(record)
        self._answered_s = time.monotonic()
        self._logs = self._actor.take_logs.remote()


class ClusterWorkers(Supervisor[WorkerJob]):
    """The workers of a run on the machines of a cluster.

    Args:
        serving: to which they connect, at the address of `access_on_cluster`; it has begun.
        setup: of the collectors.
        settings: of the run.
    """

    def __init__(self, serving: ServeWorkers, setup: CollectorSetup, settings: Settings) -> None:
        games_per_collector, port = settings.game.games_per_collector, settings.game.base_tmi_port
        access, host = serving.access, f"{serving.access.host}:{serving.port}"
        learner = LearnerAddress(f"{'https' if access.certificate else 'http'}://{host}", access.token or "")
        config = WorkerConfig(
            project_folder=setup.maps_folder.absolute(),
            user=settings.user,
            code=None,  # who may start a worker in the cluster may run any program there
            games=setup.games,
            agent=setup.agent,
        )
        jobs = []
        for index in range(setup.n_collectors):
            own = replace(
                config,
                overrides=[f"base_tmi_port={port + index * games_per_collector}"],
                demonstrations=setup.demonstrations[index :: setup.n_collectors] if setup.channels.is_new else (),
            )
            jobs.append(WorkerJob(index, learner, own, setup.channels))
        super().__init__(jobs, COLLECTOR_POLICY)
        self._serving = serving
        self._job_of_worker = {job.worker: job for job in jobs}
        self._has_said_that_some_wait = False
        self._head_answered_s, self._n_places = time.monotonic(), n_places()
        threading.Thread(target=self._ask_head, name="head", daemon=True).start()  # a call does not return without it

    @property
    def n_alive(self) -> int:
        """Return 0: connected workers are counted by `ServeWorkers`."""
        return 0

    def count(self, facts: RaceFacts) -> None:
        """Count a race or fragment of a worker."""
        self._job_of_worker[self._serving.worker_of(facts.collector)].n_delivered += 1

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
        if not self._has_said_that_some_wait and (n_waiting := len(self.jobs) - self._n_places) > 0:
            self._has_said_that_some_wait = True
            log.warning(
                "the cluster has no room for %d of the collectors, which wait: start Ray on another machine with "
                "--resources '{\"%s\": N}', or lower n_collectors",
                n_waiting,
                RESOURCE,
            )

    def stop(self) -> None:
        """Ask every worker to end, and kill those that are busy."""
        ends = [end for job in self.jobs for end in job.ask_to_end()]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=WORKER_ENDS_WITHIN_S)
        for job in self.jobs:
            job.end()

    def _ask_head(self) -> None:
        with contextlib.suppress(RayError):  # this process ends
            while True:
                self._n_places = n_places()
                self._head_answered_s = time.monotonic()
                time.sleep(ASK_HEAD_EVERY_S)
