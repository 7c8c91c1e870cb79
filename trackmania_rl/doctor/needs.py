"""What a configuration needs of a machine, as far as it can be told beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.settings import Settings
from trackmania_rl.settings.run_folder import KEPT_CHECKPOINTS

GAME_BYTES: Final = 1 << 30
"""Of one instance of the real game."""
PROCESS_BYTES: Final = 600 << 20
"""Of one of our processes, most of it torch."""
TRANSITION_BYTES: Final = 16
"""Of one transition beside its row in the replay memory: the row's number, and a priority."""
MEMORIES_ON_DISK: Final = 3
"""Checkpoints share the rows of the replay memory; those of the best one, of the newest and of those between may differ
altogether."""
MORE_CHECKPOINTS: Final = 2
"""Beside the newest ones: the best one, and for a moment the next one."""
NETWORKS_BYTES: Final = 32 << 20
"""Of what else is in a checkpoint: networks and the optimizer's means."""


@dataclass(frozen=True)
class Needs:
    """What a training takes at most, in bytes.

    Attributes:
        replay: of the largest replay memory, which is on a GPU if it fits there.
        memory: with the processes and the games.
        disk: its checkpoints, and what has to stay free.
        sees_images: whether the network is much slower without a GPU.
    """

    replay: int
    memory: int
    disk: int
    sees_images: bool

    @classmethod
    def of(cls, settings: Settings) -> Needs:
        """Estimate what a configuration needs."""
        game, replay = settings.game, settings.replay
        n_floats = ObservationLayout(settings.observation, game.actions).n_own_floats
        row_bytes = RingBuffer.bytes_per_row(n_floats, game.image_shape[1:])
        # While it grows the old columns are there too, but host memory is used only as rows fill it: the larger counts.
        replay_bytes = (row_bytes + TRANSITION_BYTES) * max(size for _, size in replay.memory_size_schedule)
        games_bytes = 0 if game.game == "simulated" else GAME_BYTES * game.n_collectors * game.games_per_collector
        rows_bytes = MEMORIES_ON_DISK * replay_bytes * settings.run.checkpoint_holds_replay
        networks_bytes = (KEPT_CHECKPOINTS + MORE_CHECKPOINTS) * NETWORKS_BYTES
        return cls(
            replay=replay_bytes,
            memory=replay_bytes + games_bytes + PROCESS_BYTES * (1 + game.n_collectors),
            disk=rows_bytes + networks_bytes + (settings.run.minimum_free_disk_mb << 20),
            sees_images=game.has_image,
        )
