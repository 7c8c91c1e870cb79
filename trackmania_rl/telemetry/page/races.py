"""Races that the page plays: a training's newest races and records, with pictures and sections; maps from above."""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import is_challenge_file, read_checkpoint_positions
from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.protocol.messages import TICK_MS
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import Track
from trackmania_rl.telemetry.films import driven_states
from trackmania_rl.telemetry.input_picture import InputTimeline
from trackmania_rl.telemetry.live import LiveRace
from trackmania_rl.telemetry.live.playback import RacePlayback
from trackmania_rl.telemetry.page.runs import BestRun
from trackmania_rl.telemetry.terminal_view import MEDALS
from trackmania_rl.track.game_map import map_file
from trackmania_rl.track.line_building import arc_length, directions
from trackmania_rl.track.map_sources import generated_track, track_of
from trackmania_rl.track.reference_line import load_reference_line

MOST_RACES: Final = 12
MOST_PICTURES: Final = 100
PICTURE_EVERY_MS: Final = 100
"""Race time between two pictures. Tabs that show the same race share them."""
PICTURES_PER_S: Final = 20
PICTURE_PX: Final = (320, 240)
JPEG_QUALITY: Final = 80
COMPARED_EVERY_M: Final = 2.0
N_PARTS: Final = 10
"""Equal parts into which a line without checkpoints is divided."""

_NEARLY_M: Final = 1.0
"""Tolerance: a finished race's last state is within a tick of the finish line."""
_STATE_MS: Final = 50

SHAPE_EVERY_M: Final = 2.0
"""Distance between two points in a shape."""


class WatchedRaces:
    """The newest `MOST_RACES` races by id, with their pictures. Thread-safe."""

    def __init__(self) -> None:
        self._playbacks: OrderedDict[str, RacePlayback] = OrderedDict()
        self._pictures: OrderedDict[tuple[str, int], bytes | None] = OrderedDict()
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._next_drawing_s = 0.0

    def keep(self, race: LiveRace) -> str:
        """Keep a race from a training; return the id."""
        return self._keep(f"live-{race.collector}-{race.game}-{int(race.timestamp_s * 1000)}", lambda: race)

    def record(self, best: BestRun, track: str) -> str:
        """Drive a record again on a file's track; return the id."""
        return self._keep(f"best-{best.folder.name}-{int(best.driven_s * 1000)}", lambda: race_of_inputs(best, track))

    def race(self, name: str) -> LiveRace | None:
        """Return a race; None if no longer kept."""
        with self._lock:
            playback = self._playbacks.get(name)
        return None if playback is None else playback.race

    def columns(self, name: str) -> dict[str, Any] | None:
        """Return a race's states as JSON values; None if no longer kept."""
        race = self.race(name)
        return None if race is None else columns_of(race) | {"id": name}

    def picture(self, name: str, time_ms: int) -> bytes | None:
        """Return the picture at a race time as JPEG, or None.

        `PICTURES_PER_S` are drawn for all tabs together.
        """
        time_ms = time_ms // PICTURE_EVERY_MS * PICTURE_EVERY_MS
        with self._lock:
            playback = self._playbacks.get(name)
        if playback is None:
            return None
        with self._drawing:
            if (name, time_ms) not in self._pictures:
                time.sleep(max(0.0, self._next_drawing_s - time.monotonic()))
                self._next_drawing_s = time.monotonic() + 1 / PICTURES_PER_S
                picture = playback.picture(min(time_ms, playback.duration_ms), *PICTURE_PX)
                self._pictures[name, time_ms] = None if picture is None else _jpeg(picture)
                while len(self._pictures) > MOST_PICTURES:
                    self._pictures.popitem(last=False)
            return self._pictures[name, time_ms]

    def _keep(self, name: str, make: Callable[[], LiveRace]) -> str:
        with self._lock:
            if name not in self._playbacks:
                self._playbacks[name] = RacePlayback(make())
            self._playbacks.move_to_end(name)
            while len(self._playbacks) > MOST_RACES:
                self._playbacks.popitem(last=False)
        return name


def columns_of(race: LiveRace) -> dict[str, Any]:
    """Return a race's states as lists, in ms, m and m/s."""
    columns = {
        "t": race.time_ms,
        "x": race.position[:, 0],
        "z": race.position[:, 2],
        "speed": race.speed_mps,
        "steer": race.steer,
        "gas": race.gas,
        "brake": race.brake,
        "greedy": race.was_greedy,
        "gear": race.gear,
        "m": race.meters_advanced,
    }
    has_values = race.q_values.size > 0 and bool(np.isfinite(race.q_values).all())
    return {
        "map": race.map_name,
        "track": race.track,
        "kind": "exploration" if race.is_explo else "evaluation",
        "collector": race.collector,
        "game": race.game,
        "finished": race.race_finished,
        "time_ms": race.race_time_ms,
        **{name: np.nan_to_num(column.astype(np.float64)).round(3).tolist() for name, column in columns.items()},
        "q": race.q_values.astype(np.float64).round(5).tolist() if has_values else [],
    }


def race_of_inputs(best: BestRun, track_file: str) -> LiveRace:
    """Drive a record's inputs on the simulated game."""
    events = read_input_script(best.inputs)
    states: list[tuple[Any, ...]] = []
    until_ms = best.race_time_ms + _STATE_MS - TICK_MS  # so that the last state is at the record's time or after it
    for race in driven_states(load_track(Path(track_file)), events, until_ms, _STATE_MS):
        car = race.car[0]
        speed, at = float(np.linalg.norm(car["velocity_m_s"])), car["position_m"].tolist()
        states.append((race.tick_time_ms, at, speed, int(car["gear"]), float(car["station_m"])))
    if not race.is_finished:
        race.advance(1)  # the finish is detected in the tick after the finish time
    times_ms, positions, speeds, gears, stations = zip(*states, strict=True)
    gas, brake, steer = InputTimeline(events).controls_at(times_ms).T
    q_values = best.q_values()
    if q_values is None or len(q_values) == 0:
        q_values = np.zeros((1, 0))
    return LiveRace(
        collector=-1,
        game=-1,
        map_name=best.map_name,
        track=Path(track_file).stem,
        is_explo=False,
        race_finished=race.is_finished,
        race_time_ms=best.race_time_ms,
        timestamp_s=best.driven_s,
        map_file=track_file,
        time_ms=np.array(times_ms, np.int32),
        position=np.array(positions, np.float32),
        speed_mps=np.array(speeds, np.float32),
        steer=steer.astype(np.float32),
        gas=gas > 0,
        brake=brake > 0,
        was_greedy=np.ones(len(states), bool),
        gear=np.array(gears, np.int16),
        meters_advanced=np.array(stations, np.float32),
        q_values=q_values.astype(np.float32)[np.minimum(np.arange(len(states)), len(q_values) - 1)],
        frames=None,
        frame_time_ms=np.zeros(0, np.int32),
    )


def race_sections(
    race: LiveRace,
    best: LiveRace | None,
    shape: Mapping[str, Any],
    splits: Mapping[str, Sequence[int]],
    medals_ms: Mapping[str, int],
) -> dict[str, Any]:
    """Compare a race with its map's best race, the recent evaluation races, and a medal's pace.

    Sections end at checkpoints, or divide a line without checkpoints into equal parts. A medal's sections are the best
    race's, scaled by one factor.

    Returns:
        `rows`, one for each section, with None for unknown values; `best_ms`, the best race's time; `medal`,
        the medal's name; `behind`, points [m, seconds behind the best race].
    """
    ends_m = np.array([gate[5] for gate in shape["gates"][1:]])
    names = [f"CP {number}" for number in range(1, len(ends_m) + 1)]
    if len(ends_m) < 2:
        ends_m = shape["length_m"] * np.arange(1, N_PARTS + 1) / N_PARTS
        names = [f"{end_m:.0f} m" for end_m in ends_m]
    names[-1] = "finish"
    own_ms = _end_times(race, ends_m)
    known_ms = {name: times for name, times in splits.items() if len(times) == len(ends_m)}
    best_ms = known_ms.get("best_ms", []) if best is None else _end_times(best, ends_m)
    has_best = len(best_ms) == len(ends_m)
    medal = next((name for name in MEDALS if name in medals_ms), None)
    pace_ms = [end_ms * medals_ms[medal] / best_ms[-1] for end_ms in best_ms] if medal and has_best else []

    def lost_ms(a_ms: Sequence[float], b_ms: Sequence[float]) -> list[int | None]:
        n_both = min(len(a_ms), len(b_ms))
        behind_ms = np.subtract(b_ms[:n_both], a_ms[:n_both])
        return [*np.diff(behind_ms, prepend=0).round().astype(int).tolist(), *[None] * (len(names) - n_both)]

    start_ms = [0] * len(names)
    columns = {
        "name": names,
        "at_ms": [*own_ms, *[None] * (len(names) - len(own_ms))],
        "section_ms": lost_ms(start_ms, own_ms),
        "best_ms": lost_ms(start_ms, best_ms),
        "lost_ms": lost_ms(best_ms, own_ms),
        "recent_lost_ms": lost_ms(best_ms, known_ms.get("recent_ms", [])),
        "pace_lost_ms": lost_ms(pace_ms, own_ms),
    }
    return {
        "rows": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        "best_ms": best_ms[-1] if has_best else None,
        "medal": medal,
        "behind": [] if best is None else _behind(race, best),
    }


def times_at(
    ends_m: npt.NDArray[np.float64], meters: npt.NDArray[np.floating], time_ms: npt.NDArray[np.integer]
) -> list[int]:
    """Return the times at which a race first reached distances (K,) ascending, for those that it reached.

    The race's S states are at `meters` and `time_ms`.
    """
    furthest_m = np.maximum.accumulate(meters.astype(np.float64))
    is_new = np.diff(furthest_m, prepend=-np.inf) > 0
    reached_m = ends_m[ends_m <= furthest_m[-1] + _NEARLY_M]
    return np.rint(np.interp(reached_m, furthest_m[is_new], time_ms[is_new])).astype(int).tolist()


def _end_times(race: LiveRace, ends_m: npt.NDArray[np.float64]) -> list[int]:
    """Return the times at the ends that a race reached; the finish has the official time."""
    times_ms = times_at(ends_m, race.meters_advanced, race.time_ms)[: len(ends_m) - 1]
    return [*times_ms, race.race_time_ms] if race.race_finished else times_ms


def _behind(race: LiveRace, best: LiveRace) -> list[list[float]]:
    reach_m = min(float(of_race.meters_advanced.max()) for of_race in (race, best))
    distances_m = np.arange(COMPARED_EVERY_M, reach_m, COMPARED_EVERY_M)
    own_ms, best_ms = (np.array(times_at(distances_m, r.meters_advanced, r.time_ms)) for r in (race, best))
    return np.stack((distances_m.round(1), ((own_ms - best_ms) / 1000).round(3)), axis=1).tolist()


def _jpeg(picture: npt.NDArray[np.uint8]) -> bytes:
    """Encode a picture, (H, W) gray or (H, W, 3) RGB."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def shape_of(name: str, settings: Settings, maps_folder: Path, run_folder: Path) -> dict[str, Any]:
    """Return a map in the map cycle or a generated track from above.

    Returns:
        `points`: [x, z, half width, has road (0 or 1), y] from start to finish, in metres; `gates`: [x, z, across x,
        across z, half width, distance] at start, checkpoints and finish, across a unit vector to the left; `length_m`;
        `zone_m`, distance between two virtual checkpoints; `n_laps`.

    Raises:
        UserError: if there is no such map, or the files cannot be used.
    """
    facts = {"name": name, "zone_m": settings.observation.distance_between_zone_centers_m}
    if (generated := generated_track(name, run_folder)) is not None:
        return _of_track(track_of(generated)) | facts
    entry = next((entry for entry in settings.game.map_cycle if entry.map_name == name and entry.has_files), None)
    if entry is None:
        raise UserError(f"{name}: the run's map_cycle has no such map with files of its own")
    if settings.game.game == "simulated":
        shape = _of_track(load_track(map_file(entry, maps_folder)))
    else:
        shape = _of_line(entry, maps_folder, settings.observation.road_width_m / 2)
    return shape | facts


def _of_track(track: Track) -> dict[str, Any]:
    ribbon = track.ribbon
    spacing_m = float(ribbon.station_m[1] - ribbon.station_m[0])
    first, last = np.searchsorted(ribbon.station_m, (0.0, track.finish_station_m)).tolist()
    at = np.unique(np.append(np.arange(first, last, max(1, round(SHAPE_EVERY_M / spacing_m))), last))
    stations_m = np.array([0.0, *track.checkpoint_stations_m, track.finish_station_m])
    gates = np.minimum(np.searchsorted(ribbon.station_m, stations_m), len(ribbon.station_m) - 1)
    return {
        "points": _points(ribbon.center_m[at], ribbon.half_width_m[at], ribbon.has_road[at]),
        "gates": _gates(ribbon.center_m[gates], ribbon.left[gates], ribbon.half_width_m[gates], stations_m),
        "length_m": round(track.finish_station_m, 1),
        "n_laps": track.n_laps,
    }


def _of_line(entry: MapEntry, maps_folder: Path, half_width_m: float) -> dict[str, Any]:
    line_m = load_reference_line(maps_folder / entry.reference_line)
    stations_m = arc_length(line_m)
    at = np.unique(np.append(np.arange(0, len(line_m), max(1, round(SHAPE_EVERY_M / LINE_SPACING_M))), len(line_m) - 1))
    challenge, passed = map_file(entry, maps_folder), set[int]()
    if is_challenge_file(challenge) and challenge.is_file():
        away_m = np.linalg.norm(read_checkpoint_positions(challenge)[:, None] - line_m[None], axis=2)
        passed = set(np.argmin(away_m, axis=1).tolist())
    gates = np.array(sorted({0, *passed, len(line_m) - 1}))
    forward = directions(line_m)[gates]
    left = np.stack((forward[:, 2], np.zeros(len(gates)), -forward[:, 0]), axis=1)
    left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)
    widths_m = np.full(len(line_m), half_width_m)
    return {
        "points": _points(line_m[at], widths_m[at], np.ones(len(at))),
        "gates": _gates(line_m[gates], left, widths_m[gates], stations_m[gates]),
        "length_m": round(float(stations_m[-1]), 1),
        "n_laps": 1,
    }


def _points(
    center_m: npt.NDArray[np.floating], half_width_m: npt.NDArray[np.floating], has_road: npt.NDArray[Any]
) -> list[list[float]]:
    columns = (center_m[:, 0], center_m[:, 2], half_width_m, has_road, center_m[:, 1])
    return np.stack(columns, axis=1).astype(np.float64).round(2).tolist()


def _gates(
    center_m: npt.NDArray[np.floating],
    left: npt.NDArray[np.floating],
    half_width_m: npt.NDArray[np.floating],
    stations_m: npt.NDArray[np.floating],
) -> list[list[float]]:
    columns = (center_m[:, 0], center_m[:, 2], left[:, 0], left[:, 2], half_width_m, stations_m)
    return np.stack(columns, axis=1).astype(np.float64).round(3).tolist()
