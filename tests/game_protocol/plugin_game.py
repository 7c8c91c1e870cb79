"""A game that has TMInterface and our plugin: the simulated game, driven through the script's callbacks.

Where `simulator.server.server.GameServer` speaks the protocol itself, here the script does; what remains is the game's
own loop: a frame, then the ticks until the next one.
"""

import argparse
import ctypes
import dataclasses
import json
import logging
import math
import sys
import time
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY_ROOT), str(Path(__file__).resolve().parent)]

from plugin_host import PluginHost  # noqa: E402

from trackmania_rl.protocol.input_script import Input  # noqa: E402
from trackmania_rl.protocol.state_blob import StateBlobError  # noqa: E402
from trackmania_rl.simulator.race import SimulatedRace  # noqa: E402
from trackmania_rl.simulator.server.game import SimulatedGame  # noqa: E402

logger = logging.getLogger("game")

SCRIPT = REPOSITORY_ROOT / "trackmania_rl" / "tmi_interaction" / "Python_Link.as"
STATE_STARTUP, STATE_MENUS, STATE_LOCAL_RACE = 16, 32, 512
INPUTS = (Input.BRAKE, Input.ACCELERATE, Input.LEFT, Input.RIGHT, Input.STEER, Input.GAS)
"""By TMInterface's `InputType`."""
SEVERITIES = {0: logging.INFO, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}
TICKS_PER_FRAME = 100
"""Most ticks between two frames: at speed 80 and 60 frames a second the real game makes 133."""
TICK_S = 0.01
IDLE_FRAME_S = 0.002


@dataclasses.dataclass(frozen=True)
class Unknowns:
    """What nobody can tell of TMInterface without the game: as the simulated game does it, unless set.

    Attributes:
        step_before_tick: OnRunStep is called before each tick instead of after it; at speed 0 it is called again.
        speed_waits: a speed set in a tick's callback counts from the next frame on; ticks due before it still come.
        rewind_ends_frame: no tick follows a rewind in a tick's callback before the next frame.
        countdown_is_silent: OnRunStep is not called while the race time is negative.
        race_time_lags: after a rewind the race time is the one before it, until the next tick.
        tick_time_lags: the tick time, too.
        states_are_untold: OnGameStateChanged is never called.
        checkpoint_before_step: in a tick, OnCheckpointCountChanged is called before OnRunStep.
        frame_is_late: a captured frame shows what was there when the frame before was drawn.
        ticks_per_frame: always so many, whatever the speed.
    """

    step_before_tick: bool = False
    speed_waits: bool = False
    rewind_ends_frame: bool = False
    countdown_is_silent: bool = False
    race_time_lags: bool = False
    tick_time_lags: bool = False
    states_are_untold: bool = False
    checkpoint_before_step: bool = False
    frame_is_late: bool = False
    ticks_per_frame: int | None = None


class PluginGame:
    """The game's side of the host: functions that the script calls, and the loop that calls the script."""

    def __init__(
        self,
        game,
        library,
        startup_frames=0,  # before the menus are reached
        stored_variables=None,  # that TMInterface kept of an earlier session
        commands_after_startup=(),  # run when the menus are reached
        interface=None,  # a file with all that TMInterface declares
        unknowns=Unknowns(),
    ):
        self.game = game
        self._unknowns = unknowns
        self._told_state = None
        self._is_rewound = False
        self._clocks_before_rewind_ms = None
        self._drawn = [None, None]
        self.speed = 1.0
        self.is_stopping = False
        self._startup_frames = startup_frames
        self._commands_after_startup = commands_after_startup
        self._set_inputs = {}
        self.host = PluginHost(library, SCRIPT, self, interface)
        for name, value in (stored_variables or {}).items():
            self.host.call("store_variable", name.encode(), ctypes.c_double(value))
        self.host.call("main")

    def run(self):
        """Play until `is_stopping` is set."""
        if self._startup_frames == 0:
            self._reach_menus()
        while not self.is_stopping:
            began_s = time.monotonic()
            writes_before = self.host.counters().writes
            self._draw_frame()
            if self._startup_frames > 0:
                self._startup_frames -= 1
                if self._startup_frames == 0:
                    self._reach_menus()
            ticks = self._ticks_due()
            self._is_rewound = False
            for _ in range(ticks):
                if self._stands_still or not self._tick():
                    break
            if self.host.counters().writes == writes_before:  # nobody plays, or it stands still
                time.sleep(max(IDLE_FRAME_S, began_s + ticks * TICK_S / max(self.speed, 1.0) - time.monotonic()))
        self.host.call("disabled")

    def _reach_menus(self):
        for command in self._commands_after_startup:
            self._run_text(command)

    def _draw_frame(self):
        """Draw a frame, and tell the script."""
        state = self.game_state()
        if state != self._told_state and not self._unknowns.states_are_untold:
            self._told_state = state
            self.host.call("game_state_changed", state)
        if self._unknowns.frame_is_late:
            race = self._race
            self._drawn = [self._drawn[1], None if race is None else (race, race.save_state())]
        self.host.call("render")

    def _ticks_due(self):
        race = self.game.race
        if race is None or self.speed == 0:
            return 0
        if self._unknowns.ticks_per_frame is not None:
            return self._unknowns.ticks_per_frame
        speed = max(self.speed, self.game.countdown_speed) if race.tick_time_ms < 0 else self.speed
        return max(1, min(TICKS_PER_FRAME, round(speed)))

    @property
    def _stands_still(self):
        """Whether no tick comes any more before the next frame, though some were due when the last one was drawn."""
        is_cut_short = self._unknowns.rewind_ends_frame and self._is_rewound
        return is_cut_short or (self.speed == 0 and not self._unknowns.speed_waits)

    def _tick(self):
        """Make a tick and report it; False if the race is not the same any more, or stands still."""
        race = self._race
        if race is None:
            return False
        if self._unknowns.step_before_tick:
            self._report_step(race)
            if self._race is not race or self._stands_still:
                return False
        race.advance()
        self._clocks_before_rewind_ms = None
        if self._unknowns.checkpoint_before_step:
            self._report_checkpoint(race)
        if self._race is race and not self._unknowns.step_before_tick:
            self._report_step(race)
        if self._race is race and not self._unknowns.checkpoint_before_step:
            self._report_checkpoint(race)
        if self._race is race and (laps := race.take_lap_event()) is not None:
            self.host.call("lap_count_changed", *laps)
        return self._race is race

    def _report_checkpoint(self, race):
        if (checkpoints := race.take_checkpoint_event()) is not None:
            self.host.call("checkpoint_count_changed", *checkpoints)

    def _report_step(self, race):
        if race.tick_time_ms >= 0 or not self._unknowns.countdown_is_silent:
            self.host.call("run_step")

    @property
    def _race(self):
        """The race, with the inputs that the script set one by one made together."""
        race = self.game.race
        if self._set_inputs and race is not None:
            race.inputs.change(race.tick_time_ms, self._set_inputs)
        self._set_inputs = {}
        return race

    # Called by the script.

    def game_state(self):
        if self._startup_frames > 0:
            return STATE_STARTUP
        return STATE_MENUS if self.game.race is None else STATE_LOCAL_RACE

    def race_clock(self, in_race, race_time_ms, tick_time_ms, is_finished, speed_km_h):
        race = self._race
        if race is None:
            return
        in_race[0], race_time_ms[0], tick_time_ms[0] = 1, race.race_time_ms, race.tick_time_ms
        if self._clocks_before_rewind_ms is not None:
            before_race_ms, before_tick_ms = self._clocks_before_rewind_ms
            race_time_ms[0] = before_race_ms if self._unknowns.race_time_lags else race_time_ms[0]
            tick_time_ms[0] = before_tick_ms if self._unknowns.tick_time_lags else tick_time_ms[0]
        is_finished[0] = race.is_finished
        speed_km_h[0] = int(3.6 * math.hypot(*race.car["velocity_m_s"][0].tolist()))

    def save_state(self, buffer, capacity):
        race = self._race
        assert race is not None, "the script may only save a state in a race"
        return _copy(race.save_state(), buffer, capacity)

    def restore_state(self, blob, n_bytes):
        race = self._race
        assert race is not None, "the script may only rewind in a race"
        self._is_rewound = True
        if self._clocks_before_rewind_ms is None:
            self._clocks_before_rewind_ms = race.race_time_ms, race.tick_time_ms
        try:
            race.restore_state(ctypes.string_at(blob, n_bytes))
        except StateBlobError as error:
            logger.error("rewind failed: %s", error)

    def set_input(self, input_type, value):
        assert self.game.race is not None, "the script may only drive in a race"
        self._set_inputs[INPUTS[input_type]] = value

    def set_speed(self, speed):
        assert math.isfinite(speed), "the script must refuse impossible speeds"
        assert speed >= 0, "the script must refuse impossible speeds"
        self.speed = speed

    def give_up(self):
        race = self._race
        assert race is not None, "the script may only give up a race"
        race.give_up()

    def prevent_finish(self):
        race = self._race
        assert race is not None, "the script may only undo a race's finish"
        race.prevent_finish()

    def reset_camera(self):
        """The simulated game has no camera to reset."""

    def run_command(self, text, n_bytes):
        self._run_text(ctypes.string_at(text, n_bytes).decode(errors="replace"))

    def _run_text(self, text):
        words = text.split()
        if len(words) == 3 and words[:2] == ["set", "custom_port"]:
            if not self.host.set_variable("custom_port", float(words[2])):
                logger.error("unknown variable: custom_port")
        elif not self.host.run_custom_command(text):
            self.game.run_command(text)

    def input_script(self, buffer, capacity):
        race = self._race
        return _copy(b"" if race is None else race.input_script().encode(), buffer, capacity)

    def capture(self, pixels, width_px, height_px):
        race = self._race
        if self._unknowns.frame_is_late:
            race = None
            if self._drawn[0] is not None:
                drawn_race, state = self._drawn[0]
                race = SimulatedRace(drawn_race.track)
                race.restore_state(state)
        if race is not None:
            _copy(race.render(width_px, height_px).tobytes(), pixels, width_px * height_px * 4)

    def toggle_interface(self, is_shown):
        """The simulated game has no race interface."""

    def log(self, text, severity):
        logger.log(SEVERITIES[severity], "%s", text.decode(errors="replace"))


def _copy(data, buffer, capacity):
    assert len(data) <= capacity
    ctypes.memmove(buffer, data, len(data))
    return len(data)


def main():
    """Run the game as a process, with the arguments of scripts/simulated_game.py that the launcher gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--map", choices=("none",))
    parser.add_argument("--maps-folder", type=Path, required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--interface", type=Path, help="a file with all that TMInterface declares")
    parser.add_argument("--unknowns", type=json.loads, default={}, help="a dictionary of what `Unknowns` has")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    PluginGame(
        SimulatedGame(arguments.maps_folder),
        arguments.library,
        commands_after_startup=(f"set custom_port {arguments.port}",),
        interface=arguments.interface,
        unknowns=Unknowns(**arguments.unknowns),
    ).run()


if __name__ == "__main__":
    main()
