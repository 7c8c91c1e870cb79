"""The two replay buffers, and how a batch of mini-races is drawn from them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchrl.data.replay_buffers import ReplayBuffer

from trackmania_rl.experience_replay.experience import read_experience
from trackmania_rl.experience_replay.frame_history import add_older_frames
from trackmania_rl.experience_replay.mini_race import MiniRaceBatch, MiniRaceRules
from trackmania_rl.experience_replay.mini_race_cut import cut_on_device, cut_on_host
from trackmania_rl.experience_replay.proportional_sampler import IMPORTANCE_WEIGHT, ProportionalSampler
from trackmania_rl.experience_replay.row_ring import RowRing
from trackmania_rl.experience_replay.transition_storage import TransitionStorage, TransitionWriter
from trackmania_rl.settings import ReplaySettings


class MiniRaceReplayBuffer(ReplayBuffer):
    """A torchrl `ReplayBuffer` of transitions over a shared `RowRing`, which samples `MiniRaceBatch`es.

    `buffer[i]` is the i-th oldest `Experience`; `buffer.sample()` draws a batch with `buffer_collate_function`;
    `buffer.update_priority(batch.row_id, errors)` is torchrl's, with row numbers.

    Args:
        ring: the rows, shared with the buffer of the other side.
        rules: the mini-races, likewise shared.
        sampler: which transitions are drawn.
        n_steps_max: the configured number of steps.
        batch_size: of `sample()` without an argument.
        generator: the source of all randomness, on the ring's device.
        frames_per_state: how many frames make one image.
    """

    def __init__(
        self,
        ring: RowRing,
        rules: MiniRaceRules,
        sampler: ProportionalSampler,
        n_steps_max: int,
        batch_size: int,
        generator: torch.Generator,
        frames_per_state: int = 1,
    ) -> None:
        self._cut = partial(
            buffer_collate_function, rules=rules, n_steps_max=n_steps_max, frames_per_state=frames_per_state
        )
        super().__init__(
            storage=TransitionStorage(ring),
            sampler=sampler,
            writer=TransitionWriter(),
            collate_fn=partial(self._cut, ring=ring, generator=generator),
            batch_size=batch_size,
            generator=generator,
        )
        self.ring = ring
        self.rules = rules
        self.n_steps_max = n_steps_max
        self.generator = generator

    def __getitem__(self, index: Any) -> Any:
        """The `Experience` at a place (whole number), or the `MiniRaceBatch` of several (slice, tensor)."""
        if isinstance(index, int):
            with self.ring.lock:
                row_id = int(self.storage.get(index))
                return read_experience(self.ring, row_id, self.n_steps_max, self.rules.gamma)
        return super().__getitem__(index)

    def append_rows(self, row_ids: npt.NDArray[np.int64]) -> int:
        """`extend` for a whole race, without torchrl's detours by transforms and places in the list.

        Args:
            row_ids: (n,) rows at which the transitions start, ascending and above all that are there.

        Returns:
            How many were added: all whose rows are in the ring.
        """
        with self._replay_lock, self._write_lock:
            n_added: int = self._writer.append(row_ids)
        return n_added

    def set_batch_size(self, batch_size: int) -> None:
        """Change what `sample()` draws without an argument."""
        self._batch_size = batch_size

    def blank_batch(self) -> MiniRaceBatch:
        """A batch of zeros in the form of `sample()`'s, to compile the update before the first race."""
        frame_size_px = self.ring.columns.frames.shape[-2:]
        n_floats = self.ring.columns.state_floats.shape[-1]
        ring = RowRing(1, n_floats, (frame_size_px[0], frame_size_px[1]), self.ring.device)
        for column in ring.columns.by_name().values():
            column.zero_()
        row_ids = torch.zeros(self._batch_size, dtype=torch.int64, device=ring.device)
        generator = torch.Generator(ring.device).manual_seed(0)  # the buffer's own is for training
        return self._cut(row_ids, ring=ring, generator=generator)

    def _sample(self, batch_size: int) -> tuple[MiniRaceBatch, dict[str, Any]]:
        # torchrl lets go of its lock before it collates, but here that is when the rows are read.
        with self.ring.lock:
            batch, info = super()._sample(batch_size)
        if IMPORTANCE_WEIGHT in info:
            batch.weight = info[IMPORTANCE_WEIGHT]
        return batch, info


def make_buffers(
    settings: ReplaySettings,
    *,
    n_floats: int,
    image_size_px: tuple[int, int],
    device: torch.device | str,
    generator: torch.Generator,
    gamma: float = 1.0,
    frames_per_state: int = 1,
) -> tuple[MiniRaceReplayBuffer, MiniRaceReplayBuffer]:
    """Make the train and the test buffer over one ring of rows.

    The ring has as many rows as `memory_size_schedule` says for frame 0; `resize_buffers` follows the schedule.

    Args:
        settings: the replay group of the configuration.
        n_floats: floats of one state.
        image_size_px: (height, width) of a frame; (0, 0) for no image.
        device: where the rows live and batches come to lie.
        generator: the source of all randomness, on the same device.
        gamma: discount at first; set `buffer.rules.gamma` to follow the schedule.
        frames_per_state: how many frames make one image of a batch; one frame is stored for each row.

    Returns:
        (buffer, buffer_test): nothing in the latter is ever to be trained on.
    """
    ring = RowRing(settings.memory_size_schedule[0][1], n_floats, image_size_px, device)
    rules = MiniRaceRules.from_settings(settings, gamma)
    buffer, buffer_test = (
        MiniRaceReplayBuffer(ring, rules, sampler, settings.n_steps, settings.batch_size, generator, frames_per_state)
        for sampler in (
            ProportionalSampler(settings.prio_alpha, settings.prio_beta, settings.prio_epsilon),
            ProportionalSampler(alpha=0.0),  # the test loss is about all transitions alike
        )
    )
    return buffer, buffer_test


def apply_replay_settings(
    buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer, settings: ReplaySettings
) -> None:
    """Follow an edited configuration without losing content: batch size, mini-races, priorities."""
    buffer.rules.follow(settings)
    buffer.sampler.alpha = settings.prio_alpha
    buffer.sampler.beta = settings.prio_beta
    buffer.sampler.epsilon = settings.prio_epsilon
    for side in (buffer, buffer_test):
        side.set_batch_size(settings.batch_size)


def resize_buffers(buffer: MiniRaceReplayBuffer, memory_size: int) -> None:
    """Let the memory (both sides, as they share it) hold `memory_size` rows; growing loses nothing."""
    if memory_size != buffer.ring.capacity:
        buffer.ring.resize(memory_size)


def buffer_collate_function(
    row_ids: torch.Tensor,
    *,
    ring: RowRing,
    rules: MiniRaceRules,
    n_steps_max: int,
    generator: torch.Generator | None,
    frames_per_state: int = 1,
) -> MiniRaceBatch:
    """Put transitions at random points of mini-races.

    An elapsed time is drawn for each; only the next `actions_left` = duration - elapsed count. A transition of n steps
    is cut to min(n, actions_left). It is terminal, and its next state's value has no part in the target, when the cut
    transition reaches the finish or the mini-race's end. A race that was cut off (no progress, too long) was not over:
    there the value of the last state is bootstrapped as anywhere else.

    Shaping is gamma^n phi(next) - phi(state), with phi = 0 at *every* terminal end, be it of the race or the mini-race.
    The time elapsed belongs to the state, so the mini-race's end is an absorbing state like the finish; the shaping
    terms of any course then sum up to -phi(first state), whatever is driven, which leaves the best policy what it was
    (Ng, Harada and Russell 1999; phi = 0 at every terminal state: Grzes 2017, "Reward shaping in episodic reinforcement
    learning"). Counting phi(next) at the mini-race's end would instead pay for standing well then.

    Args:
        row_ids: (B,) int64, rows at which transitions start.
        ring: the rows.
        rules: discount and mini-races at this moment.
        n_steps_max: the largest `n_steps` in the ring.
        generator: draws the elapsed times.
        frames_per_state: S, how many frames make one image.

    Returns:
        The batch, on the ring's device, with importance weights 1.
    """
    elapsed = rules.draw_elapsed_actions(len(row_ids), generator, ring.device)
    if ring.device.type == "cpu":
        batch = cut_on_host(row_ids, elapsed, ring, rules)
    else:
        batch = cut_on_device(row_ids, elapsed, ring, rules, n_steps_max)
    if frames_per_state > 1:
        add_older_frames(batch, elapsed, ring, rules, frames_per_state)
    return batch


def replay_state_dict(buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer) -> dict[str, Any]:
    """All that an exact resumption needs: filled rows, both sides, priorities, generator.

    Only tensors in host memory, whole numbers and dictionaries, hence readable with `weights_only=True`.
    """
    sides = {"buffer": buffer, "buffer_test": buffer_test}
    return {
        "ring": buffer.ring.state_dict(),
        "sides": {
            name: {"storage": s.storage.state_dict(), "writer": s.writer.state_dict()} for name, s in sides.items()
        },
        "generator": buffer.generator.get_state(),
    }


def load_replay_state_dict(
    buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer, state: dict[str, Any]
) -> None:
    """Take over what `replay_state_dict` returned, its capacity included.

    On another type of device all is the same but for the random numbers that are drawn from now on.

    Raises:
        ValueError: if it does not fit this run's observation, or is damaged.
    """
    buffer.ring.load_state_dict(state["ring"])
    # Transitions may have been longer than they are configured to be now; those that are cut are as valid.
    buffer.ring.columns.n_steps.clamp_(max=buffer.n_steps_max)
    for name, side in (("buffer", buffer), ("buffer_test", buffer_test)):
        side.storage.load_state_dict(state["sides"][name]["storage"])
        side.writer.load_state_dict(state["sides"][name]["writer"])
    if len(state["generator"]) == len(buffer.generator.get_state()):  # else of another type of device
        buffer.generator.set_state(state["generator"])
