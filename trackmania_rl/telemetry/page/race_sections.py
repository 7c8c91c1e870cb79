"""Where a watched race wins or loses time: by section, and metre by metre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from trackmania_rl.telemetry.live import LiveRace
from trackmania_rl.telemetry.sections import (
    checkpoint_names,
    compare_sections,
    equal_parts,
    part_names,
    spread_time,
    times_at,
)

MEDALS: Final = ("author", "gold", "silver", "bronze")
EVERY_M: Final = 2.0
"""Distance between two points at which a race is compared with the best one."""


def race_sections(
    race: LiveRace,
    best: LiveRace | None,
    shape: Mapping[str, Any],
    splits: Mapping[str, Sequence[int]],
    medals_ms: Mapping[str, int],
) -> dict[str, Any]:
    """Compare a race with its map's best, with the recent evaluated ones, and with a medal's pace.

    Args:
        race: the race.
        best: the map's best race, where it is known as a whole.
        shape: of the map, as `track_shapes.shape_of` gives it.
        splits: `best_ms` and `recent_ms` of the map, as `RaceCurves.splits` gives them; may be empty.
        medals_ms: the map's medal times by name.

    Returns:
        `rows`, one for each section, with None where something is not known; `best_ms`, the best race's time; `medal`,
        the name of the one that it is compared with; `behind`, points [m, seconds behind the best race].
    """
    gates_m = np.array([gate[5] for gate in shape["gates"][1:]])
    has_checkpoints = len(gates_m) > 1
    ends_m = gates_m if has_checkpoints else equal_parts(shape["length_m"])
    names = checkpoint_names(len(ends_m)) if has_checkpoints else part_names(ends_m)
    own_ms = _end_times(race, ends_m)
    told_ms = {name: list(times) if len(times) == len(ends_m) else [] for name, times in splits.items()}
    best_ms = told_ms.get("best_ms", []) if best is None else _end_times(best, ends_m)
    medal = next((name for name in MEDALS if name in medals_ms), None)
    pace_ms = spread_time(medals_ms[medal], best_ms) if medal is not None and len(best_ms) == len(ends_m) else []
    columns = {
        "lost_ms": _lost_ms(best_ms, own_ms, names),
        "recent_lost_ms": _lost_ms(best_ms, told_ms.get("recent_ms", []), names),
        "pace_lost_ms": _lost_ms(pace_ms, own_ms, names),
    }
    sections = (_at(compare_sections(times, times, names), len(names)) for times in (own_ms, best_ms))
    rows = [
        {
            "name": name,
            "at_ms": own and own.end_ms[0],
            "section_ms": own and own.section_ms[0],
            "best_ms": of_best and of_best.section_ms[0],
        }
        | {key: values[number] for key, values in columns.items()}
        for number, (name, own, of_best) in enumerate(zip(names, *sections, strict=True))
    ]
    return {
        "rows": rows,
        "best_ms": best_ms[-1] if len(best_ms) == len(ends_m) else None,
        "medal": medal,
        "behind": [] if best is None else _behind(race, best),
    }


def _end_times(race: LiveRace, ends_m: np.ndarray) -> list[int]:
    """Race times at the sections' ends that a race reached; the finish is its official time."""
    times_ms = times_at(ends_m, race.meters_advanced, race.time_ms)[: len(ends_m) - 1]
    return [*times_ms, race.race_time_ms] if race.race_finished else times_ms


def _lost_ms(a_ms: Sequence[int], b_ms: Sequence[int], names: Sequence[str]) -> list[int | None]:
    sections = compare_sections(a_ms, b_ms, names)
    return [section and section.lost_ms for section in _at(sections, len(names))]


def _at(sections: Sequence[Any], length: int) -> list[Any]:
    return [*sections, *[None] * (length - len(sections))]


def _behind(race: LiveRace, best: LiveRace) -> list[list[float]]:
    reach_m = min(float(of_race.meters_advanced.max()) for of_race in (race, best))
    distances_m = np.arange(EVERY_M, reach_m, EVERY_M)
    both_ms = [np.array(times_at(distances_m, of_race.meters_advanced, of_race.time_ms)) for of_race in (race, best)]
    behind_s = (both_ms[0] - both_ms[1]) / 1000
    return [[round(m, 1), round(s, 3)] for m, s in zip(distances_m.tolist(), behind_s.tolist(), strict=True)]
