"""Nothing learns silently wrong: updates and weights that are not finite are counted, and end the run in time."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final

import torch
from tensordict import TensorDictBase
from torch import nn

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.errors import PassingError
from trackmania_rl.training.finite_numbers import in_few_words, not_finite_tensors
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)

MOST_IN_A_ROW: Final = 100
"""So many updates in a row that are not finite end the training."""
FIRST_WARNING_AT: Final = 10
"""Updates that are not finite before a warning; the next ones come at ten times as many each."""
LOOK_EVERY_ON_GPU: Final = 32
"""A GPU is waited for once in so many updates to look at their losses; what a processor has is looked at at once."""
LOOK_AT_WEIGHTS_EVERY: Final = 1000
"""Updates between two looks at all that the next update depends on."""


class NumbersNotFiniteError(PassingError):
    """Learning has come apart. What was good before is kept: the same command goes on from there."""


class WatchNumbers(Hook):
    """Looks at each update's loss and gradient, and before anything is kept or published at the weights.

    One update that is not finite does no harm: agents that ship leave such a gradient out. It is counted. Many of them
    in a row (`MOST_IN_A_ROW`) end the run, and so do weights, target network, averaged weights or an
    optimizer's state that are not finite, since they never become finite again. Whoever keeps or publishes weights
    asks `require_sound` or `require_sound_networks` first, so that what was good before stays.
    """

    def __init__(self) -> None:
        self._unseen: list[torch.Tensor] = []
        self._warn_at = FIRST_WARNING_AT

    def optimizer(self, losses: TensorDictBase, *_: object) -> None:
        """Take an update's losses and its gradient's norm; NaN or infinity in either is in their sum as well.

        Raises:
            NumbersNotFiniteError: if too many updates in a row were not finite.
        """
        figures = [value for name, value in losses.items() if name.startswith("loss") or name == "grad_norm"]
        self._unseen.append(sum(figures[1:], figures[0]).detach())
        if figures[0].device.type == "cpu" or len(self._unseen) >= LOOK_EVERY_ON_GPU:
            self.look()

    def look(self) -> None:
        """Count what was not finite of the updates since the last look.

        Raises:
            NumbersNotFiniteError: as `optimizer`.
        """
        if not self._unseen:
            return
        unseen, self._unseen = self._unseen, []
        values = [unseen[0].item()] if len(unseen) == 1 else torch.stack(unseen).tolist()
        for value in values:
            self._count(is_finite=math.isfinite(value))

    def post_optim(self) -> None:
        """Look at everything, now and then.

        Raises:
            NumbersNotFiniteError: as `require_sound`.
        """
        if self.run.agent.updates % LOOK_AT_WEIGHTS_EVERY == 0:
            self.require_sound()

    def require_sound(self) -> None:
        """See that all that the next update depends on is finite: networks, target, averages, optimizer.

        Raises:
            NumbersNotFiniteError: if it is not, or if too many updates in a row were not.
        """
        self.look()
        self._require_few_in_a_row()
        if names := not_finite_tensors(self.run.agent.state_dict()):
            self._give_up(names)

    def require_sound_networks(self) -> None:
        """See that the networks that drive are finite, which costs a tenth of an update.

        Raises:
            NumbersNotFiniteError: if they are not.
        """
        networks = (self.run.agent.exploration_network, self.run.agent.evaluation_network)
        if not are_finite(networks):
            self.require_sound()

    def interval_figures(self) -> dict[str, float]:
        """How many updates and races of the run were not finite."""
        statistics = self.run.statistics
        return {
            "train/total/updates_not_finite": float(statistics.updates_not_finite),
            "train/total/races_refused": float(statistics.races_refused),
        }

    def _count(self, *, is_finite: bool) -> None:
        statistics = self.run.statistics
        if is_finite:
            statistics.updates_not_finite_in_a_row = 0
            return
        statistics.updates_not_finite += 1
        statistics.updates_not_finite_in_a_row += 1
        if statistics.updates_not_finite >= self._warn_at:
            log.warning(
                "%s updates had a loss or a gradient that is not finite, %s of them in a row; nothing was learned from "
                "these",
                f"{statistics.updates_not_finite:,}",
                f"{statistics.updates_not_finite_in_a_row:,}",
            )
            self._warn_at = 10 * statistics.updates_not_finite
        self._require_few_in_a_row()

    def _require_few_in_a_row(self) -> None:
        in_a_row = self.run.statistics.updates_not_finite_in_a_row
        if in_a_row >= MOST_IN_A_ROW:
            raise NumbersNotFiniteError(
                f"{in_a_row:,} updates in a row had a loss or a gradient that is not finite, so the training ends "
                f"without another checkpoint. {self._what_to_do()}"
            )

    def _give_up(self, names: Sequence[str]) -> None:
        raise NumbersNotFiniteError(
            "the network's weights are no longer finite numbers, so the training ends without another checkpoint "
            f"({in_few_words(list(names))}). {self._what_to_do()}"
        )

    def _what_to_do(self) -> str:
        return (
            "The last one is sound, and the same command goes on from there (or begins anew if there is none). So that "
            'it does not come again, lower lr_schedule, or set autocast_dtype = "float32", in '
            f"{self.run.folder.settings}"
        )


@torch.no_grad()
def are_finite(networks: Sequence[nn.Module]) -> bool:
    """Whether all parameters of some networks are finite: a sum over each network, which no NaN or infinity leaves."""
    sums = [flatten_parameters(network).sum() for network in dict.fromkeys(networks)]
    return all(math.isfinite(value) for value in torch.stack(sums).tolist())
