"""What loggers are told of a run: its figures by name, samples of its weights, and its settings.

Names end with their own map's name where they belong to one:

    race_time_s/{explored|evaluated}/{map}          finished races
    best_time_s/{explored|evaluated}/{map}          not of generated tracks, which are many under one name
    best_minus_{author|gold}_s/{explored|evaluated}/{map}   where the map's file has that time; below 0: beaten
    median_time_s/{explored|evaluated}/{map}        of the recent races: the robust figure; likewise
    finish_rate/{explored|evaluated}/{map}          of the recent races
    meters/..., zone_reached/..., {figure}/...      of the race; the figures of `end_race_stats`, timings among them
    learner/{loss, test_loss, mean_q, grad_norm, ...}
    schedule/{epsilon, learning_rate, gamma, ...}
    speed/{actions_per_s, races_per_s, batches_per_s}
    waiting/{learner, collector_0, ...}
    replay/{transitions, fill}
    weights/{parameter}                             histograms
    racing_line/{map}                               pictures
    film/{map}                                      evaluated races, where films are asked for

The hook `WriteFigures` chooses which races are written; figures over recent races, and the best, know all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from pydantic import BaseModel

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.settings import Settings, UserSettings
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import RaceHistory, TrainingStatistics

HISTOGRAM_VALUES = 200_000
"""A larger parameter is represented by about so many of its values, evenly spread: millions would hold up learning."""

_MS_PER_S = 1000.0


def race_figures(
    race: RaceRecord, history: RaceHistory, reference_times: Mapping[str, MedalTimes] | None = None
) -> dict[str, float]:
    """The figures of a race.

    Args:
        race: the race.
        history: the races of its map and kind, this one included.
        reference_times: times to beat by map name.
    """
    times_ms = {
        "race_time_s": history.last_time_ms,
        "best_time_s": history.best_time_ms,
        "median_time_s": history.median_time_ms,
    }
    values = {name: time_ms / _MS_PER_S for name, time_ms in times_ms.items() if time_ms is not None}
    values |= {"meters": race.meters, "zone_reached": float(race.furthest_zone)} | dict(race.figures)
    reference = (reference_times or {}).get(race.map_name)
    if history.best_time_ms is not None and reference is not None:
        values |= _leads_s(history.best_time_ms, reference)
    if history.recent_finish_rate is not None:
        values["finish_rate"] = history.recent_finish_rate
    return {f"{name}/{race.kind}/{race.map_name}": value for name, value in values.items()}


def progress_figures(statistics: TrainingStatistics, learner_means: Mapping[str, float]) -> dict[str, float]:
    """The figures that are measured at intervals.

    Args:
        statistics: the run's figures.
        learner_means: means of the learner's figures since the last call; what was not measured is left out.
    """
    rates = statistics.rates()
    values = {f"learner/{name}": value for name, value in learner_means.items()}
    values |= {f"schedule/{name}": value for name, value in statistics.current_values.items()}
    values |= {
        "speed/actions_per_s": rates.actions_per_s,
        "speed/races_per_s": rates.races_per_s,
        "speed/batches_per_s": rates.batches_per_s,
        "waiting/learner": rates.learner_waiting_share,
        "replay/transitions": float(statistics.replay_transitions),
    }
    for collector in statistics.collectors:
        values[f"waiting/collector_{collector}"] = statistics.collector_waiting_share(collector)
    if statistics.replay_capacity > 0:
        values["replay/fill"] = statistics.replay_transitions / statistics.replay_capacity
    return values


def weight_samples(named_parameters: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and finite values (n,), on the CPU, of each parameter that has any, as `named_parameters()` gives them.

    A diverged network is worth seeing in its loss; a histogram of nothing but NaN cannot be made.
    """
    for name, parameter in named_parameters:
        stride = max(1, parameter.numel() // HISTOGRAM_VALUES)
        values = parameter.detach().flatten()[::stride].float().cpu()
        finite = values[torch.isfinite(values)]
        if finite.numel() > 0:
            yield f"weights/{name.replace('.', '/')}", finite


def hyperparameters(settings: Settings) -> dict[str, bool | int | float | str]:
    """The settings by name, but for those of this machine and its owner; what is no number, flag or text is JSON."""
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value, default=_plain)
        for name, value in settings.flat().items()
        if name not in UserSettings.model_fields
    }


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


def _leads_s(best_time_ms: int, reference: MedalTimes) -> dict[str, float]:
    """How far the best time lies above those to beat."""
    times_ms = {"author": reference.author_ms, "gold": reference.gold_ms}
    return {
        f"best_minus_{name}_s": (best_time_ms - time_ms) / _MS_PER_S
        for name, time_ms in times_ms.items()
        if time_ms is not None
    }
