"""Who is connected to the games of this machine, as the operating system lists it: games are not disturbed by that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import psutil

from trackmania_rl.errors import UserError


@dataclass(frozen=True)
class Client:
    """One connection to a game, whether the game has looked at it or not.

    Attributes:
        peer_port: of its other end, on this machine: a collector, or SSH on behalf of one.
        has_left: whether the other end has hung up, and the game has not noticed yet.
    """

    peer_port: int
    has_left: bool = False


def clients_by_port(ports: Collection[int]) -> dict[int, list[Client]]:
    """List the connections to the games at some ports.

    Raises:
        UserError: if this system does not tell.
    """
    found: dict[int, list[Client]] = {port: [] for port in ports}
    try:
        connections = psutil.net_connections("tcp4")
    except psutil.AccessDenied as error:
        text = "this system shows connections to administrators only: keep games on Linux or Windows"
        raise UserError(text) from error
    for connection in connections:
        is_open, has_left = connection.status == psutil.CONN_ESTABLISHED, connection.status == psutil.CONN_CLOSE_WAIT
        if (is_open or has_left) and connection.laddr and connection.raddr and connection.laddr.port in found:
            found[connection.laddr.port].append(Client(connection.raddr.port, has_left))
    return found
