"""Input scripts played by the game's `load` command, as in TMInterface; the client only observes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.protocol.messages import MessageId
from trackmania_rl.protocol.state_blob import StateBlobError, StateView
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S, GameLauncher
from trackmania_rl.tmi_interaction.race_machine import finish_time_ms
from trackmania_rl.tmi_interaction.tminterface2 import (
    GameEvent,
    GameProtocolError,
    GameTimeoutError,
    TMInterface,
)

FRAME_INTERVAL_MS: Final = 50
"""Race time between reported steps, unless a film needs more."""

PATIENCE_MS: Final = 30_000
"""Race time after a script's last input at which an unfinished race is ended."""

LONGEST_RACE_MS: Final = 60 * 60 * 1000
"""Race time at which any race is ended: a script may have inputs weeks later."""

BEGIN_WITHIN_S: Final = 120.0
"""Timeout for loading a map and the countdown, wall clock."""
SILENCE_S: Final = 120.0
"""Longest silence from the game. A simulated game compiles on first use."""
FULL_SPEED: Final = 1000.0


@dataclass(frozen=True)
class Filming:
    """Race film: a frame at the start and every `interval_ms` of race time.

    Attributes:
        size_px: (width, height), 1 to 4096.
        on_frame: takes each frame (H, W, 4) uint8, BGRA, valid only during the call.
        interval_ms: a multiple of the game's 10 ms.
    """

    size_px: tuple[int, int]
    on_frame: Callable[[npt.NDArray[np.uint8]], None]
    interval_ms: int = FRAME_INTERVAL_MS


@dataclass(frozen=True)
class ScriptResult:
    """A script race's result.

    Attributes:
        is_finished: whether the finish was reached.
        race_time_ms: official finish time, or time at the end.
        checkpoint_times_ms: passed, the finish included.
        inputs: recorded by the game, as a script; None unless requested.
    """

    is_finished: bool
    race_time_ms: int
    checkpoint_times_ms: tuple[int, ...]
    inputs: str | None = None


class ScriptPlayer:
    """Player for input scripts on one game instance, each from a map's start.

    Example::

        with ScriptPlayer(SimulatedGameLauncher(find_free_port(), maps_folder)) as player:
            race = player.play("valley.toml", Path("race.inputs"))

    Args:
        launcher: game launcher, which runs inside the `with` block.
    """

    def __init__(self, launcher: GameLauncher) -> None:
        self._launcher = launcher
        self._greeting: tuple[str, ...] = launcher.commands_on_connect  # for this player's first connection

    def __enter__(self) -> ScriptPlayer:
        try:
            self._launcher.start()
            self._launcher.wait_until_connectable(LISTENS_WITHIN_S)
        except BaseException:
            self._launcher.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._launcher.kill()

    def play(
        self,
        map_path: str,
        script: Path,
        filming: Filming | None = None,
        until_ms: int | None = None,
        on_state: Callable[[StateView], None] | None = None,
        speed: float = FULL_SPEED,
        load_name: str | None = None,
        ask_for_inputs: bool = False,
        step_ms: int = FRAME_INTERVAL_MS,
    ) -> ScriptResult:
        """Play a script to the finish.

        Args:
            map_path: as in the map cycle.
            script: file.
            filming: None for no pictures, which is faster.
            until_ms: race time at which an unfinished race is ended; None for `PATIENCE_MS` after the last input, at
                most `LONGEST_RACE_MS`.
            on_state: takes each state reported before the finish.
            speed: game speed, a factor on real time.
            load_name: argument for the game's `load` command; None for the script's absolute path.
            ask_for_inputs: whether to request the recorded inputs.
            step_ms: race time between reported steps without a film.

        Raises:
            UserError: if the map or the script can't be used, or the game did not record requested inputs.
            GameError: if the game is gone, silent or breaks the protocol.
        """
        self._launcher.check_map(map_path)
        events = read_input_script(script)
        last_input_ms = max((event.time_ms for event in events), default=0)
        commands = (
            *self._greeting,
            "set skip_map_load_screens true",  # otherwise the real game waits for a key
            f"map {_quoted(self._launcher.map_argument(map_path))}",
            f"load {_quoted(load_name or script.resolve())}",
        )
        if until_ms is None:
            until_ms = min(last_input_ms + PATIENCE_MS, LONGEST_RACE_MS)
        with contextlib.closing(TMInterface(self._launcher.port, SILENCE_S, self._launcher.show_window)) as transport:
            self._greeting = ()
            race = _watch(transport, commands, filming, until_ms, on_state, speed, step_ms)
            if not ask_for_inputs:
                return race
            inputs = transport.get_inputs()
            if events and not inputs.strip():
                raise UserError(f"{script}: the game did not load it, as it recorded no input; see the game's console")
            return replace(race, inputs=inputs)


def _watch(
    transport: TMInterface,
    commands: tuple[str, ...],
    filming: Filming | None,
    until_ms: int,
    on_state: Callable[[StateView], None] | None,
    speed: float,
    step_ms: int,
) -> ScriptResult:
    """Send commands, then observe the race that they begin, after its countdown."""
    has_begun = False
    driven_ms: int | None = None
    passed_ms: tuple[int, ...] = ()
    begins_by_s = time.monotonic() + BEGIN_WITHIN_S
    while True:
        event = transport.next_event()
        if event.id == MessageId.ON_CONNECT:
            transport.set_step_period(step_ms if filming is None else filming.interval_ms)
            transport.set_speed(speed)
            for command in commands:
                transport.command(command)
        elif event.id == MessageId.RUN_STEP and event.race_time_ms < 0:
            if driven_ms is not None:  # the script restarted the race, and would repeat itself
                return ScriptResult(False, driven_ms, passed_ms)
            has_begun = True
        elif not has_begun:
            if time.monotonic() > begins_by_s:
                raise GameTimeoutError(f"no race began within {BEGIN_WITHIN_S:g} s: does the game have this map?")
        elif event.frame is not None and filming is not None:
            filming.on_frame(event.frame)
            transport.set_speed(speed)
        elif event.is_finish:
            return _result(transport, event, is_finished=True)
        elif event.id == MessageId.CHECKPOINT_COUNT_CHANGED:
            passed_ms = _state(transport).times_passed_ms
        elif event.id == MessageId.RUN_STEP and event.race_time_ms >= until_ms:
            return _result(transport, event, is_finished=False)
        elif event.id == MessageId.RUN_STEP and event.race_time_ms >= 0:
            driven_ms = event.race_time_ms
            if on_state is not None:
                on_state(_state(transport))
            if filming is not None:
                # Frozen, the game draws this step before it continues; see `RaceMachine`.
                transport.rewind_to_current_state()
                transport.set_speed(0.0)
                transport.request_frame(*filming.size_px)
        transport.answer(event)


def _result(transport: TMInterface, event: GameEvent, is_finished: bool) -> ScriptResult:
    state = _state(transport)
    race_time_ms = finish_time_ms(state) if is_finished else event.race_time_ms
    return ScriptResult(is_finished, race_time_ms, state.times_passed_ms)


def _state(transport: TMInterface) -> StateView:
    try:
        return StateView(transport.get_state())
    except StateBlobError as error:
        raise GameProtocolError(str(error)) from error


def _quoted(path: str | Path) -> str:
    if '"' in str(path):
        raise UserError(f"{path}: the game's console knows no names with a double quote; rename the file")
    return f'"{path}"'
