"""Opens both channels of a run over the Ray cluster that this process is connected to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trackmania_rl.channels.over_ray.relay import Relay
from trackmania_rl.channels.over_ray.rollouts import RayRolloutSource
from trackmania_rl.channels.over_ray.run_state import RayRunState
from trackmania_rl.channels.protocols import ROLLOUT_SLOTS_PER_COLLECTOR, Channels, WeightsKind
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import nn


def open_ray_channels(
    settings: Settings,
    frames_shape: tuple[int, int, int, int],
    networks: Mapping[WeightsKind, nn.Module],
    games_per_collector: int,
) -> Channels:
    """Open the channels of a run whose collectors are actors of the cluster.

    Args:
        settings: in force at the beginning.
        frames_shape: of a collector's room for one race, (states of the longest race, 1, H, W).
        networks: by kind; what they hold is pulled until something is published.
        games_per_collector: races that leave a collector by themselves; one that steps its games together has 1.
    """
    relay = start_relay()
    run_state = RayRunState(relay, settings, networks)
    rollouts = RayRolloutSource(
        relay,
        frames_shape,
        ROLLOUT_SLOTS_PER_COLLECTOR,
        games_per_collector,
        on_new_relay=run_state.publish_again,
    )
    return Channels(rollouts, run_state)


def start_relay() -> Any:
    """Start the relay on this machine; Ray starts it again, empty, however often it is killed."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Relay).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()
