"""The simulated game by itself: ticks of the physics and pictures."""

from __future__ import annotations

import numpy as np

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import PROJECT, Figure, Options, Timing, times_in_turns
from trackmania_rl.protocol.input_script import KeyState
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track

PART = "simulation"
TRACK = PROJECT / "maps" / "valley.toml"
SIZES_PX = ((160, 120), (64, 48), (640, 480))
TICKS_PER_ACTION = 5
TICKS_PER_PICTURE = 20
"""So many fewer pictures than ticks are measured: they take longer."""
TICKS_BEFORE_ANEW = 1_500
"""Straight on at full throttle, the car has long stopped at a wall after this."""
THROTTLE = KeyState(left=False, right=False, accelerate=True, brake=False)
BYTES_PER_PIXEL = 4


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure ticks in steps of one action, and pictures of several sizes along the track."""
    return [_measure_ticks(options), *(_measure_pictures(options, machine, *size) for size in SIZES_PX)]


def _measure_ticks(options: Options) -> Figure:
    race = SimulatedRace(load_track(TRACK))

    def drive() -> None:
        made = 0
        while made < options.ticks:
            race.give_up()
            race.set_input(THROTTLE)
            until = min(options.ticks, made + TICKS_BEFORE_ANEW)
            while made < until:
                made += race.advance(TICKS_PER_ACTION)

    drive()  # compiles, or loads what was compiled
    return _rate(times_in_turns(options, drive=drive)["drive"], options.ticks, "ticks/s", "physics")


def _measure_pictures(options: Options, machine: Machine, width_px: int, height_px: int) -> Figure:
    track = load_track(TRACK)
    ribbon = track.ribbon
    start, finish = np.searchsorted(ribbon.station_m, [0.0, track.finish_station_m])
    sections = np.linspace(start, finish, max(1, options.ticks // TICKS_PER_PICTURE // 10)).astype(int)
    rotations = np.stack([ribbon.left, ribbon.up, ribbon.forward], axis=2)[sections]
    renderer = Renderer(track)

    def draw() -> None:
        for section, rotation in zip(sections, rotations, strict=True):
            renderer.render(ribbon.center_m[section], rotation, section, width_px, height_px)

    draw()
    timing = times_in_turns(options, draw=draw)["draw"]
    return _rate(
        timing,
        len(sections),
        "pictures/s",
        f"picture, {width_px} x {height_px}",
        floor=1e3 / machine.copy_ms(BYTES_PER_PIXEL * width_px * height_px),
        floor_is="writing its pixels",
    )


def _rate(timing: Timing, count: int, unit: str, name: str, **rest: object) -> Figure:
    return Figure(
        PART,
        name,
        1e3 * count / timing.wall_ms,
        unit,
        processor_ms=timing.processor_ms / count,
        **rest,  # type: ignore[arg-type]
    )
