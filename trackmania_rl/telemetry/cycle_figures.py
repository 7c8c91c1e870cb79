"""Totals of the evaluated races over the map cycle, of the maps trained on and of those that are only driven."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from trackmania_rl.settings import MapEntry
from trackmania_rl.telemetry.figures import times_to_beat_ms
from trackmania_rl.telemetry.statistics import RaceHistory, TrainingStatistics


def cycle_figures(run: TrainingStatistics, entries: Iterable[MapEntry]) -> dict[str, float]:
    """Add up times, by `rollout/cycle/{what}/{trained|blind}`.

    A total of times is there when each map has one; a ratio, when each map that has a time to be compared with has one.

    Args:
        run: its races.
        entries: the map cycle.
    """
    figures: dict[str, float] = {}
    for status, names in zip(("trained", "blind"), trained_and_blind(entries), strict=True):
        histories = {name: run.maps[name].evaluated for name in names if name in run.maps}
        to_beat_ms: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name in names & run.reference_times.keys():
            for medal, time_ms in times_to_beat_ms(run.reference_times[name]).items():
                to_beat_ms[medal][name] = time_ms
        totals = _totals(names, histories, to_beat_ms)
        figures |= {f"rollout/cycle/{name}/{status}": value for name, value in totals}
    return figures


def trained_and_blind(entries: Iterable[MapEntry]) -> tuple[set[str], set[str]]:
    """The names of a map cycle's maps: those trained on, and those none of whose races fill the memory."""
    fills_memory: dict[str, bool] = {}
    for entry in entries:
        fills_memory[entry.map_name] = fills_memory.get(entry.map_name, False) or entry.fill_buffer
    trained = {name for name, fills in fills_memory.items() if fills}
    return trained, fills_memory.keys() - trained


def _totals(
    names: set[str], histories: Mapping[str, RaceHistory], to_beat_ms: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, float]]:
    """Figures of some maps by their names: of their evaluated races so far, and times to beat by medal and map."""
    rates = [rate for history in histories.values() if (rate := history.recent_finish_rate) is not None]
    if rates:
        yield "finish_rate", statistics.fmean(rates)
    for kind in ("best", "median"):
        of_maps = {name: getattr(history, f"{kind}_time_ms") for name, history in histories.items()}
        times_ms = {name: time_ms for name, time_ms in of_maps.items() if time_ms is not None}
        if times_ms and times_ms.keys() == names:
            yield f"{kind}_time_s", sum(times_ms.values()) / 1000
        for medal, to_beat_of_ms in to_beat_ms.items():
            if to_beat_of_ms.keys() <= times_ms.keys():
                ratio = sum(times_ms[name] for name in to_beat_of_ms) / sum(to_beat_of_ms.values())
                yield f"{kind}_over_{medal}", ratio
