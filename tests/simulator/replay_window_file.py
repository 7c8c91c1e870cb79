"""`replay_windows.json`: windows of public replays as numbers, so that tests need no replay.

`python tests/simulator/replay_window_file.py REPLAY_FOLDER` makes it anew.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.simulator.physics.vehicle_state import VEHICLE_DTYPE
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, RUN_OUT_M, RUN_UP_M, Ribbon, build_ribbon
from trackmania_rl.track.ghost_race import GhostRace, race_of_ghost
from trackmania_rl.track.replay_windows import drive_window, window_at
from trackmania_rl.track.window_ground import HALF_WIDTH_M, ribbon_of

WINDOW_FILE = Path(__file__).with_name("replay_windows.json")
B13_A, B13_B, MYDLI = "B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx", "mydli_20.14.Replay.gbx"
WINDOWS: tuple[tuple[str, str, int, int, str], ...] = (
    ("V1", B13_A, 0, 2500, "start, full throttle, ramp down 0.65 m between 4 and 17 m"),
    ("V2", B13_A, 2600, 3900, "turbo pads on a flat straight"),
    ("V3", B13_A, 7400, 8400, "flat straight, full throttle, 7 m/s2 band"),
    ("V4", B13_A, 8400, 9300, "turbo pads, gear change 4->5, crossing 401 km/h"),
    ("V5", B13_A, 11600, 12400, "flat straight crossing 401 km/h (7 -> 5.5)"),
    ("V6", B13_A, 13200, 13900, "throttle released in full left steer (coast)"),
    ("V7", B13_A, 13900, 15300, "full throttle, constant full left steer"),
    ("V8", B13_B, 0, 2500, "start, full throttle, small analog steer"),
    ("V9", B13_B, 7400, 8400, "flat straight, full throttle"),
    ("V10", B13_B, 13200, 15300, "full left steer, coast then full throttle"),
    ("V11", MYDLI, 0, 2500, "keyboard start: straight, right tap, then full left through the 1->2 gear change"),
    ("V12", MYDLI, 3600, 4700, "full throttle, constant full left steer, flat"),
    ("V13", MYDLI, 5000, 6000, "keyboard taps on a flat straight"),
    ("V14", MYDLI, 8300, 8700, "coast 210 ms in full left steer"),
    ("V15", MYDLI, 8800, 9600, "full throttle, constant full left steer"),
    ("V16", MYDLI, 9800, 10800, "full throttle, constant full left steer, slightly wavy"),
    ("V17", MYDLI, 12000, 12800, "grass, full right taps, slides to 14 deg"),
    ("V18", MYDLI, 14600, 16900, "after respawn: flat straight with taps, 1->2 gear change on the flat"),
    ("V19", MYDLI, 16900, 18600, "flat, taps, 2->3 gear change"),
    ("V20", MYDLI, 18600, 20000, "flat, taps, crossing 201 km/h (11 -> 7)"),
)
"""(name, replay, beginning and end in ms, what happens)"""


class StoredWindow(NamedTuple):
    """One window, ready to be driven.

    Attributes:
        start_ms: race time of its beginning.
        car: (1,) VEHICLE_DTYPE at its beginning.
        ribbon: the ground.
        controls: (T, 3) gas, brake and steer of each tick.
        samples: (K, 9) time in ms, position, quaternion (w first) and speed in km/h of the ghost.
    """

    start_ms: int
    car: npt.NDArray[np.void]
    ribbon: Ribbon
    controls: npt.NDArray[np.float64]
    samples: npt.NDArray[np.float64]


def load_windows() -> dict[str, StoredWindow]:
    """All windows, by name."""
    return {record["name"]: _loaded(record) for record in json.loads(WINDOW_FILE.read_text())}


def record_of(name: str, replay: str, end_ms: int, what: str, race: GhostRace, start_ms: int) -> dict[str, object]:
    """A window of a race, as it is stored."""
    window = window_at(race, start_ms, end_ms)
    assert window is not None
    ribbon = ribbon_of(race, window.samples, window.footing)
    laid = slice(round(RUN_UP_M / RIBBON_SPACING_M), -round(RUN_OUT_M / RIBBON_SPACING_M))
    center_m = ribbon.center_m[laid]
    car = drive_window(race, window, ribbon).first
    motion, at = race.motion, window.samples
    ticks = slice(race.tick_of(window.start_ms), race.tick_of(end_ms))
    return {
        "name": name,
        "replay": replay.split(".Replay")[0],
        "what": what,
        "start_ms": window.start_ms,
        "ground": {
            "first_m": np.round(center_m[0], 4).tolist(),
            "step_m": np.round(((center_m[-1] - center_m[0]) / (len(center_m) - 1))[[0, 2]], 8).tolist(),
            "heights_m": _runs(np.round(center_m[:, 1], 4)),
            "surfaces": _runs(ribbon.surface[laid]),
        },
        "car": {field: _numbers(car[field][0]) for field in VEHICLE_DTYPE.names or ()},
        "controls": _runs(np.round(race.controls[ticks], 5)),
        "samples": [
            [
                int(motion.time_ms[i]),
                *np.round(motion.position_m[i], 4).tolist(),
                *np.round(motion.quaternion[i], 6).tolist(),
                round(3.6 * float(motion.speed_m_s[i]), 3),
            ]
            for i in at
        ],
    }


def make_records(replays: Path) -> list[dict[str, object]]:
    """All windows of the replays in a folder, as they are stored."""
    races = {}
    for file in (B13_A, B13_B, MYDLI):
        replay = read_replay(replays / file)
        assert replay.challenge is not None
        races[file] = race_of_ghost(replay.best, replay.challenge.blocks, replays / file)
    return [
        record_of(name, file, end_ms, what, races[file], start_ms) for name, file, start_ms, end_ms, what in WINDOWS
    ]


def _loaded(record: dict) -> StoredWindow:
    ground = record["ground"]
    heights_m, surfaces = _array(ground["heights_m"]), _array(ground["surfaces"])
    line_m = np.empty((len(heights_m), 3))
    line_m[:, 1] = heights_m
    line_m[:, [0, 2]] = np.array(ground["first_m"])[[0, 2]] + np.arange(len(line_m))[:, None] * ground["step_m"]
    car = np.zeros(1, VEHICLE_DTYPE)
    for field, value in record["car"].items():
        car[field] = value
    return StoredWindow(
        record["start_ms"],
        car,
        build_ribbon(line_m, HALF_WIDTH_M, surface=surfaces),
        _array(record["controls"]),
        np.array(record["samples"]),
    )


def _runs(values: npt.NDArray) -> list[list]:
    """Values in order, each with how often it follows on itself."""
    runs: list[list] = []
    for value in values.tolist():
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return runs


def _array(runs: list[list]) -> npt.NDArray[np.float64]:
    return np.array([value for count, value in runs for _ in range(count)])


def _numbers(value: npt.NDArray | np.generic) -> object:
    """A field of a car with as few digits as give it back."""
    if isinstance(value, np.ndarray) and value.ndim:
        return [_numbers(element) for element in value]
    return int(value) if np.issubdtype(value.dtype, np.integer) else float(str(value))


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in make_records(Path(sys.argv[1])))
    WINDOW_FILE.write_text(f"[\n{lines}\n]\n")
