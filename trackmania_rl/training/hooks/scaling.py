"""Optional hooks that measure scales: of rewards, and of the observation's floats."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torchrl.trainers.trainers import RewardNormalizer

from trackmania_rl.agents.iqn import IQNAgent
from trackmania_rl.errors import UserError
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_statistics import ObservationStatistics
from trackmania_rl.training.hooks.hook import Hook

if TYPE_CHECKING:
    from trackmania_rl.training.trainer import RunTrainer

log = logging.getLogger(__name__)


class ScaleRewards(Hook):
    """Divides the n-step rewards of each batch by their running standard deviation, by torchrl's `RewardNormalizer`.

    Args:
        decay: of the running figures at each batch.
        scale: factor of the scaled rewards.
        subtract_mean: whether the mean is subtracted first, which changes the value of an early end of a race.
    """

    def __init__(self, decay: float = 0.999, scale: float = 1.0, subtract_mean: bool = False) -> None:
        normalizer = RewardNormalizer if subtract_mean else _WithoutMean
        self._normalizer = normalizer(decay=decay, scale=scale, reward_key="reward")

    def begin(self) -> None:
        """Check that no setting is in units of reward."""
        expected = self.run.settings.agent.expected_reward_per_action
        if isinstance(self.run.agent, IQNAgent) and expected != 0:
            raise UserError(
                f"hooks: ScaleRewards scales the rewards, but expected_reward_per_action = {expected} is in units of "
                "reward as they are: set it to 0.0"
            )

    def process_optim_batch(self, batch: TensorDictBase) -> TensorDictBase:
        """Add the batch's rewards to the figures, and scale them."""
        self._normalizer.update_reward_stats(batch)
        return self._normalizer.normalize_reward(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the running figures."""
        return self._normalizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load them."""
        self._normalizer.load_state_dict(state_dict)


class _WithoutMean(RewardNormalizer):
    """Subtracts a mean of 0."""

    def update_reward_stats(self, batch: TensorDictBase) -> None:
        """Add a batch's rewards to the figures."""
        super().update_reward_stats(batch)
        self._reward_stats["mean"] = torch.zeros_like(self._reward_stats["mean"])


class MeasureObservation(Hook):
    """Measures mean and standard deviation of each float in all of the run's races.

    They are written into the run's `measured/state_normalization.py` at the end of each session, for a new run.
    """

    def register(self, trainer: RunTrainer, name: str = "") -> None:
        """Register the hook."""
        super().register(trainer, name)
        settings = self.run.settings
        layout = ObservationLayout(settings.observation, settings.game.actions)
        if tuple(layout.mean.tolist()) != self.run.spaces.float_mean:
            raise UserError(
                "hooks: MeasureObservation knows the floats of races only: take it out of the setting hooks"
            )
        self._statistics = ObservationStatistics(layout)

    def batch_process(self, race: TensorDictBase) -> None:
        """Add a race's states, except the last one."""
        self._statistics.add(race["state_float"].numpy())

    def end(self) -> None:
        """Write the file. Log I/O errors."""
        if self._statistics.n_states == 0:
            return
        file = self.run.folder.path / "measured" / "state_normalization.py"
        told = f"Measured in {self._statistics.n_states:,} states of the run {self.run.folder.path.name}."
        try:
            file.parent.mkdir(exist_ok=True)
            file.write_text(self._statistics.text(self.run.settings.observation, told), encoding="utf-8")
        except OSError as error:
            log.error("the measured normalization %s cannot be written: %s", file, error.strerror)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        sums = {name: torch.from_numpy(values.copy()) for name, values in self._statistics.sums.items()}
        return {"n_states": self._statistics.n_states, "sums": sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the sums."""
        self._statistics.n_states = state_dict["n_states"]
        self._statistics.sums = {name: values.numpy() for name, values in state_dict["sums"].items()}
