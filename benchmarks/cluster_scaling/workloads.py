"""What collectors make, a learner takes and the way between them carries: the rates that a simulation begins with.

Each rate says what it is of; those measured are of docs/benchmarks.rst, on two cores of an AMD EPYC unless a note says
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

BATCH_FULL_SIZE = 512
ROW_BYTES = 910.0
"""An action without a picture on its way: floats, Q values and the rest."""
PICTURE_ROW_BYTES = 20_100.0
"""And with one of 160 x 120."""
GIGABIT_BYTES_PER_S = 112.5e6
"""What a gigabit a second carries, less a tenth for headers and gaps."""


@dataclass(frozen=True)
class Workload:
    """A configuration, as the way between collectors and learner sees it.

    Attributes:
        name: of the configuration.
        rows_per_race: actions in one race.
        row_bytes: of an action on its way.
        collector_actions_per_s: that one collector makes when it waits for nothing.
        learner_actions_per_s: that the learner trains on, at the configuration's replay ratio.
        weights_bytes: of one publication.
        publish_every_s: the least time between publications (`cluster_publish_every_s`).
        rooms: races that a collector may have under way or waiting before it waits itself.
        is_assumed: whether a rate is assumed, as it could not be measured.
    """

    name: str
    rows_per_race: int
    row_bytes: float
    collector_actions_per_s: float
    learner_actions_per_s: float
    weights_bytes: float
    publish_every_s: float
    rooms: int
    is_assumed: bool = False

    @property
    def bytes_per_race(self) -> float:
        """Of a whole race."""
        return self.rows_per_race * self.row_bytes


@dataclass(frozen=True)
class Machines:
    """Where collectors play.

    Attributes:
        n: how many machines, the learner's not counted.
        collectors_each: on each of them.
        link_bytes_per_s: that a machine's network carries, in each direction.
        relay_calls_per_s: that the relay answers; assumed, not measured.
    """

    n: int
    collectors_each: int = 4
    link_bytes_per_s: float = GIGABIT_BYTES_PER_S
    relay_calls_per_s: float = 1_000.0

    @property
    def n_collectors(self) -> int:
        """On all machines."""
        return self.n * self.collectors_each


def full_size_actions_per_s(update_s: float, replay_ratio: float) -> float:
    """What a learner of the full-size network takes, when each update of so many seconds trains on 512 transitions."""
    fill_s = 2.76e-3 / 1_000  # per row: python -m benchmarks.performance --only transport
    return 1 / (update_s * replay_ratio / BATCH_FULL_SIZE + fill_s)


def workloads(gpu_update_ms: float) -> list[Workload]:
    """The configurations that docs/cluster.rst speaks of.

    Args:
        gpu_update_ms: one full-size update of 512 on the GPU in question. The command's default is assumed; measure
            yours with `python -m benchmarks.performance --device cuda --only learner_step`.
    """
    default = Workload(
        name="default",
        rows_per_race=420,  # valley, some 21 s
        row_bytes=ROW_BYTES,
        collector_actions_per_s=3_900.0,  # eight games in process, nothing else running
        learner_actions_per_s=2_600.0,  # a training's frames/s while the learner is the limit
        weights_bytes=1.2e6,
        publish_every_s=0.5,
        rooms=4,
    )
    pictures = Workload(
        name="pictures",
        rows_per_race=1_000,
        row_bytes=PICTURE_ROW_BYTES,
        collector_actions_per_s=170.0,  # 32 states in 190 ms on one core, the full network
        learner_actions_per_s=full_size_actions_per_s(0.70, 32.0),  # bfloat16, one thread of a Xeon with AMX
        weights_bytes=26.3e6,
        publish_every_s=5.0,
        rooms=4,
    )
    on_gpu = replace(
        pictures,
        name="pictures, GPU learner",
        learner_actions_per_s=full_size_actions_per_s(gpu_update_ms / 1000, 32.0),
        is_assumed=True,
    )
    less_replay = replace(
        on_gpu,
        name="pictures, GPU learner, replay ratio 4",
        learner_actions_per_s=full_size_actions_per_s(gpu_update_ms / 1000, 4.0),
    )
    return [default, pictures, on_gpu, less_replay]
