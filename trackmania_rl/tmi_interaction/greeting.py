"""Asking a game whether it is well: one connection that waits to be greeted, asks for the version, and leaves.

A game greets whoever connects. One that hangs accepts connections all the same (the system does so for it), so only
the greeting shows that somebody is in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trackmania_rl.protocol.messages import MessageId
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface
from trackmania_rl.tmi_interaction.transport import GameProtocolError, GameTimeoutError

ANSWERS_WITHIN_S: Final = 5.0
"""How long a game that has greeted may take for an answer."""
LOOK_S: Final = 0.02
"""How long one look for the greeting waits."""


@dataclass(frozen=True)
class Greeting:
    """What a game said.

    Attributes:
        version: of this project's plugin or simulated game; 0 for another plugin.
        is_in_menus: whether no map is loaded, as in a game that nobody has played on yet.
    """

    version: int
    is_in_menus: bool


class GreetingAttempt:
    """A connection that has not been greeted yet. The game lets go of whoever was connected before.

    Args:
        port: where the game listens on this machine.

    Attributes:
        local_port: of this end.

    Raises:
        GameConnectionError: if nobody listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._link = TMInterface(port, ANSWERS_WITHIN_S, connect_within_s=0.0)
        self.local_port = self._link.local_port

    def look(self, commands: Sequence[str] = ()) -> Greeting | None:
        """Look whether the greeting has come; if so, ask what is to be known, and leave.

        Args:
            commands: console commands that the game is to run.

        Returns:
            None as long as nothing has come.

        Raises:
            GameError: if the game is gone, let go of this connection, or speaks nonsense.
        """
        try:
            event = self._link.next_event(LOOK_S)
        except GameTimeoutError:
            return None
        if event.id != MessageId.ON_CONNECT:
            raise GameProtocolError(f"what listens at port {self._port} does not greet as a game does")
        for command in commands:
            self._link.command(command)
        greeting = Greeting(self._link.plugin_version(), self._link.is_in_menus())
        # The goodbye is read only while the game waits, so it stands for the answer.
        self.close()
        return greeting

    def close(self) -> None:
        """Say goodbye and let go; never raises."""
        self._link.close()


def greet(port: int, within_s: float) -> Greeting:
    """Wait for the greeting of a game that listens.

    Raises:
        GameError: if nobody listens, or it is not greeted in time.
    """
    attempt = GreetingAttempt(port)
    deadline_s = time.monotonic() + within_s
    try:
        while (greeting := attempt.look()) is None:
            if time.monotonic() > deadline_s:
                raise GameTimeoutError(f"the game at port {port} does not greet within {within_s:g} s")
        return greeting
    finally:
        attempt.close()
