"""The train and test replay buffers, which sample mini-races.

The agent estimates the rewards over the next few seconds instead of the time to a finish minutes away. Each
sampled state is at a random point in a *mini-race* with fixed duration; rewards beyond the end do not count,
so the sum is bounded and gamma may be 1.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers import ReplayBuffer
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter

from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES, RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import Experience, ProportionalSampler, Transitions, TransitionStorage
from trackmania_rl.race.actions import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.views import NO_VIEWS, Views
from trackmania_rl.settings import ReplaySettings

GATHERED_ACTIONS: Final = 5
"""Elapsed times up to this are drawn as 0, the full horizon."""


@dataclass
class MiniRaceRules:
    """Mini-race parameters, shared by the train and the test buffer. A changed field applies to the next batch.

    Attributes:
        gamma: discount per action; scheduled, hence not stored with the transitions.
        duration_actions: mini-race length; None for no mini-races: the elapsed time is 0, and nothing is cut.
        oversample_long_term_steps: elapsed times below about this (long horizons) are drawn twice as often as others.
    """

    gamma: float
    duration_actions: int | None
    oversample_long_term_steps: int = 0

    @staticmethod
    def from_settings(settings: ReplaySettings, gamma: float) -> MiniRaceRules:
        """Make a configuration's rules."""
        return MiniRaceRules(
            gamma=gamma,
            duration_actions=settings.temporal_mini_race_duration_actions,
            oversample_long_term_steps=settings.oversample_long_term_steps,
        )

    def draw_elapsed_actions(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw elapsed times, (n,) int64 on the generator's device, from 0 to `duration_actions - 1`.

        abs(uniform integer in [-long + gathered, duration + gathered)) - gathered, at least 0: the absolute value
        doubles the short times, the subtraction gathers the shortest at 0. Without mini-races the times are 0.
        """
        if self.duration_actions is None:
            return torch.zeros(n, dtype=torch.int64, device=generator.device)
        low = GATHERED_ACTIONS - self.oversample_long_term_steps
        high = GATHERED_ACTIONS + self.duration_actions
        drawn = torch.randint(low, high, (n,), generator=generator, device=generator.device)
        return drawn.abs_().sub_(GATHERED_ACTIONS).clamp_(min=0)


class MiniRaceReplayBuffer(ReplayBuffer):
    """torchrl `ReplayBuffer` with transitions over a shared `RingBuffer`, which samples mini-races.

    `buffer[i]` is the i-th oldest `Experience`. Transforms from `append_transform` apply to sampled batches, not to
    stored data.

    Args:
        storage: the transitions; the ring is shared with the other side.
        rules: for mini-races; shared as well.
        batch_size: for `sample()` without an argument.
        generator: randomness source, on the ring buffer's device.

    Attributes:
        write_count: transitions ever added.
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
            collate_fn=functools.partial(buffer_collate_function, rules=rules, generator=generator),
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
            The stored transitions' index (n,) int64; for a race longer than the memory, only those at the race end.

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
        """Add stored rows' transitions to this side; return the count still in the ring.

        Args:
            index: (n,), ascending and above all present ones.
        """
        with self.ring.lock:
            n_added: int = self._storage.append(index)
            self.write_count += n_added
            return n_added

    def empty_copy(self) -> MiniRaceReplayBuffer:
        """Return a buffer with a ring of its own, for one row, and this one's rules, generator and transforms."""
        ring = RingBuffer(1, *self.ring.row_form)
        storage = TransitionStorage(ring, self.storage.n_steps_max, self.storage.views)
        copy = MiniRaceReplayBuffer(storage, self.rules, ProportionalSampler(0.0), self._batch_size, self.generator)
        copy._transform = self._transform
        return copy

    def blank_batch(self) -> TensorDict:
        """Return an all-zero batch like `sample()`'s."""
        ring = RingBuffer(1, *self.ring.row_form)
        for column in ring.columns.by_name().values():
            column.zero_()
        index = torch.zeros(self._batch_size, dtype=torch.int64, device=ring.device)
        generator = torch.Generator(ring.device).manual_seed(0)  # the buffer's own is for training
        transitions = TransitionStorage(ring, self.storage.n_steps_max, self.storage.views).get(index)
        return buffer_collate_function(transitions, rules=self.rules, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        """Return the shared ring buffer's and this side's state; loads with `weights_only=True`."""
        return {"ring": self.ring.state_dict(), "generator": self.generator.get_state()} | self.side_state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the ring buffer with capacity, and this side. Restore the other side afterwards.

        Raises:
            ValueError: if the state does not fit this run's observation.
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
        with self.ring.lock:  # torchrl collates outside the lock, and sets weights after the transforms
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

    With `replay_storage` = "disk" it has one row until the folder is known, see `Memory.keep_in`.

    Args:
        settings: the replay group.
        n_floats: per state, without views.
        image_size_px: a frame's (height, width); (0, 0) for no image.
        device: for rows, generator and batches.
        generator: randomness source.
        gamma: initial discount; `buffer.rules.gamma` changes it.
        views: on the rows around a transition.
        action_shape: () for an index, or (D,) for numbers.
    """
    capacity = settings.memory_size_schedule[0][1] if settings.replay_storage == "ram" else 1
    ring = RingBuffer(capacity, n_floats, image_size_px, device, action_shape)
    rules = MiniRaceRules.from_settings(settings, gamma)

    def side(sampler: ProportionalSampler) -> MiniRaceReplayBuffer:
        storage = TransitionStorage(ring, settings.n_steps, views)
        return MiniRaceReplayBuffer(storage, rules, sampler, settings.batch_size, generator)

    return (
        side(ProportionalSampler(settings.prio_alpha, settings.prio_beta, settings.prio_epsilon)),
        side(ProportionalSampler(0.0)),  # the test loss weights all transitions alike
    )


def buffer_collate_function(
    transitions: Transitions,
    *,
    rules: MiniRaceRules,
    generator: torch.Generator | None = None,
    elapsed: torch.Tensor | None = None,
) -> TensorDict:
    """Put transitions at random points in mini-races.

    With `actions_left` = duration - elapsed time, a transition with n steps is cut to min(n, actions_left). It is
    terminal if it then reaches the finish or the mini-race's end. A cut-off race's last state is bootstrapped.

    Shaping is gamma^n phi(next) - phi(state), with phi = 0 at every terminal end. The elapsed time is part of the
    state, so the mini-race's end is an absorbing state like the finish, and shaping leaves the optimal policy unchanged
    (Ng, Harada and Russell 1999; phi = 0 at every terminal state: Grzes 2017, "Reward shaping in episodic reinforcement
    learning").

    Args:
        transitions: B of them, from `TransitionStorage.get`; changed, and used in the batch.
        rules: discount and mini-races.
        generator: draws the elapsed times, on the transitions' device.
        elapsed: elapsed actions (B,) int64 in the mini-races, instead of drawn ones.

    Returns:
        The batch (B,), on the transitions' device: `state_img` (B, S, H, W) uint8, the newest frame last, H = W = 0
        without an image; `state_float` (B, F) float32, with the elapsed time at `ELAPSED_ACTIONS_FLOAT`; `action` (B,)
        int64, or (B, D) float32; `reward` (B,) float32, the discounted n-step sum with shaping; `next_state_img` and
        `next_state_float`, meaningless where `gamma_n` is 0; `gamma_n` (B,) float32, the factor for the next state's
        value, 0 at the mini-race's end; `n_steps` (B,), actions until the next state; `index` (B,) int64, for
        `update_priority`; `weight` (B,) float32, the importance weight, 1 without priorities; and view entries.
    """
    if elapsed is None:
        assert generator is not None, "elapsed times are given, or a generator draws them"
        elapsed = rules.draw_elapsed_actions(len(transitions.index), generator)
    discounts, of_rewards, is_beyond = _discounts(rules.gamma, transitions.rewards.shape[1], elapsed.device)
    duration_actions = NEVER_FINISHES if rules.duration_actions is None else rules.duration_actions
    actions_left = duration_actions - elapsed  # (B,)
    n_steps = torch.minimum(transitions.n_steps, actions_left)  # (B,) after the cut
    is_terminal = n_steps >= torch.minimum(transitions.terminal_actions, actions_left)  # (B,)
    gamma_n = discounts.take(n_steps).masked_fill_(is_terminal, 0.0)  # (B,)
    # A mask rather than a product: rows after a transition may be uninitialised, even NaN.
    discounted = transitions.rewards * of_rewards  # (B, n_steps_max)
    rewards = discounted.masked_fill_(is_beyond.index_select(0, n_steps), 0.0).sum(1)  # (B,)
    shaping = gamma_n * transitions.next_state_potential - transitions.state_potential  # (B,)
    is_timed = rules.duration_actions is not None
    transitions.state_float.select(1, ELAPSED_ACTIONS_FLOAT).copy_(elapsed)
    transitions.next_state_float.select(1, ELAPSED_ACTIONS_FLOAT).copy_(elapsed + n_steps if is_timed else elapsed)
    is_continuous = transitions.action.ndim > 1
    batch = {
        "state_img": transitions.state_img,
        "state_float": transitions.state_float,
        "action": transitions.action if is_continuous else transitions.action.long(),
        "reward": rewards + shaping,
        "next_state_img": transitions.next_state_img,
        "next_state_float": transitions.next_state_float,
        "gamma_n": gamma_n,
        "n_steps": n_steps,
        "index": transitions.index,
        "weight": torch.ones_like(gamma_n),
    }
    # tensordict's checks on each entry would take a seventh of the time to draw a batch of 64.
    return TensorDict._new_unsafe(batch | transitions.entries, batch_size=elapsed.shape)


@functools.lru_cache(maxsize=8)
def _discounts(gamma: float, n_steps_max: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the discounts (n_steps_max + 1,) over 0, 1, ... actions, for rewards, and the rewards beyond."""
    steps = torch.arange(n_steps_max + 1, device=device)
    discounts = (gamma ** steps.double()).float()
    return discounts, discounts[:-1], steps[:-1] >= steps[:, None]
