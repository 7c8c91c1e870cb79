"""Collectors as actors of a Ray cluster: their process, their placement, and the opening of the channels to them."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.over_ray import CollectorEnds, RayRollouts, RayRunState
from trackmania_rl.channels.protocols import ROLLOUT_SLOTS_PER_COLLECTOR, Channels, WeightsKind
from trackmania_rl.channels.shared_memory.rollouts import RolloutBounds
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.multiprocess.cluster.connecting import RESOURCE, connected, environment
from trackmania_rl.multiprocess.collector_process import CollectorTask, end_at_once, run_collector
from trackmania_rl.multiprocess.collectors import Placement
from trackmania_rl.places import SHIPPED_FOLDER
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.2
"""Also between questions to an actor: the supervisor looks hundreds of times a second."""
ASK_HEAD_EVERY_S: Final = 2.0
HEAD_LOST_AFTER_S: Final = 15.0


class CollectorHost(CollectorEnds):
    """Actor that is one collector; its process is that collector's, and its games end with it."""

    def play(self, task: CollectorTask) -> tuple[int, list[logging.LogRecord]]:
        """Play until the run ends, or the learner's machine is out of reach; return exit code and last log records."""
        silence_s = self.run_state.settings.run.collector_silence_s
        threading.Thread(target=self._end_when_alone, args=(silence_s,), daemon=True).start()
        exit_code = 0
        with tempfile.TemporaryDirectory(prefix="trackmania_rl_collector_") as folder:
            task = _on_this_machine(replace(task, rollouts=self.sink, run_state=self.run_state), Path(folder))
            try:
                run_collector(task, self)
            except SystemExit as error:
                exit_code = int(error.code or 0)
        return exit_code, self.take_logs()

    def _end_when_alone(self, silence_s: float) -> None:
        while time.monotonic() - self.asked_s <= silence_s:
            time.sleep(LOOK_EVERY_S)
        end_at_once()


def _on_this_machine(task: CollectorTask, folder: Path) -> CollectorTask:
    """Replace a task's folders by those of this machine."""
    maps_folder = next((one for one in (task.maps_folder, SHIPPED_FOLDER / "maps") if one.is_dir()), None)
    if maps_folder is None:
        raise UserError(f"{socket.gethostname()} has no folder {task.maps_folder}: copy the maps there")
    return replace(task, maps_folder=maps_folder, tracks_folder=folder / "tracks", live_folder=folder / "live")


def start_host(*ends: Any) -> Any:
    """Start a collector's actor where there is room, with the arguments of `CollectorEnds`; return its handle."""
    actor = ray.remote(CollectorHost).options(
        num_cpus=0,
        resources={RESOURCE: 1},
        max_restarts=0,  # the supervisor restarts it, with another task
        max_concurrency=2,  # it plays and answers calls
        runtime_env={"env_vars": environment()},
    )
    return actor.remote(*ends)


class RemoteCollector:
    """Process of a collector in the cluster, with the methods of `multiprocessing.Process`."""

    def __init__(self, task: CollectorTask) -> None:
        self.name = f"collector {task.index}"
        self.exitcode: int | None = None
        self._actor = cast("Any", task.rollouts)
        self._end = self._actor.play.remote(task)
        self._looked_s = 0.0

    def is_alive(self) -> bool:
        """Return whether it plays, or waits for a machine."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self.join(0.0)
        return self.exitcode is None

    def join(self, timeout: float) -> None:
        """Wait for its end."""
        if self.exitcode is not None:
            return
        try:
            self.exitcode, records = ray.get(self._end, timeout=timeout)
            for record in records:
                logging.getLogger().handle(record)
        except GetTimeoutError:
            return
        except RayTaskError as error:
            log.error("%s: %s", self.name, one_line(error.cause))
            self.exitcode = 1
        except RayError as error:
            if isinstance(error, ActorDiedError) and error.actor_init_failed:  # without room for its channels
                log.error("%s: %s", self.name, str(error).splitlines()[-1])
            else:
                log.debug("%s ended: %s", self.name, error)
            self.exitcode = 1
        ray.kill(self._actor)  # it would wait for calls, in the room of the next one

    def kill(self) -> None:
        """Kill it with its children, also a stopped one. On a machine that is out of reach it ends by itself."""
        ray.kill(self._actor)


class OnCluster(Placement):
    """`Placement` on the machines of a cluster."""

    def __init__(self, channels: Channels) -> None:
        super().__init__(channels)
        self._head_answered_s = time.monotonic()
        threading.Thread(target=self._ask_head, name="head", daemon=True).start()  # a call does not return without it
        self._has_said_that_one_waits = False

    @override
    def start(self, task: CollectorTask) -> RemoteCollector:
        return RemoteCollector(task)

    @override
    def end_by_force(self, process: RemoteCollector) -> None:
        process.kill()

    @override
    def heartbeat(self, collector: int) -> Heartbeat:
        """Return a collector's heartbeat. A collector that waits for a machine is well.

        Raises:
            PassingError: if the cluster's head no longer answers: Ray would end this process by itself.
        """
        if time.monotonic() - self._head_answered_s > HEAD_LOST_AFTER_S:
            raise PassingError(
                f"the head of the Ray cluster has not answered for {HEAD_LOST_AFTER_S:.0f} s: start it again, and then "
                "the same command, which goes on from the last checkpoint"
            )
        heartbeat = super().heartbeat(collector)
        if heartbeat.at_s > 0:
            return heartbeat
        if not self._has_said_that_one_waits and ray.available_resources().get(RESOURCE, 0.0) < 1.0:
            self._has_said_that_one_waits = True
            log.warning(
                "the cluster has no room for collector %d, which waits: start Ray on another machine with "
                "--resources '{\"%s\": N}', or lower n_collectors",
                collector,
                RESOURCE,
            )
        return Heartbeat(time.monotonic(), n_waiting=1)

    def _ask_head(self) -> None:
        with contextlib.suppress(RayError):  # this process ends
            while True:
                ray.nodes()
                self._head_answered_s = time.monotonic()
                time.sleep(ASK_HEAD_EVERY_S)


@contextlib.contextmanager
def on_cluster(
    cluster: str, settings: Settings, spaces: Spaces, networks: Mapping[WeightsKind, nn.Module]
) -> Iterator[OnCluster]:
    """Join a cluster (see `connected`) and open a run's channels over it; `networks` have the first weights.

    Raises:
        UserError: if the cluster cannot be joined, or the sampling is synchronous.
    """
    if settings.sync.is_synchronous:
        raise UserError(
            'sampling = "synchronous" is for one machine, as its turns would wait for the network: leave --cluster '
            'out, or set sampling = "asynchronous"'
        )
    with connected(cluster):
        run_state = RayRunState(settings, networks)
        bounds = RolloutBounds.of_game(settings.game, spaces)
        n_apart = 1 if settings.game.is_in_process else settings.game.games_per_collector
        rollouts = RayRollouts(start_host, bounds, run_state, ROLLOUT_SLOTS_PER_COLLECTOR, n_apart)
        yield OnCluster(Channels(rollouts, run_state))
