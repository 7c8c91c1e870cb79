"""Replay in a `.Replay.Gbx` or `.Ghost.Gbx` file: races with times, samples and inputs, and the map.

A ghost is one race: car samples (usually every 100 ms) and every input change, to the engine's 10 ms. A
replay is one or more ghosts and the map.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import Challenge, challenge_of, plain_text
from trackmania_rl.gbx.reading import (
    CGameChallenge,
    CGameCtnGhost,
    CGameReplayRecord,
    ControlEntry,
    Gbx,
    GbxError,
    GbxFile,
    read_gbx,
)

REPLAY_SUFFIXES: Final = (".replay.gbx", ".ghost.gbx")
NO_TIME: Final = 0xFFFFFFFF

_NO_SPEED: Final = -(1 << 15)  # a zero speed's logarithm
_MAX_SAMPLE_M: Final = 1e6  # a position beyond it was misread


@dataclass(frozen=True)
class GhostSamples:
    """S car samples."""

    period_ms: int  # between samples
    time_ms: npt.NDArray[np.int64]  # (S,)
    position_m: npt.NDArray[np.float64]  # (S, 3) car's origin, world axes
    rotation: npt.NDArray[np.float64]  # (S, 4) unit quaternions w, x, y, z
    speed_m_s: npt.NDArray[np.float64]  # (S,) to about a thousandth

    @property
    def axes(self) -> npt.NDArray[np.float64]:
        """(S, 3, 3) rotation matrices, car to world; columns are the car's left, up and forward."""
        w, x, y, z = (self.rotation / np.linalg.norm(self.rotation, axis=1, keepdims=True)).T
        rows = (
            (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)),
            (2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)),
            (2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)),
        )
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


RACE_RUNNING = "_FakeIsRaceRunning"


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """One change to one input."""

    time_ms: int  # on the ghost's clock (`Ghost.inputs_begin_ms`)
    # such as "Accelerate", "Steer"; names beginning with "_" are the game's own
    name: str
    value: int  # 1 pressed, 0 released; for analog inputs -65536 to 65536, positive to the right (or forwards)


@dataclass(frozen=True)
class Ghost:
    """One race."""

    login: str
    race_time_ms: int | None
    checkpoint_times_ms: tuple[int, ...]  # one per passed checkpoint; the last one is the finish
    n_respawns: int
    samples: GhostSamples | None  # None if the ghost holds none
    # input changes, in order; () if the ghost holds none
    events: tuple[ControlEvent, ...]
    game_version: str

    @property
    def inputs_begin_ms(self) -> int:
        """Race time 0 on the events' clock: the clock in TMInterface's replays begins a minute earlier."""
        return next((event.time_ms for event in self.events if event.name == RACE_RUNNING and event.value), 0)


@dataclass(frozen=True)
class Replay:
    """One or more races on a map."""

    path: Path
    nickname: str  # of the player who saved it, without colour codes; "" in a `.Ghost.Gbx`
    challenge: Challenge | None  # None in a `.Ghost.Gbx`, and if the embedded map can't be read
    ghosts: tuple[Ghost, ...]  # fastest first

    @property
    def best(self) -> Ghost:
        """Fastest race."""
        return self.ghosts[0]


def is_replay_file(path: Path) -> bool:
    """Return whether a path names a replay or a ghost."""
    return path.name.lower().endswith(REPLAY_SUFFIXES)


def read_replay(path: Path) -> Replay:
    """Read a replay or a ghost.

    Raises:
        GbxError: if the file is missing, damaged, neither, or without a race.
    """
    file = read_gbx(path)
    records = file.nodes(CGameReplayRecord)
    nodes = file.nodes(CGameCtnGhost)
    if not nodes:
        what = f"a replay in which no ghost can be read (recorded by {_program(file)})" if records else file.kind
        raise GbxError(
            f"{path}: no race is in it: it is {what}; supported are replays and ghosts of TrackMania Nations Forever "
            "and United Forever"
        )
    ghosts = sorted(
        (_ghost(node, path) for node in nodes),
        key=lambda ghost: (ghost.race_time_ms is None, ghost.race_time_ms),
    )
    return Replay(
        path=path,
        nickname=plain_text((records[0].nickname or "") if records else ""),
        challenge=_embedded_challenge(records[0].track, path) if records else None,
        ghosts=tuple(ghosts),
    )


def read_embedded_map(path: Path) -> bytes:
    """Return the map file's bytes from a replay.

    Raises:
        GbxError: if the replay is missing or damaged, or has no readable map.
    """
    for record in read_gbx(path).nodes(CGameReplayRecord):
        if _embedded_challenge(record.track, path) is not None:
            return bytes(record.track.root_parser.data)
    raise GbxError(f"{path}: no map that can be read is in it; a map is in every .Replay.Gbx, but not in a .Ghost.Gbx")


def _program(file: GbxFile) -> str:
    version = None if file.header is None else file.header.get("exever")
    return "an unknown version of the game" if version is None else f"version {version} of the game"


def _embedded_challenge(track: Gbx | None, path: Path) -> Challenge | None:
    if track is None or not any(isinstance(node, CGameChallenge) for node in track.classes.values()):
        return None
    return challenge_of(GbxFile(path, track.class_id, track, None))


def _ghost(node: CGameCtnGhost, path: Path) -> Ghost:
    return Ghost(
        login=node.login or "",
        race_time_ms=None if node.race_time in (0, NO_TIME) else node.race_time,
        checkpoint_times_ms=tuple(node.cp_times),
        n_respawns=0 if node.num_respawns == NO_TIME else node.num_respawns,
        samples=_samples(node, path) if node.records else None,
        events=tuple(map(_event, node.control_entries)),
        game_version=node.game_version or "",
    )


def _samples(node: CGameCtnGhost, path: Path) -> GhostSamples:
    records = node.records
    period_ms = node.sample_period
    if not 1 <= period_ms <= 10_000:
        raise GbxError(f"{path}: damaged: a sample every {period_ms} ms, which no ghost has")
    position_m = np.array([record.position.as_array() for record in records], dtype=np.float64)
    if not (np.abs(position_m) < _MAX_SAMPLE_M).all():  # also false for NaN
        raise GbxError(f"{path}: damaged: its car is at places where no car can be")
    packed = np.array(
        [(record.angle, record.axis_heading, record.axis_pitch, record.speed) for record in records], dtype=np.float64
    )
    speed = packed[:, 3]
    return GhostSamples(
        period_ms=period_ms,
        time_ms=np.arange(len(records)) * period_ms,
        position_m=position_m,
        rotation=_quaternions(*packed[:, :3].T),
        speed_m_s=np.where(speed == _NO_SPEED, 0.0, np.exp(speed / 1000.0)),
    )


def _quaternions(
    angle: npt.NDArray[np.float64], axis_heading: npt.NDArray[np.float64], axis_pitch: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return unit quaternions (S, 4), w first, from a ghost's 16-bit numbers: half the turn's angle, and the axis."""
    half_angle = angle * (np.pi / 0xFFFF)
    heading = axis_heading * (np.pi / 0x7FFF)
    pitch = axis_pitch * (np.pi / 2 / 0x7FFF)
    axis = np.stack((np.cos(heading) * np.cos(pitch), np.sin(heading) * np.cos(pitch), np.sin(pitch)), axis=1)
    return np.concatenate((np.cos(half_angle)[:, None], np.sin(half_angle)[:, None] * axis), axis=1)


def _event(entry: ControlEntry) -> ControlEvent:
    is_analog = entry.event_name in ("Steer", "Gas")
    return ControlEvent(entry.time, entry.event_name or "", _analog_value(entry) if is_analog else int(entry.enabled))


def _analog_value(entry: ControlEntry) -> int:
    """Return an analog input's value: a signed 24-bit number with the sign inverted."""
    raw = (entry.flags << 16 | entry.enabled) & 0xFFFFFF
    return -(raw - (1 << 24) if raw >= 1 << 23 else raw)
