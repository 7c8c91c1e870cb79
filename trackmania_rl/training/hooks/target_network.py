"""When the target network moves."""

from __future__ import annotations

from typing import Any

from trackmania_rl.training.hooks.hook import Hook


class UpdateTargetNetwork(Hook):
    """Moves the target network, `number_memories_trained_on_between_target_network_updates` transitions apart."""

    def __init__(self) -> None:
        self._transitions_since_update = 0
        self._n_updates = 0

    def post_optim(self) -> None:
        """Count one batch."""
        settings = self.run.settings
        interval = settings.agent.number_memories_trained_on_between_target_network_updates
        n_updates, self._transitions_since_update = divmod(
            self._transitions_since_update + settings.replay.batch_size, interval
        )
        if n_updates > 0:
            self.run.agent.target_updater.step(n_updates)
            self._n_updates += n_updates

    def interval_figures(self) -> dict[str, float]:
        """How often it was moved in the whole run."""
        return {"train/total/target_updates": float(self._n_updates)}

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"transitions_since_update": self._transitions_since_update, "n_updates": self._n_updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the counts; earlier versions have one only."""
        self._transitions_since_update = state_dict["transitions_since_update"]
        self._n_updates = state_dict.get("n_updates", 0)
