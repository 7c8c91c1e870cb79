"""Replay memory on disk: a plain replay buffer of torchrl in memory-mapped files.

    python scripts/train.py --set run_name=on_disk --set memory=examples.disk_memory:DiskMemory

For memories larger than the machine's. A transition's place in a mini-race is drawn once, when it is stored. The files
are temporary: a resumed run refills its memory.
"""

import torch
from tensordict import TensorDictBase
from torchrl.data import LazyMemmapStorage, ReplayBuffer

from trackmania_rl.agents.devices import pick_device
from trackmania_rl.experience_replay.memory import Memory, mini_races_of_race
from trackmania_rl.race.race import Race
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings


class DiskMemory(Memory):
    """Memory of n-step transitions; called with the run's settings, the games' spaces and the run's seeds."""

    def __init__(self, settings: Settings, spaces: Spaces, seeds: SeedTree) -> None:
        self.spaces = spaces
        self.device = pick_device(settings.run.torch_device)
        self.capacity = max(size for _, size in settings.replay.memory_size_schedule)
        self.generator = torch.Generator().manual_seed(seeds.integer("replay"))
        self.buffer = ReplayBuffer(storage=LazyMemmapStorage(self.capacity), generator=self.generator)

    def extend(self, race: Race, settings: Settings, frames_total: int) -> int:
        """Store the transitions of a race as a training batch."""
        transitions = mini_races_of_race(race, settings, frames_total, self.spaces, self.generator)
        if not self.spaces.has_image:
            transitions = transitions.exclude("state_img", "next_state_img")  # files must not be empty
        self.buffer.extend(transitions)
        return len(transitions)

    def sample(self, n: int) -> TensorDictBase:
        """Draw a batch."""
        batch: TensorDictBase = self.buffer.sample(n)
        if not self.spaces.has_image:
            batch["state_img"] = batch["next_state_img"] = torch.empty((n, *self.spaces.image_shape), dtype=torch.uint8)
        return batch.to(self.device)

    def __len__(self) -> int:
        return len(self.buffer)
