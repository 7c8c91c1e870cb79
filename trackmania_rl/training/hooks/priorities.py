"""Priorities of prioritized replay."""

from __future__ import annotations

from tensordict import TensorDictBase

from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.telemetry.figures import quantile_figures
from trackmania_rl.training.hooks.hook import Hook


class UpdatePriorities(Hook):
    """Notes the errors of a batch, except near the end of a mini-race, where every network's are small."""

    def post_loss(self, batch: TensorDictBase) -> None:
        """Note them, where the memory draws by priority."""
        if self.run.memory.buffer.sampler.alpha == 0:
            return
        index, td_error = batch["index"], batch["td_error"]
        horizon_actions = self.run.settings.replay.min_horizon_to_update_priority_actions
        if horizon_actions is not None:
            is_early = batch["state_float"][:, ELAPSED_ACTIONS_FLOAT] < horizon_actions
            index, td_error = index[is_early], td_error[is_early.to(td_error.device)]
        if len(index) > 0:
            self.run.memory.buffer.update_priority(index, td_error)

    def rare_figures(self) -> dict[str, float]:
        """How the priorities are spread, where the memory draws by priority."""
        buffer = self.run.memory.buffer
        if buffer.sampler.alpha == 0 or len(buffer) == 0:
            return {}
        priorities = buffer.storage.priorities
        return quantile_figures("train/replay/priority", priorities) | {
            "train/replay/priority_mean": float(priorities.mean())
        }
