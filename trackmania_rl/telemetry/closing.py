"""What a training says when it has ended: how well it drove, where everything is, what to do next."""

from __future__ import annotations

from trackmania_rl.telemetry.statistics import MapStatistics, TrainingStatistics
from trackmania_rl.telemetry.terminal_view import format_return, format_time

MOST_MAPS = 5
"""Maps that are named; of more, the first ones."""


def closing_text(figures: TrainingStatistics, folder: str, evaluate: str) -> str:
    """Write the last lines of a training.

    Args:
        figures: the run's.
        folder: of the run.
        evaluate: the command that drives what the run has learned.
    """
    maps = [_best(name, of_map, figures) for name, of_map in figures.maps.items()]
    if len(maps) > MOST_MAPS:
        maps[MOST_MAPS:] = [f"{len(maps) - MOST_MAPS} more maps"]
    lines = [f"{figures.races_total:,} races, {figures.frames_total:,} frames", *maps, f"run folder: {folder}"]
    histories = [history for of_map in figures.maps.values() for history in (of_map.explored, of_map.evaluated)]
    if any(history.n_finished > 0 or history.is_own for history in histories):
        lines.append(f"evaluate and film: {evaluate}")
    lines.append("resume training: repeat the training command")
    return "\n".join(lines)


def _best(name: str, of_map: MapStatistics, figures: TrainingStatistics) -> str:
    histories = [history for history in (of_map.explored, of_map.evaluated) if history.n_races > 0]
    if not all(history.is_one_track for history in histories):
        last = histories[-1]
        return f"{name}: {last.n_recent_finished} of the last {last.n_recent} races finished"
    time_ms = of_map.best_time_ms
    if time_ms is None:
        furthest = max(histories, key=lambda history: history.furthest_m)
        if furthest.is_own:
            return f"{name}: best return {format_return(furthest.furthest_m)}"
        return f"{name}: {furthest.furthest_m:,.0f} {furthest.progress_unit}, not finished yet"
    times = figures.reference_times.get(name)
    medal = times and times.medal(time_ms)
    return f"{name}: best time {format_time(time_ms)}{f' ({medal})' if medal else ''}"
