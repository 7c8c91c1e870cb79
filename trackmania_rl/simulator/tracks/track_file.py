"""Track loading: ``*.toml`` track files and bare ``*.npy`` reference lines.

A track file names a reference line (a ``.npy`` with one point every 0.5 m) and the road over it; the format is
described in ``docs/track_files.rst``. A bare reference line becomes a wide walled asphalt road.
"""

import contextlib
import difflib
import math
import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import read_bounded_text, read_npy, within
from trackmania_rl.simulator.tracks.track_design import (
    MAX_LAP_MISMATCH_M,
    find_crossing,
    lap_mismatch_m,
    moving_average,
    resample,
    turn_radius_m,
)
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Edge, Surface, Track, build_ribbon
from trackmania_rl.simulator.tracks.world_file import MeshWorld, WorldFileError, track_in_world

SHORTEST_LINE_M = 20.0
SPACING_TOLERANCE_M = 0.2
"""Lines recorded in the game are rounded to 0.1 m, which moves neighbouring points by at most this."""
MAX_RESAMPLED_SHARE = 0.1
MAX_RESAMPLED_STEP_M = 5.0
"""Longest step in a line that is resampled; at most a `MAX_RESAMPLED_SHARE` share of steps exceeds the tolerance."""
MAX_TRACK_BYTES = 16 << 10  # the time to parse a dotted key grows with the length squared; shipped tracks have 1 KiB
MAX_LINE_BYTES = 4 << 20  # some 87 km
MAX_NAME_LETTERS = 200
MAX_COMPLAINTS = 5

BARE_LINE_WIDTH_M = 24.0
BARE_LINE_SMOOTHING_M = 10.0
BARE_LINE_CHECKPOINT_EVERY_M = 300.0

_TAPER_M = 12.0
"""Width and banking changes are spread over twice this length: a step in a wall would stop a car."""

FloatArray = npt.NDArray[np.float64]
SurfaceName = Literal["asphalt", "concrete", "dirt", "grass", "ice", "turbo"]
EdgeName = Literal["wall", "grass", "drop"]
Metres = Annotated[float, Field(allow_inf_nan=False)]
WidthMetres = Annotated[float, Field(ge=4.0, le=200.0, allow_inf_nan=False)]
RaceTimeMs = Annotated[int, Field(ge=10, le=86_400_000)]
Degrees = Annotated[float, Field(ge=-60.0, le=60.0, allow_inf_nan=False)]


class TrackFileError(UserError, ValueError):
    """A track file or reference line cannot be used."""


class SectionSettings(BaseModel):
    """One ``[[section]]``: a stretch on every lap; None keeps the track's default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    from_m: Metres
    to_m: Metres
    width_m: WidthMetres | None = None
    banking_deg: Degrees | None = None
    surface: SurfaceName | None = None
    edge: EdgeName | None = None
    gap: bool = False

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> Self:
        if self.to_m <= self.from_m:
            raise ValueError(f"to_m = {self.to_m} must be greater than from_m = {self.from_m}")
        return self


class TimesSettings(BaseModel):
    """``[times]``: times to beat, for dashboards only; None for missing ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    author_ms: RaceTimeMs | None = None
    gold_ms: RaceTimeMs | None = None
    silver_ms: RaceTimeMs | None = None
    bronze_ms: RaceTimeMs | None = None


class TrackSettings(BaseModel):
    """Track file. Distances are metres along the road from the start line; with several laps, along one lap."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LETTERS, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
    line: Annotated[str, Field(max_length=250)]
    world: Annotated[str, Field(max_length=250)] | None = None
    description: Annotated[str, Field(max_length=10_000)] = ""
    laps: Annotated[int, Field(ge=1, le=100)] = 1
    width_m: WidthMetres = 20.0
    surface: SurfaceName = "asphalt"
    edge: EdgeName = "wall"
    smoothing_m: Annotated[float, Field(ge=0.0, le=50.0)] = 0.0
    allow_crossing: bool = False
    checkpoints_m: Annotated[tuple[Metres, ...], Field(max_length=1000)] = ()
    section: Annotated[tuple[SectionSettings, ...], Field(max_length=1000)] = ()
    times: TimesSettings = TimesSettings()

    @model_validator(mode="after")
    def _has_one_ground(self) -> Self:
        of_road = ("width_m", "surface", "edge", "smoothing_m", "allow_crossing", "checkpoints_m", "section")
        if self.world is not None and (both := [name for name in of_road if name in self.model_fields_set]):
            raise ValueError(f"with world, the track has no road of its own: leave out {', '.join(both)}")
        return self


def load_track(path: Path) -> Track:
    """Return the track from a ``.toml`` track file or a bare ``.npy`` reference line.

    Raises:
        TrackFileError: the file is missing, damaged or cannot be built.
    """
    if path.suffix == ".npy":
        return _track_from_bare_line(path)
    if path.suffix == ".toml":
        settings = read_track_settings(path)
        try:
            line_m = read_line(within(path.parent, settings.line, TrackFileError))
            if settings.world is not None:
                return _track_of_world(settings, line_m, within(path.parent, settings.world, TrackFileError))
            return _build_track(settings, line_m)
        except (TrackFileError, WorldFileError) as error:
            raise TrackFileError(f"{path}: {error}") from error
    raise TrackFileError(f"{path}: a track is a .toml track file or a .npy reference line, not {path.suffix!r}")


def find_track_file(name: str, maps_folder: Path) -> Path:
    """Return the file for a name: a path, or a track in the maps folder with or without the ending.

    Raises:
        TrackFileError: there is none; the text lists the tracks in the maps folder.
    """
    for path in (Path(name), maps_folder / name, maps_folder / f"{name}.toml"):
        with contextlib.suppress(OSError):  # an unreadable folder, or a name that is too long
            if path.is_file() and path.suffix in (".toml", ".npy"):
                return path.resolve()
    known = sorted(path.name for path in maps_folder.glob("*.toml"))
    nearest = difflib.get_close_matches(Path(name).stem, [Path(track).stem for track in known], n=1)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    raise TrackFileError(
        f"{name}: no such track file{hint}; the tracks of {maps_folder} are {', '.join(known) or 'none'}"
    )


def reference_line_file(track_file: Path) -> Path:
    """Return a track file's ``.npy`` line; a bare line is returned unchanged.

    Raises:
        TrackFileError: the track file cannot be read.
    """
    if track_file.suffix == ".npy":
        return track_file
    line = read_track_settings(track_file).line
    try:
        return within(track_file.parent, line, TrackFileError)
    except TrackFileError as error:
        raise TrackFileError(f"{track_file}: {error}") from error


def read_track_settings(path: Path) -> TrackSettings:
    """Read and validate a ``.toml`` track file, without the line.

    Raises:
        TrackFileError: the file cannot be read, is not TOML, or has unknown or impossible entries (up to five are
            listed).
    """
    text = read_bounded_text(path, MAX_TRACK_BYTES, TrackFileError)
    try:
        entries = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrackFileError(f"{path}: is not valid TOML: {one_line(error)}") from error
    try:
        return TrackSettings.model_validate(entries)
    except ValidationError as error:
        found = error.errors()
        complaints = [_complaint(details) for details in found[:MAX_COMPLAINTS]]
        complaints += [f"and {len(found) - MAX_COMPLAINTS} more"] * (len(found) > MAX_COMPLAINTS)
        raise TrackFileError(f"{path}: {'; '.join(complaints)}") from error


def read_line(path: Path) -> FloatArray:
    """Return a reference line (N,3) in metres as float64: finite, about 0.5 m from point to point.

    Raises:
        TrackFileError: the file is missing, damaged or not such a line.
    """
    line_m = read_npy(path, MAX_LINE_BYTES, TrackFileError)
    if line_m.ndim != 2 or line_m.shape[1] != 3:
        raise TrackFileError(f"{path}: has shape {line_m.shape} of {line_m.dtype}, expected (N, 3) real x, y, z")
    line_m = line_m.astype(np.float64)
    if not np.isfinite(line_m).all():
        raise TrackFileError(f"{path}: point {int(np.argmin(np.isfinite(line_m).all(axis=1)))} is not finite")
    if len(line_m) < SHORTEST_LINE_M / RIBBON_SPACING_M:
        raise TrackFileError(f"{path}: has {len(line_m)} points; a line is at least {SHORTEST_LINE_M} m long")
    steps_m = np.linalg.norm(np.diff(line_m, axis=0), axis=1)
    wrong = np.abs(steps_m - RIBBON_SPACING_M) > SPACING_TOLERANCE_M
    if wrong.mean() > MAX_RESAMPLED_SHARE or steps_m.max() > MAX_RESAMPLED_STEP_M:
        worst = int(np.argmax(np.abs(steps_m - RIBBON_SPACING_M)))
        raise TrackFileError(
            f"{path}: points {worst} and {worst + 1} are {steps_m[worst]:.3f} m apart, expected about "
            f"{RIBBON_SPACING_M} m: scripts/tools/maps.py line --resample {path} --output EVEN.npy writes an even line"
        )
    return resample(line_m, RIBBON_SPACING_M) if wrong.any() else line_m


def _track_from_bare_line(path: Path) -> Track:
    line_m = _smoothed(read_line(path), BARE_LINE_SMOOTHING_M)
    radius_m = turn_radius_m(line_m)
    half_width_m = _tapered(np.clip(0.8 * radius_m, 2.0, BARE_LINE_WIDTH_M / 2.0))
    length_m = RIBBON_SPACING_M * (len(line_m) - 1)
    stretches = math.ceil(length_m / BARE_LINE_CHECKPOINT_EVERY_M)
    try:
        ribbon = build_ribbon(line_m, half_width_m=half_width_m)
    except ValueError as error:
        raise TrackFileError(f"{path}: {error}") from error
    return Track(
        name=path.stem,
        ribbon=ribbon,
        checkpoint_stations_m=tuple(length_m * k / stretches for k in range(1, stretches)),
        finish_station_m=length_m,
    )


def _build_track(settings: TrackSettings, line_m: FloatArray) -> Track:
    line_m = _smoothed(line_m, settings.smoothing_m)
    finish_m = RIBBON_SPACING_M * (len(line_m) - 1)
    lap_m = finish_m / settings.laps
    _check_distances(settings, lap_m)

    distance_in_lap_m = RIBBON_SPACING_M * np.arange(len(line_m))
    if settings.laps > 1:  # the last point is the start again; with one lap it is the finish
        distance_in_lap_m %= lap_m
    half_width_m = np.full(len(line_m), settings.width_m / 2.0)
    banking_rad = np.zeros(len(line_m))
    surface = np.full(len(line_m), Surface[settings.surface.upper()])
    edge = np.full(len(line_m), Edge[settings.edge.upper()])
    has_road = np.ones(len(line_m), dtype=np.bool_)
    for section in settings.section:
        inside = (distance_in_lap_m >= section.from_m) & (distance_in_lap_m < section.to_m)
        inside |= (distance_in_lap_m == lap_m) & (section.to_m >= lap_m)
        if section.width_m is not None:
            half_width_m[inside] = section.width_m / 2.0
        if section.banking_deg is not None:
            banking_rad[inside] = math.radians(section.banking_deg)
        if section.surface is not None:
            surface[inside] = Surface[section.surface.upper()]
        if section.edge is not None:
            edge[inside] = Edge[section.edge.upper()]
        if section.gap:
            has_road[inside] = False
    half_width_m = _tapered(half_width_m)
    banking_rad = _tapered(banking_rad)

    _check_shape(settings, line_m, half_width_m, lap_m)
    try:
        ribbon = build_ribbon(line_m, half_width_m, banking_rad, surface, edge, has_road)
    except ValueError as error:
        raise TrackFileError(str(error)) from error
    lap_lines_m = [lap_m * lap for lap in range(1, settings.laps)]
    stations_m = [lap_m * lap + mark_m for lap in range(settings.laps) for mark_m in settings.checkpoints_m]
    return Track(
        name=settings.name,
        ribbon=ribbon,
        checkpoint_stations_m=tuple(sorted(lap_lines_m + stations_m)),
        finish_station_m=finish_m,
        n_laps=settings.laps,
    )


def _track_of_world(settings: TrackSettings, line_m: FloatArray, world_file: Path) -> Track:
    world = MeshWorld.read(world_file)
    try:
        return track_in_world(settings.name, line_m, world, settings.laps)
    except ValueError as error:
        raise TrackFileError(f"{world_file}: {error}: make line and world anew (maps.py track)") from error


def _check_distances(settings: TrackSettings, lap_m: float) -> None:
    extent = f"{'a lap' if settings.laps > 1 else 'the line'}, which is {lap_m:.1f} m long"
    for section in settings.section:
        if section.from_m < 0.0 or section.to_m > lap_m + RIBBON_SPACING_M:
            raise TrackFileError(f"the section from {section.from_m} m to {section.to_m} m lies outside {extent}")
        if section.gap and (section.from_m < RIBBON_SPACING_M or section.to_m > lap_m - RIBBON_SPACING_M):
            raise TrackFileError(f"the gap from {section.from_m} m to {section.to_m} m touches the start or the finish")
    previous_m = 0.0
    for mark_m in settings.checkpoints_m:
        if not previous_m < mark_m < lap_m:
            raise TrackFileError(
                f"checkpoints_m has {mark_m} m after {previous_m} m: "
                f"checkpoints come in driving order and lie inside {extent}"
            )
        previous_m = mark_m


def _check_shape(settings: TrackSettings, line_m: FloatArray, half_width_m: FloatArray, lap_m: float) -> None:
    mismatch_m = lap_mismatch_m(line_m, settings.laps)
    if mismatch_m > MAX_LAP_MISMATCH_M:
        raise TrackFileError(
            f"laps = {settings.laps}, but the line's laps lie up to {mismatch_m:.1f} m apart: "
            "the line must hold all laps, each of the same length over the same ground"
        )
    radius_m = turn_radius_m(line_m)
    tightest = int(np.argmin(radius_m - half_width_m))
    if radius_m[tightest] < half_width_m[tightest]:
        raise TrackFileError(
            f"the line turns with a radius of {radius_m[tightest]:.1f} m at {RIBBON_SPACING_M * tightest:.0f} m, where "
            f"the road is {2 * half_width_m[tightest]:.1f} m wide: its inner border would fold over; make it narrower"
        )
    lap_points = round(lap_m / RIBBON_SPACING_M) + 1
    if settings.allow_crossing:
        return
    crossing = find_crossing(line_m[:lap_points], half_width_m[:lap_points], is_closed=settings.laps > 1)
    if crossing is not None:
        raise TrackFileError(
            f"the road runs into itself: at {crossing[0]:.0f} m and {crossing[1]:.0f} m it is closer than its width "
            "at the same height; move it apart, or set allow_crossing = true if it is meant so"
        )


def _smoothed(line_m: FloatArray, smoothing_m: float) -> FloatArray:
    """Return the line smoothed over ``smoothing_m`` metres, 0.5 m from point to point.

    Without smoothing an evenly spaced line is unchanged, and so are states and times.
    """
    if smoothing_m > 0.0:
        window_points = 2 * round(smoothing_m / (2.0 * RIBBON_SPACING_M)) + 1
        line_m = np.stack([moving_average(line_m[:, axis], window_points) for axis in range(3)], axis=1)
        return resample(line_m, RIBBON_SPACING_M)
    length_m = float(np.linalg.norm(np.diff(line_m, axis=0), axis=1).sum())
    is_even = abs(length_m - RIBBON_SPACING_M * (len(line_m) - 1)) <= RIBBON_SPACING_M
    return line_m if is_even else resample(line_m, RIBBON_SPACING_M)


def _tapered(values: FloatArray) -> FloatArray:
    return moving_average(values, 2 * round(_TAPER_M / (2.0 * RIBBON_SPACING_M)) + 1)


def _complaint(details: ErrorDetails) -> str:
    where = _short(".".join(str(part + 1) if isinstance(part, int) else part for part in details["loc"]))
    key = _short(str(details["loc"][-1])) if details["loc"] else ""
    table = details["loc"][0] if len(details["loc"]) > 1 else None
    if details["type"] == "extra_forbidden":
        model = SectionSettings if table == "section" else TimesSettings if table == "times" else TrackSettings
        known = list(model.model_fields)
        return f"{where}: unknown key{_nearest(key, known)}; known keys are {', '.join(known)}"
    if details["type"] == "literal_error":
        known = list(get_args({"surface": SurfaceName, "edge": EdgeName}[key]))
        given = _short(str(details["input"]))
        return f"{where} = {given!r} is unknown{_nearest(given, known)}; known are {', '.join(known)}"
    if details["type"] == "missing":
        return f"the key {where} is missing"
    given = "" if isinstance(details["input"], dict) else f" (given: {_short(repr(details['input']))})"
    message = details["msg"].removeprefix("Value error, ")
    return f"{where}: {message[0].lower()}{message[1:]}{given}" if where else message


def _short(text: str) -> str:
    return text if len(text) <= MAX_NAME_LETTERS else f"{text[:MAX_NAME_LETTERS]}..."


def _nearest(name: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
