"""Reports of a game, and the errors of a connection to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import PlainError
from trackmania_rl.protocol.messages import MessageId


class GameError(PlainError):
    """The game at the other end doesn't play along; a fresh instance may."""


class GameConnectionError(GameError):
    """The game is gone, or was never there: refused, closed or broken connection."""


class GameTimeoutError(GameError):
    """The game did not report or answer in time."""


class GameProtocolError(GameError):
    """The game sent something that the protocol does not allow."""


@dataclass(frozen=True, slots=True)
class GameEvent:
    """A report of the game, which stands still until it is answered.

    Attributes:
        id: RUN_STEP, CHECKPOINT_COUNT_CHANGED, LAP_COUNT_CHANGED, REQUESTED_FRAME or ON_CONNECT.
        race_time_ms: of RUN_STEP; negative in the countdown.
        current: of the two counts: how many are passed.
        target: of the two counts: how many there are, the finish included.
        frame: of REQUESTED_FRAME: (H, W, 4) uint8, BGRA. Valid until the next call that has a result.
        state: the state blob, where it was asked for together with the previous answer; may be empty outside a race.
    """

    id: MessageId
    race_time_ms: int = 0
    current: int = 0
    target: int = 0
    frame: npt.NDArray[np.uint8] | None = None
    state: bytes | None = None

    @property
    def is_finish(self) -> bool:
        """Whether the last checkpoint of the race was passed."""
        return self.id == MessageId.CHECKPOINT_COUNT_CHANGED and self.current == self.target
