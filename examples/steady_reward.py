"""A reward of your own: the shipped one, and a price for each change of keys.

    python scripts/train.py --set run_name=steady --set reward=examples.steady_reward:SteadyReward

A reward is called with a whole race: columns of its T actions and T + 1 states.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trackmania_rl.race.rewards import RaceReward, Rewarded
from trackmania_rl.settings import Settings

PRICE_OF_CHANGE = np.float32(0.003)
"""Reward units; an action of 50 ms costs 0.06 and a metre is worth 0.01."""


class SteadyReward(RaceReward):
    """The shipped reward, minus `PRICE_OF_CHANGE` per action that differs from the previous one."""

    def __call__(self, rollout_results: Mapping[str, Any], settings: Settings, frames_total: int) -> Rewarded:
        """Reward a race: `rewards` (T,) of actions, `potentials` (T + 1,) of states."""
        rewarded = super().__call__(rollout_results, settings, frames_total)
        actions = rollout_results["actions"]
        is_changed = np.diff(actions, axis=0, prepend=actions[:1]) != 0
        changes = is_changed.reshape(len(actions), -1).any(axis=1)  # an action may be several numbers
        return rewarded._replace(rewards=rewarded.rewards - PRICE_OF_CHANGE * changes)
