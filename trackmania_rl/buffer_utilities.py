"""The train and test replay buffers, and the sampling of mini-races."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers import ReplayBuffer
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter

from trackmania_rl.experience_replay.mini_race import MiniRaceRules, cut_to_mini_races
from trackmania_rl.experience_replay.ring_buffer import RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import Experience, ProportionalSampler, Transitions, TransitionStorage
from trackmania_rl.race.views import NO_VIEWS, Views
from trackmania_rl.settings import ReplaySettings


class MiniRaceReplayBuffer(ReplayBuffer):
    """torchrl `ReplayBuffer` of transitions over a shared `RingBuffer`, which samples mini-races.

    `buffer[i]` is the i-th oldest `Experience`. Transforms of `append_transform` apply to sampled batches, not to
    stored data.

    Args:
        storage: the transitions; its ring is shared with the other side.
        rules: of mini-races; shared as well.
        batch_size: of `sample()` without an argument.
        generator: source of randomness, on the ring buffer's device.

    Attributes:
        write_count: number of transitions ever added.
    """

    write_count = 0

    def __init__(
        self,
        storage: TransitionStorage,
        rules: MiniRaceRules,
        sampler: ProportionalSampler,
        batch_size: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__(
            storage=storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter(),  # torchrl's writers store by position; `extend` below writes
            collate_fn=partial(buffer_collate_function, rules=rules, generator=generator),
            batch_size=batch_size,
            generator=generator,
        )
        self.ring = storage.ring
        self._replay_lock = storage.ring.lock
        self.rules = rules
        self.generator = generator

    def __getitem__(self, index: Any) -> Any:
        """Return the `Experience` at an index (int), or mini-races at several (slice, tensor)."""
        if not isinstance(index, int):
            return super().__getitem__(index)
        with self.ring.lock:
            place = range(len(self))[index]
            return Experience.of(self.storage[place : place + 1], self.rules.gamma)

    def extend(self, data: RowColumns | TensorDictBase, *, update_priority: bool | None = None) -> torch.Tensor:
        """Store a race after the others.

        Args:
            data: a race's rows, as `RowColumns` or a TensorDict with its columns; a transition starts at each row with
                `n_steps` > 0.
            update_priority: ignored.

        Returns:
            The index (n,) int64 of the stored transitions; of a race longer than the memory, those of its end.

        Raises:
            ValueError: if the rows' shape is not the ring buffer's.
        """
        if isinstance(data, TensorDictBase):
            data = RowColumns(**{field.name: data[field.name] for field in fields(RowColumns)})
        with self.ring.lock:
            rows = self.ring.append(data)
            n_steps = torch.as_tensor(data.n_steps).numpy(force=True)
            n_added = self.append_index(rows.start + n_steps.nonzero()[0])
            return self.storage.index[len(self) - n_added :].clone()

    def append_index(self, index: npt.ArrayLike) -> int:
        """Add the transitions of stored rows to this side; return the number still in the ring.

        Args:
            index: (n,), ascending and above all present ones.
        """
        with self.ring.lock:
            n_added: int = self._storage.append(index)
            self.write_count += n_added
            return n_added

    def blank_batch(self) -> TensorDict:
        """Return a batch of zeros like `sample()`'s."""
        frame_size_px = self.ring.columns.frames.shape[-2:]
        n_floats = self.ring.columns.state_floats.shape[-1]
        action_shape = tuple(self.ring.columns.actions.shape[1:])
        ring = RingBuffer(1, n_floats, (frame_size_px[0], frame_size_px[1]), self.ring.device, action_shape)
        for column in ring.columns.by_name().values():
            column.zero_()
        index = torch.zeros(self._batch_size, dtype=torch.int64, device=ring.device)
        generator = torch.Generator(ring.device).manual_seed(0)  # the buffer's own is for training
        transitions = TransitionStorage(ring, self.storage.n_steps_max, self.storage.views).get(index)
        return buffer_collate_function(transitions, rules=self.rules, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the shared ring buffer and this side; loads with `weights_only=True`."""
        return {"ring": self.ring.state_dict(), "generator": self.generator.get_state()} | self.side_state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the ring buffer with its capacity, and this side. Restore the other side afterwards.

        Raises:
            ValueError: if the state does not fit this run's observation, or is damaged.
        """
        self.ring.load_state_dict(state_dict["ring"])
        self.ring.columns.n_steps.clamp_(max=self.storage.n_steps_max)  # the setting may have been larger
        if len(state_dict["generator"]) == len(self.generator.get_state()):  # else of another device type
            self.generator.set_state(state_dict["generator"])
        self.load_side_state_dict(state_dict)

    def side_state_dict(self) -> dict[str, Any]:
        """Return this side's state."""
        return {
            "storage": self.storage.state_dict(),
            "writer": {"write_count": self.write_count},
            "transform": self.transform.state_dict(),
        }

    def load_side_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore this side, after the ring buffer."""
        self.storage.load_state_dict(state_dict["storage"])
        self.write_count = int(state_dict["writer"]["write_count"])
        self.transform.load_state_dict(state_dict["transform"], strict=False)  # the setting may have changed

    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        with self.ring.lock:  # torchrl collates outside its lock, and sets weights after the transforms
            index, info = self._sampler.sample(self._storage, batch_size)
            batch = self._collate_fn(self._storage.get(index))
        info["index"] = index
        if "weight" in info:
            batch["weight"] = info["weight"]
        return (self._transform(batch) if len(self._transform) else batch), info


def make_buffers(
    settings: ReplaySettings,
    *,
    n_floats: int,
    image_size_px: tuple[int, int],
    device: torch.device | str,
    generator: torch.Generator,
    gamma: float = 1.0,
    views: Views = NO_VIEWS,
    action_shape: tuple[int, ...] = (),
) -> tuple[MiniRaceReplayBuffer, MiniRaceReplayBuffer]:
    """Make the train and test buffers over one ring buffer, sized by `memory_size_schedule` at frame 0.

    With `replay_storage` = "disk" it has one row until its folder is known, see `Memory.keep_in`.

    Args:
        settings: the replay group.
        n_floats: of one state, without views.
        image_size_px: (height, width) of a frame; (0, 0) for no image.
        device: of rows, generator and batches.
        generator: source of randomness.
        gamma: initial discount; `buffer.rules.gamma` changes it.
        views: of the rows around a transition.
        action_shape: () of an index, or (D,) of numbers.
    """
    capacity = settings.memory_size_schedule[0][1] if settings.replay_storage == "ram" else 1
    ring = RingBuffer(capacity, n_floats, image_size_px, device, action_shape)
    rules = MiniRaceRules.from_settings(settings, gamma)

    def side(sampler: ProportionalSampler) -> MiniRaceReplayBuffer:
        storage = TransitionStorage(ring, settings.n_steps, views)
        return MiniRaceReplayBuffer(storage, rules, sampler, settings.batch_size, generator)

    return (
        side(ProportionalSampler(settings.prio_alpha)),
        side(ProportionalSampler(0.0)),  # the test loss weights all transitions alike
    )


def apply_replay_settings(
    buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer, settings: ReplaySettings
) -> None:
    """Apply edited settings: batch size, mini-races, priorities."""
    buffer.rules.duration_actions = settings.temporal_mini_race_duration_actions
    buffer.rules.oversample_long_term_steps = settings.oversample_long_term_steps
    buffer.sampler.alpha = settings.prio_alpha
    buffer._batch_size = buffer_test._batch_size = settings.batch_size  # of torchrl's `sample()`


def buffer_collate_function(
    transitions: Transitions, *, rules: MiniRaceRules, generator: torch.Generator
) -> TensorDict:
    """Put transitions at random points of mini-races.

    With `actions_left` = duration - elapsed time, a transition of n steps is cut to min(n, actions_left). It is
    terminal if it then reaches the finish or the mini-race's end. A cut-off race's last state is bootstrapped.

    Shaping is gamma^n phi(next) - phi(state), with phi = 0 at every terminal end. The elapsed time is part of the
    state, so the mini-race's end is an absorbing state like the finish, and shaping leaves the optimal policy unchanged
    (Ng, Harada and Russell 1999; phi = 0 at every terminal state: Grzes 2017, "Reward shaping in episodic reinforcement
    learning").

    Args:
        transitions: B of them, of `TransitionStorage.get`; changed, and used in the batch.
        rules: discount and mini-races.
        generator: draws the elapsed times, on the transitions' device.

    Returns:
        The batch (B,), on the transitions' device: `state_img` (B, S, H, W) uint8, the newest frame last, H = W = 0
        without an image; `state_float` (B, F) float32, with the elapsed time at `ELAPSED_ACTIONS_FLOAT`; `action` (B,)
        int64, or (B, D) float32; `reward` (B,) float32, the discounted n-step sum with shaping; `next_state_img` and
        `next_state_float`, meaningless where `gamma_n` is 0; `gamma_n` (B,) float32, the factor of the next state's
        value, 0 at the mini-race's end; `n_steps` (B,), actions until the next state; `index` (B,) int64, for
        `update_priority`; `weight` (B,) float32, the importance weight, 1 without priorities; and entries of views.
    """
    elapsed = rules.draw_elapsed_actions(len(transitions.index), generator)
    return cut_to_mini_races(transitions, elapsed, rules)
