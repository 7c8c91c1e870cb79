"""The rewards that environments give, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.race.progress_reward import ProgressReward
from trackmania_rl.race.rewards import RaceReward, StepReward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings

TRAINER: Final = "trainer"
PROGRESS: Final = "progress"
PRESETS: Final[dict[str, Callable[[Settings, Spaces, SeedTree], StepReward]]] = {
    PROGRESS: ProgressReward,
    TRAINER: RaceReward,
}


def make_step_reward(name: str, settings: Settings, spaces: Spaces) -> StepReward:
    """Make the reward of this name.

    Raises:
        UserError: if there is none.
    """
    if name not in PRESETS:
        raise UserError(f"reward = {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name](settings, spaces, SeedTree(settings.run.seed))
