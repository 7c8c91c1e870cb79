"""What the parts of one run share: handed to every hook when it is registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.agents.agent import Agent
from trackmania_rl.channels.protocols import Channels, ReceivedRollout
from trackmania_rl.experience_replay.memory import Memory
from trackmania_rl.race.cycle_position import CollectorProgress
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import RunFolder
from trackmania_rl.settings import Settings
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.telemetry.statistics import TrainingStatistics


@dataclass
class RunContext:
    """One run.

    Attributes:
        live: the settings in force, see `settings`.
        spaces: what states and actions are made of.
        reward: what they are worth.
        agent: what learns.
        memory: what it learns from.
        channels: the learner's ends of what joins it with its collectors.
        folder: where the run's files lie.
        statistics: the run's figures, which the terminal shows.
        session: how often the run was started, this time included.
        reference_lines_m: (N, 3) points of each map's reference line, for pictures; none for generators.
        maps_folder: where tracks lie.
        progress: where each collector stands, by its number.
        race: the race that has just come in; its arrays are valid at the point `batch_process` only.
    """

    live: LiveSettings
    spaces: Spaces
    reward: Reward
    agent: Agent
    memory: Memory
    channels: Channels
    folder: RunFolder
    statistics: TrainingStatistics
    session: int = 1
    reference_lines_m: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    maps_folder: Path = Path("maps")
    progress: dict[int, CollectorProgress] = field(default_factory=dict)
    race: ReceivedRollout | None = None

    @property
    def settings(self) -> Settings:
        """Those in force now."""
        return self.live.current
