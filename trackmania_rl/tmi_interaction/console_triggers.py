"""Points of a map as triggers in the game: boxes that TMInterface draws, made by its console command `add_trigger`.

The command takes the two opposite corners as six numbers, ``add_trigger x1 y1 z1 x2 y2 z2``, in metres, world axes; so
Linesight's tools for TMInterface 2 say it (its `scripts/tools/tmi2/add_vcp_as_triggers.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.tmi_interaction.tminterface2 import TMInterface

CLEAR_TRIGGERS: Final = "clear_triggers"
"""Removes every trigger, in versions of TMInterface whose console knows it; in others it is an unknown command."""

ANSWER_WITHIN_S: Final = 10.0
"""How long a game may take to say something to a new client; it accepts one client at a time."""


def trigger_commands(centers_m: npt.NDArray[np.float64], side_m: float) -> list[str]:
    """Return the console commands that show a cube around each point.

    Args:
        centers_m: (N, 3) metres, world axes.
        side_m: length of a cube's edges.

    Returns:
        N commands, corners rounded to centimetres.
    """
    assert centers_m.ndim == 2, centers_m.shape
    assert centers_m.shape[1] == 3, centers_m.shape
    corners_m = np.hstack((centers_m - side_m / 2, centers_m + side_m / 2))  # (N, 6)
    return ["add_trigger " + " ".join(f"{number:.2f}" for number in corner) for corner in corners_m]


def send_commands(port: int, commands: Iterable[str]) -> None:
    """Say console commands to a running game and wait until it has read them all.

    Args:
        port: where the game listens on this machine.
        commands: one line each; what the console does not know it only complains about, in its own window.

    Raises:
        GameError: if no game accepts the connection, or it is silent or gone.
    """
    with contextlib.closing(TMInterface(port, ANSWER_WITHIN_S)) as transport:
        event = transport.next_event()  # the game stands still and reads until this report is answered
        for command in commands:
            transport.command(command)
        transport.is_in_menus()  # answered only after everything before it was read
        transport.answer(event)
