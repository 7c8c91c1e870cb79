"""What collectors are told: weights, settings, frame count."""

from __future__ import annotations

from trackmania_rl.training.hooks.finite_numbers import WatchNumbers
from trackmania_rl.training.hooks.hook import Hook


class PublishRunState(Hook):
    """Publishes new weights every `send_shared_network_every_n_batches` updates, edits as they come, and frames.

    Where collectors take turns, weights and frames are published between two turns only. Weights that are not finite
    are never published, nor averaged: they end the run.

    Args:
        numbers: says whether weights are finite.
    """

    def __init__(self, numbers: WatchNumbers) -> None:
        self._numbers = numbers

    def begin(self) -> None:
        """Publish everything."""
        self._publish_weights()
        self._publish_frames()
        self.tick()

    def post_optim(self) -> None:
        """Publish weights, if this update is one of those."""
        if self.run.agent.updates % self.run.settings.sync.send_shared_network_every_n_batches == 0:
            self._numbers.require_sound_networks()
            self.run.agent.average_weights()
            if not self.run.settings.takes_turns:
                self._publish_weights()

    def post_steps(self) -> None:
        """Publish the frame count."""
        if not self.run.settings.takes_turns:
            self._publish_frames()

    def begin_turn(self) -> None:
        """Publish what the collectors play the turn by."""
        self._numbers.require_sound_networks()
        self._publish_weights()
        self._publish_frames()

    def tick(self) -> None:
        """Look for an edit of the run's configuration, and publish it."""
        self.run.live.refresh()
        self.run.channels.run_state.publish(settings=self.run.settings)
        self.post_steps()

    def _publish_frames(self) -> None:
        self.run.channels.run_state.publish(frames_total=self.trainer.collected_frames)

    def _publish_weights(self) -> None:
        agent = self.run.agent
        self.run.channels.run_state.publish(
            weights={"exploration": agent.exploration_network, "evaluation": agent.evaluation_network}
        )
