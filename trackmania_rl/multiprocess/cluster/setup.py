"""A run's channels and collectors on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trackmania_rl.channels.over_ray.opening import open_ray_channels
from trackmania_rl.channels.over_ray.rollouts import RayRolloutSource
from trackmania_rl.channels.protocols import Channels, WeightsKind
from trackmania_rl.channels.shared_memory.slots import RolloutBounds
from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess.cluster.connecting import connected, environment
from trackmania_rl.multiprocess.cluster.placement import OnCluster
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


@contextmanager
def on_cluster(
    cluster: str, settings: Settings, spaces: Spaces, networks: Mapping[WeightsKind, nn.Module]
) -> Iterator[tuple[Channels, OnCluster]]:
    """Join a cluster and open a run's channels over it.

    Args:
        cluster: see `connected`.
        settings: in force at the beginning.
        spaces: of the games.
        networks: the first weights.

    Raises:
        UserError: if the cluster cannot be joined, or the settings ask for what only one machine can do.
    """
    if settings.sync.is_synchronous:
        raise UserError(
            'sampling = "synchronous" is for one machine, as its turns would wait for the network: leave --cluster '
            'out, or set sampling = "asynchronous"'
        )
    with connected(cluster):
        channels = open_ray_channels(
            settings,
            RolloutBounds.of_game(settings.game, spaces).frames_shape,
            networks,
            games_per_collector=settings.game.rollouts_at_a_time,
        )
        assert isinstance(channels.rollouts, RayRolloutSource)
        yield channels, OnCluster(channels.rollouts, environment())
