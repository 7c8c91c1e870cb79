"""Keep a game running for collectors that only connect: restart it when it has ended, hangs or is too old.

A game serves one client, so a collector's game cannot be polled. Fault signs are: the process has ended; the game
keeps a connection whose other end has closed, or an old one while another waits; without a collector, it does not
greet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import psutil

from trackmania_rl.errors import UserError
from trackmania_rl.tmi_interaction.launchers.kept_game import GreetingAttempt, version_text
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S, GameLauncher
from trackmania_rl.tmi_interaction.tminterface2 import GameError

log = logging.getLogger(__name__)

GREET_EVERY_S: Final = 15.0
"""Greeting interval without a collector."""
COMES_BACK_WITHIN_S: Final = 2.0
SETTLED_AFTER_S: Final = 60.0
"""A later end does not count as a repeated failure."""
FOCUS_AFTER_S: Final = 20.0
"""Time after a client's connection until a race has surely begun and the game can take the keyboard."""


@dataclass(frozen=True)
class Client:
    """One connection to a game, accepted or not.

    Attributes:
        peer_port: the other end's port on this machine: a collector, or SSH for one.
        has_left: whether the other end has closed, and the game has not.
    """

    peer_port: int
    has_left: bool = False


def clients_by_port(ports: Collection[int]) -> dict[int, list[Client]]:
    """Return the connections to these ports. Raise `UserError` if this system does not show them."""
    found: dict[int, list[Client]] = {port: [] for port in ports}
    try:
        connections = psutil.net_connections("tcp4")
    except psutil.AccessDenied as error:
        text = "this system shows connections to administrators only: keep games on Linux or Windows"
        raise UserError(text) from error
    for connection in connections:
        is_open = connection.status == psutil.CONN_ESTABLISHED
        has_left = connection.status == psutil.CONN_CLOSE_WAIT
        if (is_open or has_left) and connection.laddr and connection.raddr and connection.laddr.port in found:
            found[connection.laddr.port].append(Client(connection.raddr.port, has_left))
    return found


@dataclass
class _Game:
    """The running game's state."""

    started_at_s: float
    listens: bool = False
    has_greeted: bool = False
    heard_at_s: float = 0.0  # the last greeting or race
    silent_since_s: float | None = None
    error: GameError | None = None
    first_seen_s: dict[int, float] = field(default_factory=dict)  # per connection, by the other end's port
    over_since_s: dict[int, float] = field(default_factory=dict)  # likewise, when it should have closed

    def heard(self, now_s: float) -> None:
        self.has_greeted, self.heard_at_s, self.silent_since_s = True, now_s, None


class GameKeeper:
    """One game as a `Job` for a `Supervisor`.

    Args:
        max_age_s: age at which the game is restarted even in use.
        greets_within_s: timeout for a greeting, or for closing a dead connection.
        listens_within_s: timeout from a start until the game listens.
        connect: connects to a port; raises `GameError` if no process listens.

    Attributes:
        port: where the game listens.
        name: see `Job`.
        clients: current connections; set before each `failure`.
    """

    def __init__(
        self,
        launcher: GameLauncher,
        max_age_s: float,
        greets_within_s: float,
        listens_within_s: float = LISTENS_WITHIN_S,
        connect: Callable[[int], GreetingAttempt] = GreetingAttempt,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = launcher.port
        self.name = f"the game at port {self.port}"
        self.clients: Collection[Client] = ()
        self._launcher = launcher
        self._max_age_s = max_age_s
        self._greets_within_s = greets_within_s
        self._listens_within_s = listens_within_s
        self._connect = connect
        self._clock = clock
        self._game: _Game | None = None
        self._attempt: GreetingAttempt | None = None
        self._has_started_once = False

    @property
    def is_starting(self) -> bool:
        """True if the game is started, but has not greeted yet."""
        return self._game is not None and not self._game.has_greeted

    @property
    def has_succeeded(self) -> bool:
        """True if the game has run for a while; see `Job`."""
        return self._game is not None and self._clock() - self._game.started_at_s >= SETTLED_AFTER_S

    def start(self) -> str | None:
        """Start the game; see `Job`.

        Raises:
            UserError: if the first start fails.
        """
        try:
            self._launcher.start()
        except (GameError, UserError) as error:
            if not self._has_started_once and isinstance(error, UserError):
                raise
            return f"cannot be started now: {error}"
        self._game = _Game(self._clock())
        self._has_started_once = True
        log.info("the game at port %d is started", self.port)
        return None

    def failure(self, _: float) -> str | None:
        """Return why the game must be restarted, from the state of `clients`; see `Job`."""
        assert self._game is not None
        now_s = self._clock()
        if (reason := self._why_not_well(self._game, self.clients, now_s)) is not None:
            return reason
        return f"has run for {self._max_age_s:g} s" if now_s - self._game.started_at_s > self._max_age_s else None

    def end(self) -> None:
        """End the game; see `Job`."""
        self._drop_attempt()
        self._game = None
        self._launcher.kill()

    def _why_not_well(self, game: _Game, clients: Collection[Client], now_s: float) -> str | None:
        if not self._launcher.is_alive():
            return "has ended"
        self._launcher.show_window()
        others = [c for c in clients if self._attempt is None or c.peer_port != self._attempt.local_port]
        if self._keeps_dead_connection(game, others, now_s):
            return f"holds on to a connection that was over {self._greets_within_s:g} s ago, so it hangs"
        is_played_on = any(not client.has_left for client in others)
        if is_played_on and (game.has_greeted or not self._launcher.commands_on_connect):
            # A new game without commands to send may be left to the first collector.
            self._drop_attempt()
            game.heard(now_s)
            if any(now_s - game.first_seen_s[c.peer_port] > FOCUS_AFTER_S for c in others):
                self._launcher.focus_window()
            return None
        # A collector that has just left may come back.
        is_soon = now_s - game.heard_at_s < (COMES_BACK_WITHIN_S if others else GREET_EVERY_S)
        return None if game.has_greeted and is_soon else self._why_no_greeting(game, now_s)

    def _why_no_greeting(self, game: _Game, now_s: float) -> str | None:
        if self._is_greeted(game):
            game.heard(now_s)
            return None
        if not game.listens:
            within_s = self._listens_within_s
            return f"does not listen within {within_s:g} s" if now_s - game.started_at_s > within_s else None
        if game.silent_since_s is None:
            game.silent_since_s = now_s
        if now_s - game.silent_since_s <= self._greets_within_s:
            return None
        detail = f" ({game.error})" if game.error else ""
        return f"does not greet within {self._greets_within_s:g} s{detail}"

    def _is_greeted(self, game: _Game) -> bool:
        try:
            if self._attempt is None:
                self._attempt = self._connect(self.port)
                game.listens, game.error = True, None
            greeting = self._attempt.poll(() if game.has_greeted else self._launcher.commands_on_connect)
        except GameError as error:  # not listening yet, or taken by a collector
            game.error = error
            self._drop_attempt()
            return False
        if greeting is None:
            return False
        self._drop_attempt()
        if not game.has_greeted:
            log.info("the game at port %d greets (plugin version %d)", self.port, greeting.version)
            if (text := version_text(self.port, greeting)) is not None:
                log.warning("%s", text)
        return True

    def _drop_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
        self._attempt = None

    def _keeps_dead_connection(self, game: _Game, clients: Collection[Client], now_s: float) -> bool:
        """Return whether a connection is open long after the other end left or a later one began to wait."""
        game.first_seen_s = {c.peer_port: game.first_seen_s.get(c.peer_port, now_s) for c in clients}
        newest_s = max((game.first_seen_s[c.peer_port] for c in clients if not c.has_left), default=0.0)
        over = [c.peer_port for c in clients if c.has_left or game.first_seen_s[c.peer_port] < newest_s]
        game.over_since_s = {port: game.over_since_s.get(port, now_s) for port in over}
        return any(now_s - since_s > self._greets_within_s for since_s in game.over_since_s.values())
