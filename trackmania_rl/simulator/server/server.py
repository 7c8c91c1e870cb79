"""Simulated game server with the TMInterface 2 protocol: physics and rendering loop, and client messages.

Behaviour where the plugin's protocol is open:

- Within a tick the step (1) comes first, then a checkpoint (2), then a lap (3). The step's state already counts the
  gate; the clock stops at the official finish time only when message 2 reports the finish.
- The tick after a rewind follows the restored time. A rewind sends no message 2 or 3; after an undone finish message 2
  comes again in the next tick.
- `map` and `give up` take effect at once: no step from the old race follows.
- A frame shows the instant after the last tick, and precedes the next.
- Speeds from UNLIMITED_SPEED on mean as fast as possible, but without a client at most real time.
- Impossible speeds, periods, frame sizes and state blobs are logged and ignored. An impossible length ends the
  connection.
- A new client waits at most NEWCOMER_PATIENCE_S for an earlier client's wait.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.input_script import ANALOG_FULL
from trackmania_rl.protocol.messages import (
    ANALOG,
    DEFAULT_STEP_PERIOD_MS,
    FLOAT32,
    INT32,
    INT32_PAIR,
    KEYS,
    LINK_VERSION,
    LINK_VERSION_COMMAND,
    MAX_FRAME_SIDE_PX,
    TICK_MS,
    UINT32,
    AnalogInput,
    KeyState,
    MessageId,
)
from trackmania_rl.protocol.state_blob import StateBlobError
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.server.connection import ClientGone, Connection
from trackmania_rl.simulator.server.game import SimulatedGame

logger = logging.getLogger(__name__)

UNLIMITED_SPEED: Final = 50.0
"""From this game speed on there is no waiting: a tick would last 0.2 ms. Clients send 80."""

NEWCOMER_PATIENCE_S: Final = 3.0  # a client in a longer wait is replaced when another one connects

_POLL_INTERVAL_S: Final = 0.01  # between checks for new clients and closed connections at full speed
_LONGEST_IDLE_S: Final = 0.2  # between stop flag checks in a frozen game
_LARGEST_LAG_S: Final = 0.05  # a longer lag behind real time is not made up for
_MOST_TICKS_AT_ONCE: Final = 100  # between two socket checks
LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 16


class _Stopped(Exception):  # noqa: N818
    """The server was asked to stop during a wait."""


class GameServer:
    """Server running one game for one client at a time, on the loopback address only, as clients do not authenticate.

    Port 0 picks a free one. `speed` is the game speed until a client sets another one.

    Raises:
        OSError: If the port cannot be listened on.
    """

    def __init__(self, game: SimulatedGame, port: int, speed: float = 1.0) -> None:
        self.game = game
        self._listener = socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._client: Connection | None = None
        self._frame_size_px: tuple[int, int] | None = None
        self._speed = speed
        self._period_ms = DEFAULT_STEP_PERIOD_MS
        self._next_tick_s = self._next_poll_s = monotonic()
        self._is_stopping = False
        self._handlers = self._make_handlers()

    @property
    def port(self) -> int:
        """TCP port."""
        return self._listener.getsockname()[1]

    def run(self) -> None:
        """Play until `stop` is called, then close all sockets."""
        try:
            while not self._is_stopping:
                self._render_hook()
                race = self.game.race
                if race is None or self._speed == 0:
                    self._idle(_LONGEST_IDLE_S)
                else:
                    ticks = self._ticks_due(race)
                    if ticks:
                        self._physics_hook(race, ticks)
        except _Stopped:
            pass
        finally:
            self._drop_client("the game is closed")
            self._selector.close()
            self._listener.close()

    def stop(self) -> None:
        """Make `run` return in well under a second; may be called from another thread."""
        self._is_stopping = True

    def _render_hook(self) -> None:
        now_s = monotonic()
        if now_s >= self._next_poll_s:
            self._idle(0.0)
        if self._frame_size_px is not None:
            self._deliver_frame(*self._frame_size_px)

    def _deliver_frame(self, width_px: int, height_px: int) -> None:
        if self.game.race is None:
            frame = memoryview(bytes(messages.frame_bytes(width_px, height_px)))
        else:
            try:
                frame = self.game.race.render(width_px, height_px).data.cast("B")
            except ValueError as error:  # a client may have put the car where no picture can be drawn
                logger.warning("a black picture is sent: %s", error)
                frame = memoryview(bytes(messages.frame_bytes(width_px, height_px)))
        self._sync(MessageId.REQUESTED_FRAME, messages.pack_id(MessageId.REQUESTED_FRAME), frame)
        self._frame_size_px = None  # as in the plugin, a request made during the frame's wait is lost

    def _ticks_due(self, race: SimulatedRace) -> int:
        """Return how many ticks to make at once; 0 after waiting for the next tick's time."""
        speed = self._speed
        if race.tick_time_ms < 0:
            speed = max(speed, self.game.countdown_speed)
        if self._client is None:
            speed = min(speed, 1.0)
        if speed >= UNLIMITED_SPEED:
            if race.is_over:
                return 1
            stride_ms = math.lcm(self._period_ms, TICK_MS)
            return min((stride_ms - race.tick_time_ms % stride_ms) // TICK_MS, _MOST_TICKS_AT_ONCE)
        now_s = monotonic()
        if now_s < self._next_tick_s:
            self._idle(self._next_tick_s - now_s)
            return 0
        self._next_tick_s = max(self._next_tick_s, now_s - _LARGEST_LAG_S) + TICK_MS / 1000 / speed
        return 1

    def _physics_hook(self, race: SimulatedRace, ticks: int) -> None:
        race.advance(ticks)
        if self._client is None:
            race.take_checkpoint_event()
            race.take_lap_event()
            return
        if race.is_over or race.race_time_ms % self._period_ms == 0:
            self._sync(MessageId.RUN_STEP, messages.pack_run_step(race.race_time_ms))
        # A wait may have begun another race or rewound this one, so each event is taken after the one before.
        if self.game.race is race and (checkpoints := race.take_checkpoint_event()) is not None:
            message = messages.pack_checkpoint_count_changed(*checkpoints)
            self._sync(MessageId.CHECKPOINT_COUNT_CHANGED, message)
        if self.game.race is race and (laps := race.take_lap_event()) is not None:
            self._sync(MessageId.LAP_COUNT_CHANGED, messages.pack_lap_count_changed(*laps))

    def _idle(self, longest_s: float) -> None:
        for key, _ in self._selector.select(min(longest_s, _LONGEST_IDLE_S)):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._client and self._client is not None:
                try:
                    self._client.receive_unasked()
                except ClientGone as gone:
                    self._drop_client(str(gone))
        self._next_poll_s = monotonic() + _POLL_INTERVAL_S

    def _accept(self) -> None:
        newcomer = None
        while (accepted := self._next_newcomer()) is not None:
            if newcomer is not None:
                logger.info("a new client is disconnected, as a newer one has connected")
                newcomer.close()
            newcomer = accepted
        if newcomer is None:
            return
        self._drop_client("replaced by a newcomer")
        logger.info("client connected")
        self._client = Connection(newcomer, self._check_interruption)
        self._selector.register(self._client, selectors.EVENT_READ)
        self._sync(MessageId.ON_CONNECT, messages.pack_id(MessageId.ON_CONNECT))

    def _next_newcomer(self) -> socket.socket | None:
        try:
            return self._listener.accept()[0]
        except BlockingIOError:
            return None
        except OSError as error:  # hung up before it was served
            logger.debug("a newcomer was lost: %s", error)
            return None

    def _drop_client(self, reason: str) -> None:
        """Close the connection; keep game speed and step period."""
        if self._client is not None:
            logger.info("client dropped: %s", reason)
            self._selector.unregister(self._client)
            self._client.close()
        self._client = None
        self._frame_size_px = None

    def _check_interruption(self, wait_began_s: float) -> None:
        """End a wait if the server is stopping, or if it is long and a new client is pending."""
        if self._is_stopping:
            raise _Stopped
        if monotonic() - wait_began_s > NEWCOMER_PATIENCE_S:
            with selectors.DefaultSelector() as door:
                door.register(self._listener, selectors.EVENT_READ)
                if door.select(0):
                    raise ClientGone("kept a newcomer waiting")

    def _sync(self, message_id: MessageId, *message: bytes | memoryview) -> None:
        """Send a message, in pieces, and handle the client's messages until the answer with the same id."""
        client = self._client
        if client is None:
            return
        client.begin_wait()
        try:
            for piece in message:
                client.write(piece)
            while (received := client.read_id()) != message_id:
                handler = self._handlers.get(received)
                if handler is None:
                    client.complain(f"sent message {received} while {message_id.name} is to be answered; skipped")
                else:
                    handler(client)
            client.flush()
        except ClientGone as gone:
            self._drop_client(str(gone))
        self._next_tick_s = max(self._next_tick_s, monotonic())

    # Client messages, whose payload is still to be read.

    def _make_handlers(self) -> dict[int, Callable[[Connection], None]]:
        return {
            MessageId.SET_SPEED: self._set_speed,
            MessageId.REWIND_TO_STATE: self._rewind_to_state,
            MessageId.REWIND_TO_CURRENT_STATE: self._ignore,  # the state saved at this instant is the current one
            MessageId.GET_STATE: self._get_state,
            MessageId.SET_INPUT: self._set_input,
            MessageId.SET_ANALOG_INPUT: self._set_analog_input,
            MessageId.GIVE_UP: self._give_up,
            MessageId.PREVENT_FINISH: self._prevent_finish,
            MessageId.SHUTDOWN: self._shutdown,
            MessageId.COMMAND: self._command,
            MessageId.SET_TIMEOUT: self._set_timeout,
            MessageId.RACE_FINISHED: self._race_finished,
            MessageId.REQUEST_FRAME: self._request_frame,
            MessageId.RESET_CAMERA: self._ignore,
            MessageId.SET_STEP_PERIOD: self._set_step_period,
            MessageId.UNREQUEST_FRAME: self._unrequest_frame,
            MessageId.TOGGLE_INTERFACE: self._toggle_interface,
            MessageId.IS_IN_MENUS: self._is_in_menus,
            MessageId.GET_INPUTS: self._get_inputs,
        }

    def _ignore(self, client: Connection) -> None:
        pass

    def _set_speed(self, client: Connection) -> None:
        (speed,) = FLOAT32.unpack(client.read(FLOAT32.size))
        if not math.isfinite(speed) or speed < 0:
            client.complain(f"game speed {speed} refused; 0 or more and finite is allowed")
            return
        self._speed = speed
        self._next_tick_s = monotonic()

    def _rewind_to_state(self, client: Connection) -> None:
        blob = client.read_payload()
        if self.game.race is not None:
            try:
                self.game.race.restore_state(blob)
            except StateBlobError as error:
                client.complain(f"rewind refused: {error}")

    def _get_state(self, client: Connection) -> None:
        blob = b"" if self.game.race is None else self.game.race.save_state()
        client.write(INT32.pack(len(blob)))
        client.write(blob)

    def _set_input(self, client: Connection) -> None:
        keys = KeyState._make(map(bool, KEYS.unpack(client.read(KEYS.size))))
        if self.game.race is not None:
            self.game.race.set_input(keys)

    def _set_analog_input(self, client: Connection) -> None:
        steer, gas, brake = ANALOG.unpack(client.read(ANALOG.size))
        if max(abs(steer), abs(gas)) > ANALOG_FULL:
            client.complain(f"steer {steer}, gas {gas} refused; {-ANALOG_FULL} to {ANALOG_FULL} is allowed")
        elif self.game.race is not None:
            self.game.race.set_input(AnalogInput(steer, gas, bool(brake)))

    def _give_up(self, client: Connection) -> None:
        if self.game.race is not None:
            self.game.race.give_up()

    def _prevent_finish(self, client: Connection) -> None:
        if self.game.race is not None:
            self.game.race.prevent_finish()

    def _shutdown(self, client: Connection) -> None:
        raise ClientGone("said goodbye")

    def _command(self, client: Connection) -> None:
        text = client.read_payload().decode(errors="replace")
        if text.startswith(LINK_VERSION_COMMAND):
            client.asks_for_version = True
        else:
            self.game.run_command(text)

    def _set_timeout(self, client: Connection) -> None:
        (client.timeout_ms,) = UINT32.unpack(client.read(UINT32.size))

    def _race_finished(self, client: Connection) -> None:
        race = self.game.race
        client.write(INT32.pack(race is not None and (race.is_finished or race.is_over)))

    def _request_frame(self, client: Connection) -> None:
        width_px, height_px = INT32_PAIR.unpack(client.read(INT32_PAIR.size))
        if 1 <= width_px <= MAX_FRAME_SIDE_PX and 1 <= height_px <= MAX_FRAME_SIDE_PX:
            self._frame_size_px = width_px, height_px
        else:
            client.complain(f"frame of {width_px} x {height_px} px refused; sides are 1 to {MAX_FRAME_SIDE_PX} px")

    def _set_step_period(self, client: Connection) -> None:
        period_ms = client.read_int32()
        if period_ms > 0:
            self._period_ms = period_ms
        else:
            client.complain(f"step period of {period_ms} ms refused; it must be above 0")

    def _unrequest_frame(self, client: Connection) -> None:
        self._frame_size_px = None

    def _toggle_interface(self, client: Connection) -> None:
        client.read_int32()

    def _is_in_menus(self, client: Connection) -> None:
        version = LINK_VERSION if client.asks_for_version else 0
        client.write(messages.pack_in_menus_answer(self.game.race is None, version))
        client.asks_for_version = False

    def _get_inputs(self, client: Connection) -> None:
        script = b"" if self.game.race is None else self.game.race.input_script().encode()
        client.write(INT32.pack(len(script)))
        client.write(script)
