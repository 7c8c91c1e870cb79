"""Sources of reference lines: replays, another line, a track, a map's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import STADIUM, Challenge, is_challenge_file, read_challenge
from trackmania_rl.gbx.reading import wrong_name
from trackmania_rl.gbx.replay import Ghost, Replay, is_replay_file, read_replay
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.simulator.tracks.track_file import find_track_file, reference_line_file
from trackmania_rl.track.block_lines import line_from_blocks
from trackmania_rl.track.line_building import MAX_LENGTH_M, SMOOTHING_M, BuiltLine, build_line, path_of_ghost, resample
from trackmania_rl.track.pieces import stadium_pieces
from trackmania_rl.track.reference_line import load_reference_line, read_points


@dataclass(frozen=True)
class LineSource:
    """A line and the map."""

    title: str
    line: BuiltLine
    challenge: Challenge | None = None  # None if unknown
    checkpoint_m: np.ndarray | None = None  # (C, 3) the car at the checkpoint times, single race
    race_time_ms: int | None = None  # the fastest race; None if unfinished, or not from a race


def from_replays(
    files: Sequence[Path],
    map_file: Path | None,
    driver: str | None = None,
    mean: bool = False,
    smoothing_m: float = SMOOTHING_M,
) -> LineSource:
    """Build the line from the fastest race in replays, or from the mean of all.

    Raises:
        UserError: if the races are on different maps, or none is by `driver`.
    """
    replays = [read_replay(file) for file in files]
    challenge = _common_map(replays, map_file)
    ghosts = [(ghost, replay) for replay in replays for ghost in replay.ghosts]
    if driver is not None:
        ghosts = _driven_by(ghosts, driver)
    ghosts.sort(key=lambda pair: (pair[0].race_time_ms is None, pair[0].race_time_ms))
    if not mean:
        ghosts = ghosts[:1]
    paths = [path_of_ghost(ghost, f"{replay.path} ({ghost.login or 'unknown driver'})") for ghost, replay in ghosts]
    line = build_line(paths, challenge, smoothing_m=smoothing_m)
    best = ghosts[0][0]
    who = f"mean of {len(paths)} races, the best" if len(paths) > 1 else "race"
    title = f"{who} by {best.login or 'an unknown driver'}"
    return LineSource(title, line, challenge, paths[0].checkpoint_m, best.race_time_ms)


def from_line(file: Path) -> LineSource:
    """Return a reference line as it is."""
    return LineSource(f"the line of {file.name}", BuiltLine(load_reference_line(file, LINE_SPACING_M), None))


def from_uneven_line(file: Path) -> LineSource:
    """Return another line, resampled; UserError if it is too long."""
    points_m = read_points(file)
    steps_m = np.linalg.norm(np.diff(points_m, axis=0), axis=1)
    if not steps_m.sum() <= MAX_LENGTH_M:
        raise UserError(f"{file}: {steps_m.sum():.0f} m long; a line has at most {MAX_LENGTH_M / 1000:.0f} km")
    longest = int(steps_m.argmax())
    note = f"steps were {steps_m.min():.3f} to {steps_m[longest]:.3f} m, the longest at point {longest}"
    return LineSource(f"{file.name}, resampled", BuiltLine(resample(points_m, LINE_SPACING_M), None, (note,)))


def from_track(track: str, maps_folder: Path) -> LineSource:
    """Return a track's line."""
    return from_line(reference_line_file(find_track_file(track, maps_folder)))


def from_blocks(map_file: Path, as_far_as_possible: bool = False) -> LineSource:
    """Build the line along a map's road pieces, with `as_far_as_possible` only the unambiguous part."""
    challenge = read_challenge(map_file)
    line = line_from_blocks(challenge, as_far_as_possible=as_far_as_possible)
    notes: tuple[str, ...] = () if line.gap is None else (f"the line is not whole: {line.gap}",)
    pieces = {block.name: stadium_pieces().find(block) for block in line.blocks}
    unseen = sorted(name for name, piece in pieces.items() if piece is None or piece.knowledge != "measured")
    if unseen:
        notes += (f"never compared with a driven race, only inferred: {', '.join(unseen)}; check the picture",)
    title = f"{len(line.blocks)} road pieces of {challenge.plain_name}"
    return LineSource(title, BuiltLine(line.points_m, None, notes), challenge)


def map_in(file: Path) -> Challenge:
    """Return the Stadium map in a map or a replay."""
    if is_challenge_file(file):
        challenge: Challenge | None = read_challenge(file)
    elif is_replay_file(file):
        challenge = read_replay(file).challenge
    else:
        raise wrong_name(file)
    if challenge is None:
        raise UserError(f"{file}: no map can be read in it; give the map's own .Challenge.Gbx")
    _require_stadium(challenge, file)
    return challenge


def _common_map(replays: Sequence[Replay], map_file: Path | None) -> Challenge | None:
    """Return the races' only map: the file's, else the replays'."""
    challenge = None if map_file is None else read_challenge(map_file)
    known_from = str(map_file)
    for replay in replays:
        if replay.challenge is None:
            continue
        if challenge is None:
            challenge, known_from = replay.challenge, str(replay.path)
        elif replay.challenge.uid != challenge.uid:
            raise UserError(
                f"{replay.path}: a race on the map {replay.challenge.plain_name!r}, not on {challenge.plain_name!r} of "
                f"{known_from} (they have different ids); use a replay of that very map"
            )
    if challenge is not None:
        _require_stadium(challenge, Path(known_from))
    return challenge


def _driven_by(ghosts: list[tuple[Ghost, Replay]], driver: str) -> list[tuple[Ghost, Replay]]:
    """Return the races by a login or the replay's player, ignoring case."""
    wanted = driver.lower()
    found = [
        (ghost, replay)
        for ghost, replay in ghosts
        if wanted == ghost.login.lower() or (len(replay.ghosts) == 1 and wanted == replay.nickname.lower())
    ]
    if not found:
        known = ", ".join(sorted({ghost.login or "unknown" for ghost, _ in ghosts}))
        raise UserError(f"--driver {driver}: drove none of these races; their drivers are {known}")
    return found


def _require_stadium(challenge: Challenge, file: Path) -> None:
    if challenge.environment != STADIUM:
        raise UserError(
            f"{file}: its map's environment is {challenge.environment!r}, which has another car; TrackMania Nations "
            f"Forever and the simulated game have {STADIUM} only"
        )
