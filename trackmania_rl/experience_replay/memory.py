"""A run's replay memory: races to rows and transitions, the memory protocol, and the memory that ships."""

from __future__ import annotations

import itertools
import logging
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.experience_replay.mini_races import (
    MiniRaceReplayBuffer,
    MiniRaceRules,
    buffer_collate_function,
)
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES, RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import Transitions, TransitionStorage
from trackmania_rl.race.actions import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.race import Race
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.schedules import linear, staircase
from trackmania_rl.settings import Settings, SettingsError

SHARE_OF_FREE_MEMORY: Final = 0.7
"""Largest share of a GPU's free memory for the replay; networks and batches need the rest."""

log = logging.getLogger(__name__)


TEST_BLOCK: Final = 10
"""Successive transitions on the same side of the train/test split; neighbours are nearly alike."""


def fill_buffer_from_rollout_with_n_steps_rule(
    buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer, race: Race, settings: Settings
) -> int:
    """Store the T + 1 rows of a rewarded race or fragment; add the T transitions to the train or the test side.

    A transition with `n_steps` actions starts from every state but the last. It is shorter at the race's end and, if so
    configured, before the next exploratory action. A terminal last state ends it (not with `no_done_at_end`); the last
    state in a cut-off race is bootstrapped.

    Args:
        buffer: train side.
        buffer_test: test side, over the same rows.
        race: with rewards and potentials.
        settings: run settings.

    Returns:
        The count of transitions added to both sides: all, unless the race is longer than the memory.

    Raises:
        ValueError: if the arrays' shapes do not fit one another or the buffers.
    """
    new = race.facts.new
    n_transitions = new.end_transition - new.first_transition
    if n_transitions == 0:
        return 0
    rows = rows_of_race(race, settings)
    is_test = draw_test_side(n_transitions, settings.replay.buffer_test_ratio, TEST_BLOCK, buffer.generator)
    with buffer.ring.lock:
        first_row = buffer.ring.append(rows, new.first_row).start
        first_transition = first_row + new.first_transition - new.first_row
        n_train = buffer.append_index(first_transition + (~is_test).nonzero()[0])
        return n_train + buffer_test.append_index(first_transition + is_test.nonzero()[0])


def rows_of_race(race: Race, settings: Settings) -> RowColumns:
    """Return a rewarded race's T + 1 rows as arrays, uncopied where possible."""
    assert race.rewards is not None, "the race is not rewarded"
    replay = settings.replay
    actions = np.asarray(race.columns["actions"])
    n_actions = len(actions)
    n_steps = np.minimum(replay.n_steps, np.arange(n_actions, 0, -1))
    if replay.discard_non_greedy_actions_in_nsteps:
        is_exploratory = ~np.asarray(race.columns["action_was_greedy"], dtype=bool)
        for step in range(replay.n_steps - 1, 0, -1):
            n_steps[:-step][is_exploratory[step:]] = step
    if (soft_horizon_actions := settings.game.soft_horizon_actions) is not None:
        driven_since_cut = (race.facts.new.race_row + np.arange(n_actions)) % soft_horizon_actions
        n_steps = np.minimum(n_steps, soft_horizon_actions - driven_since_cut)
    is_done = race.facts.terminated and not replay.no_done_at_end
    columns: dict[str, Any] = {
        "frames": np.asarray(race.columns["frames"]),
        "state_floats": np.asarray(race.columns["state_float"], dtype=np.float32),
        "actions": _with_last(actions),
        "rewards": _with_last(race.rewards),
        "potentials": race.potentials,
        "n_steps": _with_last(n_steps),
        "steps_to_finish": np.arange(n_actions, -1, -1) if is_done else np.full(n_actions + 1, NEVER_FINISHES),
    }
    return RowColumns(**columns)


def draw_test_side(n: int, test_ratio: float, block: int, generator: torch.Generator) -> npt.NDArray[np.bool_]:
    """Draw the test side (n,) bool for a race's transitions, in blocks, with probability `test_ratio`."""
    uniform = torch.rand(n // block + 1, generator=generator, device=generator.device).numpy(force=True)
    return np.repeat(uniform < test_ratio, block)[:n]


def _with_last(of_actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    of_states = np.zeros((len(of_actions) + 1, *of_actions.shape[1:]), dtype=of_actions.dtype)
    of_states[:-1] = of_actions
    return of_states


def transitions_of_race(race: Race, index: torch.Tensor, settings: Settings, spaces: Spaces) -> Transitions:
    """Return the transitions from states (B,) in a rewarded race, in host memory."""
    rows = rows_of_race(race, settings)
    ring = RingBuffer(len(rows), spaces.n_row_floats, spaces.image_size_px, "cpu", spaces.action_shape)
    ring.append(rows)
    return TransitionStorage(ring, settings.replay.n_steps, spaces.views).get(index)


def mini_races_of_race(
    race: Race, settings: Settings, frames_total: int, spaces: Spaces, generator: torch.Generator
) -> TensorDict:
    """Return a rewarded race's new transitions (n,) as a batch like `buffer_collate_function`'s, in host memory.

    Args:
        race: with rewards and potentials.
        settings: run settings.
        frames_total: the run's actions so far, for the discount schedule.
        spaces: game spaces.
        generator: draws the places in the mini-races.
    """
    new = race.facts.new
    gamma = linear(settings.agent.gamma_schedule, frames_total)
    index = torch.arange(new.first_transition, new.end_transition)
    transitions = transitions_of_race(race, index, settings, spaces)
    rules = MiniRaceRules.from_settings(settings.replay, gamma)
    return buffer_collate_function(transitions, rules=rules, generator=generator)


@runtime_checkable
class Memory(Protocol):
    """Stores races and samples batches. A memory derives from this class; the abstract methods suffice.

    Attributes:
        capacity: the largest possible length; None for no limit.
    """

    capacity: int | None = None

    @abstractmethod
    def extend(self, race: Race, settings: Settings, frames_total: int) -> int:
        """Store a rewarded race or fragment; return how many transitions were added.

        The arrays are valid within the call. `frames_total` counts the run's actions so far.
        """

    @abstractmethod
    def sample(self, n: int) -> TensorDictBase:
        """Draw a training batch (n,) in `buffer_collate_function`'s form."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the size, in the unit for `memory_size_start_learn_schedule`; 0 if nothing can be drawn."""

    def apply_settings(self, settings: Settings, frames_total: int) -> None:
        """Apply the settings in force; called before each round of updates."""

    def use_folder(self, folder: Path) -> None:
        """Use a folder in the run's, which may not exist yet, for files. Called once, before all other methods."""

    def update_priority(self, batch: TensorDictBase) -> None:
        """Use a sampled batch's errors `td_error` (n,)."""

    @property
    def priorities(self) -> torch.Tensor | None:
        """All transitions' priorities; None if the memory draws evenly."""
        return None

    def sample_test(self, n: int) -> TensorDictBase | None:
        """Draw a batch from transitions never trained on; None without any."""
        return None

    def blank_batch(self) -> TensorDictBase | None:
        """Return an all-zero batch, to compile the update before the first race; None to compile it later."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints: numbers, texts, tensors, and lists and dicts with these.

        A `RingBuffer` in it stands for the rows, which are not copied.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class MiniRaceMemory(Memory):
    """The memory that ships: the two sides of the train/test split, from `make_buffers`. The length counts states.

    With `demonstrations_share` demonstrations are in a third buffer. The last rows of each batch are theirs, and the
    entry `is_demonstration` (B,) bool marks them.

    Raises:
        SettingsError: if the buffers have different ring buffers, or none.
    """

    def __init__(self, buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer, settings: Settings) -> None:
        rings = {id(getattr(side, "ring", side)) for side in (buffer, buffer_test)}
        if len(rings) != 1:
            raise SettingsError("memory: buffer and buffer_test have different rings; make both by one make_buffers")
        self.buffer = buffer
        self.buffer_test = buffer_test
        self.demonstrations = buffer.empty_copy()
        self._settings = settings
        self._refused_capacity: int | None = None

    @property
    @override
    def capacity(self) -> int:  # type: ignore[override]
        return self.buffer.ring.capacity

    def __len__(self) -> int:
        return len(self.buffer.ring) if len(self.buffer) > 0 else 0

    @override
    def use_folder(self, folder: Path) -> None:
        if self._settings.replay.replay_storage == "disk":
            self.buffer.ring.folder = folder  # the next call of `apply_settings` or `load_state_dict` makes the files

    @override
    def extend(self, race: Race, settings: Settings, frames_total: int) -> int:
        if race.facts.is_demonstration and self._settings.replay.demonstrations_share > 0:
            rows = rows_of_race(race, settings)
            self.demonstrations.ring.resize(len(self.demonstrations.ring) + len(rows))
            return len(self.demonstrations.extend(rows))
        return fill_buffer_from_rollout_with_n_steps_rule(self.buffer, self.buffer_test, race, settings)

    @override
    def sample(self, n: int) -> TensorDictBase:
        share = self._settings.replay.demonstrations_share
        if share == 0:
            batch: TensorDictBase = self.buffer.sample(n)
            return batch
        n_demonstrations = min(round(n * share), n - 1) if len(self.demonstrations) > 0 else 0
        batch = self.buffer.sample(n - n_demonstrations)
        if n_demonstrations > 0:
            batch = torch.cat((batch, self.demonstrations.sample(n_demonstrations)))
        batch.set("is_demonstration", torch.arange(n, device=batch["index"].device) >= n - n_demonstrations)
        return batch

    @override
    def sample_test(self, n: int) -> TensorDictBase | None:
        return self.buffer_test.sample(n) if len(self.buffer_test) > 0 else None

    @override
    def blank_batch(self) -> TensorDictBase:
        batch = self.buffer.blank_batch()
        if self._settings.replay.demonstrations_share > 0:
            batch.set("is_demonstration", torch.zeros(len(batch), dtype=torch.bool, device=batch["index"].device))
        return batch

    @override
    def apply_settings(self, settings: Settings, frames_total: int) -> None:
        self._settings = settings
        replay = settings.replay
        rules = self.buffer.rules
        rules.gamma = linear(settings.agent.gamma_schedule, frames_total)
        rules.duration_actions = replay.temporal_mini_race_duration_actions
        rules.oversample_long_term_steps = replay.oversample_long_term_steps
        sampler = self.buffer.sampler
        sampler.alpha = replay.prio_alpha
        sampler.beta = replay.prio_beta
        sampler.epsilon = replay.prio_epsilon
        self.buffer._batch_size = self.buffer_test._batch_size = replay.batch_size  # for torchrl's `sample()`
        self._resize(staircase(replay.memory_size_schedule, frames_total))

    def _resize(self, capacity: int) -> None:
        # If allocation fails, the memory keeps the size, and logs that once.
        ring = self.buffer.ring
        needs_files = ring.folder is not None and ring.files is None
        if capacity == self._refused_capacity or (capacity == self.capacity and not needs_files):
            return
        try:
            ring.resize(capacity)
        except (RuntimeError, OSError) as error:  # RuntimeError is torch's error on any device
            if needs_files:
                raise UserError(
                    f"replay_storage: cannot make the files of {capacity:,} transitions in {ring.folder}: "
                    f"{one_line(error)}; free some space on the disk, or lower memory_size_schedule"
                ) from error
            self._refused_capacity = capacity
            log.error(
                "there is no room for a replay memory of %s transitions, so it keeps its %s: lower "
                "memory_size_schedule, or end other programs and start again",
                f"{capacity:,}",
                f"{self.capacity:,}",
            )

    @override
    def update_priority(self, batch: TensorDictBase) -> None:
        if self.buffer.sampler.alpha == 0:
            return
        is_demonstration = batch.get("is_demonstration", None)
        if is_demonstration is not None:
            batch = batch[~is_demonstration]
        index = batch["index"]
        td_error = batch["td_error"]
        replay = self._settings.replay
        if replay.temporal_mini_race_duration_actions is not None:
            horizon_actions = replay.temporal_mini_race_duration_actions - replay.oversample_long_term_steps
            # Errors near a mini-race's end are small for any network, and do not count.
            is_early = batch["state_float"][:, ELAPSED_ACTIONS_FLOAT] < horizon_actions
            index = index[is_early]
            td_error = td_error[is_early.to(td_error.device)]
        if len(index) > 0:
            self.buffer.update_priority(index, td_error)

    @property
    @override
    def priorities(self) -> torch.Tensor | None:
        return None if self.buffer.sampler.alpha == 0 else self.buffer.storage.priorities

    @override
    def state_dict(self) -> dict[str, Any]:
        shared = {"ring": self.buffer.ring.state_to_write(), "generator": self.buffer.generator.get_state()}
        sides = {"test": self.buffer_test.side_state_dict(), "demonstrations": self.demonstrations.state_dict()}
        return shared | self.buffer.side_state_dict() | sides

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # The capacity is the checkpoint's, at most the schedule's largest.
        ring = state_dict["ring"]
        sizes = [size for _, size in self._settings.replay.memory_size_schedule]
        most = max(*sizes, self.capacity, int(ring["end_row"]) - int(ring["first_row"]))
        bounded = state_dict | {"ring": ring | {"capacity": min(int(ring["capacity"]), most)}}
        self.buffer.load_state_dict(bounded)
        self.buffer_test.load_side_state_dict(state_dict["test"])
        self.demonstrations.load_state_dict(state_dict["demonstrations"])


def pick_replay_device(
    training_device: torch.device,
    schedule: Sequence[tuple[int, int]],
    n_floats: int,
    image_size_px: tuple[int, int],
    action_shape: tuple[int, ...] = (),
) -> torch.device:
    """Return the device for the replay memory: the training device if old and new columns fit at each growth, else CPU.

    The schedule is `memory_size_schedule`, the other arguments are as in `RingBuffer`.
    """
    if training_device.type != "cuda":
        return training_device
    sizes = [n_rows for _, n_rows in schedule]
    most_rows = max([sizes[0], *(old + new for old, new in itertools.pairwise(sizes))])
    needed_bytes = most_rows * RingBuffer.bytes_per_row(n_floats, image_size_px, action_shape)
    free_bytes, _ = torch.cuda.mem_get_info(training_device)
    if needed_bytes <= SHARE_OF_FREE_MEMORY * free_bytes:
        return training_device
    log.warning(
        "the replay memory is kept in host memory: it needs up to %.1f GiB, and the GPU has %.1f GiB free; a smaller "
        "memory_size_schedule would fit",
        needed_bytes / 2**30,
        free_bytes / 2**30,
    )
    return torch.device("cpu")
