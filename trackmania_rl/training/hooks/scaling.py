"""Scales that a run measures itself: of rewards, and of the observation's floats. The setting `hooks` names them."""

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
    """Divides the rewards of each batch by their running standard deviation: torchrl's `RewardNormalizer`.

    The rewards are those of a batch's n steps. In races and in batches they have different names, so that the figures
    are taken from batches, too, and not from races as torchrl's class does by itself.

    Args:
        decay: share that the figures keep of themselves at each batch.
        scale: multiplies the scaled rewards.
        subtract_mean: whether the mean is subtracted first. An agent whose races may end early then earns for staying,
            or for leaving, so it is not by default.
    """

    def __init__(self, decay: float = 0.999, scale: float = 1.0, subtract_mean: bool = False) -> None:
        normalizer = RewardNormalizer if subtract_mean else _WithoutMean
        self._normalizer = normalizer(decay=decay, scale=scale, reward_key="reward")

    def begin(self) -> None:
        """See that nothing else is in units of reward.

        Raises:
            UserError: if something is.
        """
        expected = self.run.settings.agent.expected_reward_per_action
        if isinstance(self.run.agent, IQNAgent) and expected != 0:
            raise UserError(
                f"hooks: ScaleRewards scales the rewards, but expected_reward_per_action = {expected} is in units of "
                "reward as they are: set it to 0.0"
            )

    def process_optim_batch(self, batch: TensorDictBase) -> TensorDictBase:
        """Count the batch's rewards, and scale them."""
        self._normalizer.update_reward_stats(batch)
        return self._normalizer.normalize_reward(batch)

    def state_dict(self) -> dict[str, Any]:
        """The running figures."""
        return self._normalizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the figures."""
        self._normalizer.load_state_dict(state_dict)


class _WithoutMean(RewardNormalizer):
    """Leaves the mean where it is."""

    def update_reward_stats(self, batch: TensorDictBase) -> None:
        """Count a batch's rewards; the mean that is subtracted from them is 0."""
        super().update_reward_stats(batch)
        self._reward_stats["mean"] = torch.zeros_like(self._reward_stats["mean"])


class MeasureObservation(Hook):
    """Measures mean and standard deviation of every float in all of the run's races.

    At the end of each session `measured/state_normalization.py` in the run's folder holds them, for a new run: what a
    network has learned holds for the numbers that it began with.
    """

    def register(self, trainer: RunTrainer, name: str = "") -> None:
        """See `Hook`.

        Raises:
            UserError: if the games are others than races.
        """
        super().register(trainer, name)
        settings = self.run.settings
        layout = ObservationLayout(settings.observation, settings.game.actions)
        if tuple(layout.mean.tolist()) != self.run.spaces.float_mean:
            raise UserError(
                "hooks: MeasureObservation knows the floats of races only: take it out of the setting hooks"
            )
        self._statistics = ObservationStatistics(layout)

    def batch_process(self, race: TensorDictBase) -> None:
        """Add a race's states, but for the last one."""
        self._statistics.add(race["state_float"].numpy())

    def end(self) -> None:
        """Write the file; a disk that fails is told."""
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
        """What was measured."""
        sums = {name: torch.from_numpy(values.copy()) for name, values in self._statistics.sums.items()}
        return {"n_states": self._statistics.n_states, "sums": sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what was measured."""
        self._statistics.n_states = state_dict["n_states"]
        self._statistics.sums = {name: values.numpy() for name, values in state_dict["sums"].items()}
