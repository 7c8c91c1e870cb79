"""The memory for on-policy agents: the newest rollouts, trained on for a few epochs and then dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from typing_extensions import override

from trackmania_rl.experience_replay.memory import Memory, mini_races_of_race
from trackmania_rl.race.race import Race
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, SettingsError

NEEDED: Final = {"n_steps": 1, "temporal_mini_race_duration_actions": None, "demonstrations_share": 0.0}
"""Settings for transitions that follow one another, all drawn by the policy."""


class RolloutStore(Memory):
    """The part `memory` for on-policy agents.

    It collects races and fragments up to `memory_size_start_learn_schedule` transitions. Batches are then
    drawn without replacement, epoch after epoch; the replay ratio is the epoch count. The next rollout after a
    draw replaces all others. Greedy races and demonstrations are left out, as the policy did not draw their actions.

    Attributes:
        estimate_advantages: called once with all rollouts' transitions (n,), in time order, before the
            first draw; returns them with further entries. Entries are as in `buffer_collate_function`, with `done` (n,)
            bool at each rollout's end and the acting policy's `action_log_prob` (n,).

    Raises:
        SettingsError: if a setting in `NEEDED` has another value.
    """

    def __init__(self, settings: Settings, spaces: Spaces, seeds: SeedTree) -> None:
        for name, value in NEEDED.items():
            if getattr(settings.replay, name) != value:
                raise SettingsError(f"memory: RolloutStore needs {name} = {value}")
        self.estimate_advantages: Callable[[TensorDictBase], TensorDictBase] = lambda rollouts: rollouts
        self._spaces = spaces
        self._generator = torch.Generator().manual_seed(seeds.integer("replay"))
        self._rollouts: list[TensorDictBase] = []  # one with all transitions after the first draw
        self._order: torch.Tensor | None = None  # rest of the epoch; None before the first draw

    @override
    def __len__(self) -> int:
        return sum(map(len, self._rollouts))

    @override
    def extend(self, race: Race, settings: Settings, frames_total: int) -> int:
        new = race.facts.new
        decided = slice(new.first_transition, new.end_transition)
        log_prob = np.asarray(race.columns["action_log_prob"][decided], dtype=np.float32)
        was_explored = not np.any(race.columns["action_was_greedy"][decided]) and np.isfinite(log_prob).all()
        if len(log_prob) == 0 or not was_explored:
            return 0
        if self._order is not None:
            self._rollouts = []
            self._order = None
        transitions = mini_races_of_race(race, settings, frames_total, self._spaces, self._generator)
        transitions["action_log_prob"] = torch.from_numpy(log_prob.copy())
        transitions["done"] = torch.arange(len(log_prob)) == len(log_prob) - 1
        self._rollouts.append(transitions)
        return len(transitions)

    @override
    def sample(self, n: int) -> TensorDictBase:
        if self._order is None:
            self._rollouts = [self.estimate_advantages(torch.cat(self._rollouts))]
            self._order = torch.empty(0, dtype=torch.int64)
        [rollouts] = self._rollouts
        n = min(n, len(rollouts))
        if len(self._order) < n:  # the next epoch; the rest is smaller than a batch
            self._order = torch.randperm(len(rollouts), generator=self._generator)
        drawn = self._order[:n]
        self._order = self._order[n:]
        return rollouts[drawn]

    @override
    def state_dict(self) -> dict[str, Any]:
        rollouts = [rollout.to_dict() for rollout in self._rollouts]
        return {"rollouts": rollouts, "order": self._order, "generator": self._generator.get_state()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rollouts = [TensorDict(columns, [len(columns["done"])]) for columns in state_dict["rollouts"]]
        self._order = state_dict["order"]
        self._generator.set_state(state_dict["generator"])
