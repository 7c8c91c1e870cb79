"""Bringing the car to race time 0 of a map, whatever the game is doing.

The first race on a map begins with a countdown; the state at its end is kept, and later races rewind to it, in the
same report, without a countdown (reference/tminterface2_protocol.md, "One race as the client plays it", 1 to 4).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import ANALOG_LINK_VERSION, MessageId
from trackmania_rl.settings import GameSettings
from trackmania_rl.tmi_interaction.tminterface2 import GameEvent, GameTimeoutError, TMInterface

log = logging.getLogger(__name__)

CONNECT_COMMANDS: Final = (
    "set countdown_speed 80",
    "set unfocused_fps_limit false",
    "set skip_map_load_screens true",
    "set disable_forced_camera true",
    "set autorewind false",
    "set auto_reload_plugins false",
)
TIMEOUT_DURING_RACE_MS: Final = 10_100
"""Time for which a game waits for an answer within a race."""
CAMERA: Final = 2
"""Camera of the real game (its key), with which published weights were trained."""
CONNECT_SPEED: Final = 1.0
START_WITHIN_S: Final = 120.0
"""Wall-clock time in which a map must load and its countdown end."""
CLOCK_TOLERANCE_S: Final = 0.1
"""The operating system's timeouts may end that much early."""


class RaceStart:
    """What is known of one connected game about starting races on it.

    Args:
        transport: the game.
        commands_on_connect: console commands for this game instance, beside `CONNECT_COMMANDS`.
    """

    def __init__(self, transport: TMInterface, commands_on_connect: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._commands = (*CONNECT_COMMANDS, *commands_on_connect)
        self._has_seen_a_step = False
        self._is_interface_shown = True
        self._loaded_map: str | None = None
        self._start_state: bytes | None = None

    def reach(self, map_path: str, held: GameEvent | None, settings: GameSettings) -> tuple[GameEvent, bytes]:
        """Bring the car to the start.

        Args:
            map_path: what the game's `map` command is given.
            held: the report that the last race left unanswered, if any.
            settings: speed, step period and timeouts.

        Returns:
            The RUN_STEP report, unanswered, in which the race time is 0, and the state blob then.

        Raises:
            GameError: if the game is gone, silent, or never comes to the start of this map.
            UserError: if it cannot be steered as `settings.actions` says.
        """
        self._is_countdown_expected = self._is_countdown_seen = False
        self._last_time_ms: int | None = None
        if held is not None:
            self._transport.set_timeout(TIMEOUT_DURING_RACE_MS)
            self._transport.set_speed(settings.running_speed)
            if held.id != MessageId.RUN_STEP:
                self._transport.answer(held)
                held = None
        deadline_s = time.monotonic() + START_WITHIN_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                event = held or self._transport.next_event(left_s)
            except GameTimeoutError:
                if time.monotonic() < deadline_s - CLOCK_TOLERANCE_S:
                    raise  # it was silent for longer than it may be, which is less than there was left
                break
            held = None
            if event.id == MessageId.ON_CONNECT:
                self._greet(map_path, settings)
            elif event.id == MessageId.RUN_STEP:
                if not self._has_seen_a_step:
                    self._settle_in(settings)
                state = self._state_at_start(event.race_time_ms, map_path)
                self._last_time_ms = event.race_time_ms
                if state is not None:
                    return event, state
            elif event.is_finish:  # of a race that is none of ours any more
                self._transport.prevent_finish()
            self._transport.answer(event)
        raise GameTimeoutError(
            f"no race began on map {map_path!r} within {START_WITHIN_S:g} s: does the game have this map?"
        )

    def _greet(self, map_path: str, settings: GameSettings) -> None:
        """Say at the connection what holds for all races."""
        self._transport.set_speed(CONNECT_SPEED)
        self._transport.set_step_period(settings.ms_per_action)
        if settings.actions == "analog":
            self._check_that_it_steers()
        for command in self._commands:
            self._transport.command(command)
        if self._transport.is_in_menus():
            self._load(map_path)

    def _check_that_it_steers(self) -> None:
        """Refuse a game whose plugin knows keys only: it would take a wheel's numbers for other messages."""
        version = self._transport.plugin_version()
        if version < ANALOG_LINK_VERSION:
            runs = f"version {version} of this project's plugin" if version else "another plugin than this project's"
            raise UserError(
                f'actions = "analog": the game runs {runs}, which knows keys only; version {ANALOG_LINK_VERSION} is '
                "needed: remove other plugins that listen from TMInterface's folder Plugins, and start the game again "
                '(scripts/doctor.py installs the plugin); or set actions = "keys"'
            )

    def _settle_in(self, settings: GameSettings) -> None:
        """Say at the first step of all what needs a race to be said in."""
        self._has_seen_a_step = True
        self._transport.set_timeout(TIMEOUT_DURING_RACE_MS)
        self._transport.set_speed(settings.running_speed)
        self._transport.command(f"cam {CAMERA}")

    def _load(self, map_path: str) -> None:
        self._transport.command(f'map "{map_path}"')
        self._loaded_map = map_path
        self._start_state = None
        self._is_interface_shown = True  # each map brings it back
        self._is_countdown_expected, self._is_countdown_seen = True, False

    def _state_at_start(self, race_time_ms: int, map_path: str) -> bytes | None:
        """Take the next measure towards the start at a step; the state if the car is there now."""
        if self._loaded_map != map_path:
            self._load(map_path)
        elif self._start_state is not None:
            self._transport.rewind_to_state(self._start_state)
            return self._start_state
        elif not self._is_countdown_expected:
            self._give_up()
        elif race_time_ms < 0:
            self._is_countdown_seen = True
            self._hide_interface()
        elif race_time_ms == 0 and (self._last_time_ms is None or self._last_time_ms > 0):
            log.warning("a race began without a countdown")
            self._hide_interface()
            self._start_state = self._transport.get_state()
            return self._start_state
        elif self._is_countdown_seen and race_time_ms == 0:
            self._start_state = self._transport.get_state()
            return self._start_state
        elif self._is_countdown_seen:
            log.warning("the step at race time 0 did not come, but one at %d ms; giving up for a new one", race_time_ms)
            self._give_up()
        # Else it is a step of the old race: the new map, or the new race, takes effect a little later.
        return None

    def _hide_interface(self) -> None:
        """Take the race interface, such as the clock, out of the pictures; once for each map that was loaded."""
        if self._is_interface_shown:
            self._transport.toggle_interface(shown=False)
            self._is_interface_shown = False

    def _give_up(self) -> None:
        self._transport.give_up()
        self._is_countdown_expected, self._is_countdown_seen = True, False
