"""What the race machine needs of a game, whichever way the game is reached.

`GameTransport` is TMInterface's vocabulary as methods. The socket client (`tminterface2.py`) is one implementation; the
machine itself knows neither sockets nor processes, so games stepped inside this process can be another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import PlainError
from trackmania_rl.protocol.messages import HeldInputs, MessageId


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


class GameTransport(Protocol):
    """One connected game.

    Calls without a result may be kept back until the next `answer`, `flush` or call with a result. All may raise
    `GameConnectionError`, `GameTimeoutError` or `GameProtocolError`.
    """

    def next_event(self, within_s: float | None = None) -> GameEvent:
        """Wait for the game's next report; the previous one must have been answered.

        Args:
            within_s: longest wait, where it is shorter than the usual one.
        """
        ...

    def answer(self, event: GameEvent, then_get_state: bool = False) -> None:
        """Let the game go on; with `then_get_state` the next event brings the state at that moment with it."""
        ...

    def flush(self) -> None:
        """Make sure that the game has heard everything said so far, although the event stays unanswered."""
        ...

    def get_state(self) -> bytes:
        """Return the state blob of this moment; may be empty outside a race."""
        ...

    def is_race_finished(self) -> bool:
        """Tell whether the race is over."""
        ...

    def is_in_menus(self) -> bool:
        """Tell whether no map is loaded."""
        ...

    def rewind_to_state(self, blob: bytes) -> None:
        """Restore a state that `get_state` gave."""
        ...

    def rewind_to_current_state(self) -> None:
        """Restore the state of this moment, which drops what the game had planned for its next ticks."""
        ...

    def set_speed(self, speed: float) -> None:
        """Set the game's speed, as a factor of real time; 0 freezes the physics."""
        ...

    def set_step_period(self, period_ms: int) -> None:
        """Set every how many ms of race time RUN_STEP is reported."""
        ...

    def set_timeout(self, timeout_ms: int) -> None:
        """Set how long the game waits for an answer before it drops the client."""
        ...

    def plugin_version(self) -> int:
        """Tell the version of this project's plugin, or simulated game; 0 for any other. A report must be held."""
        ...

    def set_input(self, held: HeldInputs) -> None:
        """Hold exactly these from the next tick on; analog inputs only from plugin version `ANALOG_LINK_VERSION` on."""
        ...

    def give_up(self) -> None:
        """Begin the race again with a countdown."""
        ...

    def prevent_finish(self) -> None:
        """Undo the finish that has just been reached."""
        ...

    def command(self, text: str) -> None:
        """Run a console command."""
        ...

    def toggle_interface(self, shown: bool) -> None:
        """Show or hide the race's interface, such as its clock, which would be in the pictures."""
        ...

    def request_frame(self, width_px: int, height_px: int) -> None:
        """Ask for one picture, which comes as REQUESTED_FRAME."""
        ...

    def unrequest_frame(self) -> None:
        """Withdraw that request."""
        ...

    def close(self) -> None:
        """Say goodbye and let go; never raises."""
        ...
