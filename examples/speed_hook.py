"""A hook of your own: mean and highest speed of each race, as figures of tensorboard or any other logger.

    python scripts/train.py --set run_name=watched --set 'hooks=("examples.speed_hook:LogSpeed",)'

A hook overrides methods of the points at which it acts; see `Hook`.
"""

from typing import Any

import numpy as np

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.race import Race
from trackmania_rl.training.hooks.hook import Hook


class LogSpeed(Hook):
    """Log speeds in m/s; checkpoints keep the run's highest."""

    highest_m_s = 0.0

    def begin(self) -> None:
        """Find the velocity among a state's floats."""
        settings = self.run.settings
        layout = ObservationLayout(settings.observation, settings.game.actions)
        self._velocity_m_s = layout["velocity_m_s"]

    def on_race(self, race: Race) -> dict[str, float]:
        """Return figures of a race, which has a row per state."""
        speeds_m_s = np.linalg.norm(race.columns["state_float"][:, self._velocity_m_s], axis=1)
        self.highest_m_s = max(self.highest_m_s, speeds_m_s.max().item())
        return {"mine/mean_speed_m_s": speeds_m_s.mean().item(), "mine/highest_speed_m_s": self.highest_m_s}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"highest_m_s": self.highest_m_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        self.highest_m_s = state_dict["highest_m_s"]
