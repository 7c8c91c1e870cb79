"""A car's path in one race, without the part after the finish and without abandoned stretches.

A respawn puts the car back to the last checkpoint's middle. The samples since that checkpoint are cut out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import Ghost, GhostSamples

RESPAWN_REACH_M: Final = 24.0
"""Largest distance between a checkpoint's passage and the respawn: gates are 32 m wide."""
JUMP_FACTOR: Final = 1.3
JUMP_SLACK_M: Final = 1.0
"""Between two samples a car moves at most JUMP_FACTOR times the higher speed's distance, plus JUMP_SLACK_M."""

FloatArray = npt.NDArray[np.float64]


class DrivenPathError(UserError):
    """A race has no samples, too few, or jumps without a respawn."""


@dataclass(frozen=True)
class DrivenPath:
    """One car's path; S samples."""

    name: str
    time_ms: FloatArray  # (S,)
    position_m: FloatArray  # (S, 3) world axes
    speed_m_s: FloatArray  # (S,)
    # (C, 3) at each checkpoint time, without the finish
    checkpoint_m: FloatArray
    notes: tuple[str, ...] = ()


def path_of_ghost(ghost: Ghost, name: str) -> DrivenPath:
    """Return a ghost's path, from the start to the race time; `name` is for errors.

    Raises:
        DrivenPathError: if it has no samples or too few, or the car jumps without a respawn.
    """
    samples = ghost.samples
    if samples is None or len(samples.time_ms) < 3:
        raise DrivenPathError(f"{name}: the race has no samples of where the car was; use another replay")
    checkpoint_m = np.array(
        [position_at(samples, time_ms) for time_ms in ghost.checkpoint_times_ms[:-1]], dtype=np.float64
    ).reshape(-1, 3)
    samples = _until_finish(samples, ghost.race_time_ms)
    kept, notes = _without_abandoned(samples, ghost, name)
    if len(kept) < 3:
        raise DrivenPathError(f"{name}: only {len(kept)} samples are left of the race; use another replay")
    return DrivenPath(
        name,
        samples.time_ms[kept].astype(np.float64),
        samples.position_m[kept],
        samples.speed_m_s[kept],
        checkpoint_m,
        notes,
    )


def position_at(samples: GhostSamples, time_ms: float) -> FloatArray:
    """Return the car's position (3,) at a race time, extrapolated after the end from the last two samples."""
    after = int(np.clip(np.searchsorted(samples.time_ms, time_ms), 1, len(samples.time_ms) - 1))
    share = (time_ms - samples.time_ms[after - 1]) / samples.period_ms
    before_m = samples.position_m[after - 1]
    after_m = samples.position_m[after]
    return np.asarray(before_m + min(share, 2.0) * (after_m - before_m))


def _until_finish(samples: GhostSamples, race_time_ms: int | None) -> GhostSamples:
    """Return the samples up to the race time, with one at the race time itself."""
    if race_time_ms is None:
        return samples
    kept = samples.time_ms < race_time_ms
    if kept.sum() < 2 or race_time_ms - samples.time_ms[kept][-1] > 2 * samples.period_ms:
        return samples  # the samples end long before the race, so the end is unknown
    return GhostSamples(
        samples.period_ms,
        np.append(samples.time_ms[kept], race_time_ms),
        np.concatenate((samples.position_m[kept], position_at(samples, race_time_ms)[None])),
        np.concatenate((samples.rotation[kept], samples.rotation[kept][-1:])),
        np.append(samples.speed_m_s[kept], samples.speed_m_s[kept][-1]),
    )


def _without_abandoned(samples: GhostSamples, ghost: Ghost, name: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the path's sample indices, and notes on cut samples."""
    kept: list[int] = []
    notes: list[str] = []
    next_index = 0
    for jump in [*_jumps(samples, ghost, name), len(samples.time_ms) - 1]:
        kept += range(next_index, jump + 1)
        next_index = jump + 1
        if next_index < len(samples.time_ms):
            n_before = len(kept)
            kept, next_index = _joined(samples.position_m, kept, next_index, name)
            notes.append(
                f"{name}: respawn at {samples.time_ms[jump] / 1000:.1f} s, the {n_before - len(kept)} samples "
                "between it and its checkpoint are cut out"
            )
    return kept, tuple(notes)


def _jumps(samples: GhostSamples, ghost: Ghost, name: str) -> list[int]:
    """Return the sample indices after which the car was set back to a checkpoint.

    A slow car that respawns near the checkpoint makes no long step, so the respawn key counts too.
    """
    step_m = np.linalg.norm(np.diff(samples.position_m, axis=0), axis=1)  # (S - 1,)
    period_s = np.diff(samples.time_ms) / 1000.0
    faster_m_s = np.maximum(samples.speed_m_s[1:], samples.speed_m_s[:-1])
    is_jump = step_m > JUMP_FACTOR * faster_m_s * period_s + JUMP_SLACK_M
    jumps = set(np.flatnonzero(is_jump).tolist())
    begin_ms = ghost.inputs_begin_ms
    pressed_ms = [event.time_ms - begin_ms for event in ghost.events if event.name == "Respawn" and event.value]
    for time_ms in pressed_ms[: ghost.n_respawns]:
        at = int(np.searchsorted(samples.time_ms, time_ms, side="right")) - 1
        if 0 <= at < len(step_m) and not jumps & {at - 1, at, at + 1}:
            jumps.add(at)
    if len(jumps) > ghost.n_respawns:
        first = min(jumps)
        raise DrivenPathError(
            f"{name}: the car jumps {step_m[first]:.0f} m at {samples.time_ms[first] / 1000:.1f} s, more often than "
            f"the driver respawned ({ghost.n_respawns} times): the samples are damaged; use another replay"
        )
    return sorted(jumps)


def _joined(position_m: FloatArray, kept: list[int], respawn: int, name: str) -> tuple[list[int], int]:
    """Cut the samples between a checkpoint and the respawn at it, whose first sample is `respawn`.

    `kept` and the result are sample indices: the path up to the respawn; the path up to the checkpoint, and the index
    with which it continues.
    """
    distance_m = np.linalg.norm(position_m[kept] - position_m[respawn], axis=1)
    near = np.flatnonzero(distance_m <= RESPAWN_REACH_M)
    if len(near) == 0:
        raise DrivenPathError(
            f"{name}: the driver respawned where the car had not been before ({distance_m.min():.0f} m away at best), "
            "so what to cut out is unknown; use a race without respawns"
        )
    # The last passage: walk back from the latest near sample while it gets nearer.
    at = int(near[-1])
    while at > 0 and distance_m[at - 1] < distance_m[at]:
        at -= 1
    offset_m = float(distance_m[at])
    kept = kept[: at + 1]
    onward = respawn
    # The car respawns in the middle of the gate: shift the path there gradually, over as many metres as the shift.
    if _goes_on(position_m, kept, respawn):
        while len(kept) > 2 and np.linalg.norm(position_m[kept[-1]] - position_m[respawn]) < 2.0 * offset_m:
            kept = kept[:-1]
        while onward < len(position_m) - 2 and np.linalg.norm(position_m[onward] - position_m[respawn]) < offset_m:
            onward += 1
    return kept, onward


def _goes_on(position_m: FloatArray, kept: list[int], respawn: int) -> bool:
    if len(kept) < 2:
        return False
    came = position_m[kept[-1]] - position_m[kept[-2]]
    leaves_at = min(respawn + 10, len(position_m) - 1)
    return float(np.dot(came, position_m[leaves_at] - position_m[respawn])) > 0.0
