"""Run figures by name, tensorboard charts, weight samples, and the run's settings, for loggers.

`docs/figures.rst` lists all names and units. Race figures begin with `rollout/`, learning figures with `train/`,
figures for single parameters with `weights/`. A map's figures end with `/{explored|evaluated}/{map}`.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from trackmania_rl.files import without_whole_paths
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.race.race import RaceFacts
from trackmania_rl.settings import MapEntry, Settings, UserSettings
from trackmania_rl.telemetry.statistics import RaceHistory, TrainingStatistics

HISTOGRAM_VALUES = 200_000
"""Number of values sampled from a larger parameter."""

QUANTILES: Final = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "d9": 0.9, "c98": 0.98, "max": 1.0}
"""Quantiles by figure name suffix."""

CHARTS: Final = {
    "race times": {
        "{map}: evaluation, median of recent races": "rollout/median_time_s/evaluated/{map}",
        "{map}: evaluation": "rollout/race_time_s/evaluated/{map}",
        "{map}: exploration": "rollout/race_time_s/explored/{map}",
        "{map}: best": "rollout/best_time_s/evaluated/{map}",
        "{map}: best minus author time": "rollout/best_minus_author_s/evaluated/{map}",
        "{map}: best minus gold time": "rollout/best_minus_gold_s/evaluated/{map}",
    },
    "map cycle": {
        "{status} maps: finish rate": "rollout/cycle/finish_rate/{status}",
        "{status} maps: medians together": "rollout/cycle/median_time_s/{status}",
        "{status} maps: medians over author times": "rollout/cycle/median_over_author/{status}",
        "{status} maps: medians over gold times": "rollout/cycle/median_over_gold/{status}",
    },
    "progress": {
        "{map}: finish rate, evaluation": "rollout/finish_rate/evaluated/{map}",
        "{map}: metres, evaluation": "rollout/meters/evaluated/{map}",
        "{map}: metres, exploration": "rollout/meters/explored/{map}",
    },
    "learning": {
        "loss": "train/loss",
        "test loss": "train/test_loss",
        "mean Q of batches": "train/mean_q",
    },
    "values": {
        "{map}: mean Q of a race": "rollout/mean_q/evaluated/{map}",
        "{map}: action gap": "rollout/action_gap/evaluated/{map}",
    },
    "speed": {
        "learner waits": "waiting/learner",
        "collectors wait, mean": "waiting/collectors",
        "actions per second": "train/speed/actions_per_s",
        "batches per second": "train/speed/batches_per_s",
        "milliseconds of an update": "train/update_ms",
        "replay fill": "train/replay/fill",
    },
    "schedules": {
        "exploration: epsilon": "train/schedule/epsilon",
        "exploration: epsilon of Boltzmann": "train/schedule/epsilon_boltzmann",
        "learning rate": "train/schedule/learning_rate",
        "gamma": "train/schedule/gamma",
    },
}
"""Figures on tensorboard's page "Custom Scalars" by category and title. Each has a separate chart, as tensorboard
gives all lines in a run the same colour."""
_GRADIENT_NORMS: Final = [f"train/grad_norm_{quantile}" for quantile in ("median", "q1", "c98")]

_MS_PER_S = 1000.0
_S_PER_H = 3600.0


def race_figures(
    race: RaceFacts,
    history: RaceHistory,
    reference_times: Mapping[str, MedalTimes] | None = None,
    q_values: npt.NDArray[np.float32] | None = None,
) -> dict[str, float]:
    """Return a race's figures: history for the map and kind, times to beat by map, and Q values (T, A)."""
    times_ms = {
        "race_time_s": history.last_time_ms,
        "best_time_s": history.best_time_ms,
        "median_time_s": history.median_time_ms,
    }
    values = {name: time_ms / _MS_PER_S for name, time_ms in times_ms.items() if time_ms is not None}
    values |= {"meters": race.meters, "zone_reached": float(race.furthest_zone_idx)} | race.numbers()
    reference = (reference_times or {}).get(race.map_name)
    if reference is not None:
        values |= _compared_with(history, reference)
    if history.recent_finish_rate is not None:
        values["finish_rate"] = history.recent_finish_rate
    if q_values is not None:
        values |= value_figures(q_values)
    if history.is_one_track and not race.is_explo:
        values |= {f"split_{number}_s": time_ms / _MS_PER_S for number, time_ms in enumerate(race.split_times_ms, 1)}
    return {f"rollout/{name}/{race.kind}/{race.map_name}": value for name, value in values.items()}


def value_figures(q_values: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return means over states of values (T, A); none if values are unknown."""
    if not np.isfinite(q_values).all():
        return {}
    best = q_values.max(axis=1)
    figures = {"mean_q": float(q_values.mean()), "mean_value": float(best.mean())}
    if q_values.shape[1] > 1:
        second_best = np.partition(q_values, -2, axis=1)[:, -2]
        figures["action_gap"] = float((best - second_best).mean())
    return figures


def times_to_beat_ms(reference: MedalTimes) -> dict[str, int]:
    """Return the known times that results are compared with: "author" and "gold"."""
    times_ms = {"author": reference.author_ms, "gold": reference.gold_ms}
    return {medal: time_ms for medal, time_ms in times_ms.items() if time_ms}


def quantile_figures(name: str, values: torch.Tensor, which: Iterable[str] = QUANTILES) -> dict[str, float]:
    """Return quantiles of finite values (n,), by `{name}_{quantile}`."""
    values = values.detach().float()
    values = values[torch.isfinite(values)]
    if values.numel() == 0:
        return {}
    wanted = list(which)
    shares = torch.tensor([QUANTILES[quantile] for quantile in wanted], device=values.device)
    of_values = torch.quantile(values, shares).tolist()
    return {f"{name}_{quantile}": value for quantile, value in zip(wanted, of_values, strict=True)}


def progress_figures(
    run: TrainingStatistics, settings: Settings, learner_means: Mapping[str, float]
) -> dict[str, float]:
    """Return the figures of intervals, with the learner's means since the last call."""
    rates = run.rates()
    values = {f"train/{name}": value for name, value in learner_means.items()}
    values |= {f"train/schedule/{name}": value for name, value in run.current_values.items()}
    game = settings.game
    values |= cycle_figures(run, game.map_cycle)
    values |= {
        "train/speed/times_real_time": rates.actions_per_s * game.ms_per_action / 1000,
        "train/speed/transitions_per_s": rates.batches_per_s * settings.replay.batch_size,
        "train/speed/actions_per_s": rates.actions_per_s,
        "train/speed/races_per_s": rates.races_per_s,
        "train/speed/batches_per_s": rates.batches_per_s,
        "waiting/learner": rates.learner_waiting_share,
        "train/replay/transitions": float(run.replay_transitions),
        "train/total/frames": float(run.frames_total),
        "train/total/races": float(run.races_total),
        "train/total/races_finished": float(run.races_finished_total),
        "train/total/races_refused": float(run.races_refused),
        "train/total/updates": float(run.updates_total),
        "train/total/updates_not_finite": float(run.updates_not_finite),
        "train/total/training_h": run.training_s / _S_PER_H,
    }
    shares = run.waiting_shares
    values |= {f"waiting/collector_{collector}": share for collector, share in shares.items()}
    if shares:
        values["waiting/collectors"] = statistics.fmean(shares.values())
    values |= {f"weights_age_s/collector_{collector}": age_s for collector, age_s in run.weights_age_s.items()}
    values |= {f"rollout/{name}": value for name, value in run.returns.figures().items()}
    for map_name, of_map in run.maps.items():
        for kind, history in of_map.kinds.items():
            figures = history.returns.figures()
            values |= {f"rollout/{name}/{kind}/{map_name}": value for name, value in figures.items()}
    if run.replay_capacity > 0:
        values["train/replay/fill"] = run.replay_transitions / run.replay_capacity
    return values


def cycle_figures(run: TrainingStatistics, entries: Iterable[MapEntry]) -> dict[str, float]:
    """Return map totals, by `rollout/cycle/{what}/{trained|blind}`.

    A time total needs a time for each map. A ratio needs a time for each map that has a time to beat.
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
    """Return the names: maps that fill the memory, and the others."""
    fills_memory: dict[str, bool] = {}
    for entry in entries:
        fills_memory[entry.map_name] = fills_memory.get(entry.map_name, False) or entry.fill_buffer
    trained = {name for name, fills in fills_memory.items() if fills}
    return trained, fills_memory.keys() - trained


def chart_layout(
    map_cycle: Sequence[MapEntry], maps_with_times: Container[str] = ()
) -> dict[str, dict[str, tuple[str, list[str]]]]:
    """Return a map cycle's charts for `SummaryWriter.add_custom_scalars`: category, title, kind and tags.

    `maps_with_times` have times to beat.
    """
    names = list(dict.fromkeys(entry.map_name for entry in map_cycle))
    _, blind = trained_and_blind(map_cycle)
    layout: dict[str, dict[str, tuple[str, list[str]]]] = {category: {} for category in CHARTS}
    for name in names or [""]:
        of_map = {"map": name, "status": "blind" if name in blind else "trained"}
        for category, charts in CHARTS.items():
            for title, tag in charts.items():
                is_of_run, needs_times = "{" not in tag, "author" in tag or "gold" in tag
                if is_of_run or (name and (name in maps_with_times or not needs_times)):
                    layout[category][title.format_map(of_map)] = "Multiline", [f"{re.escape(tag.format_map(of_map))}$"]
    layout["learning"]["gradient norm: median, first quartile to 98th centile"] = "Margin", _GRADIENT_NORMS
    return layout


def weight_samples(named_parameters: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and finite values (n,), on the CPU, for each parameter."""
    for name, parameter in named_parameters:
        stride = max(1, parameter.numel() // HISTOGRAM_VALUES)
        values = parameter.detach().flatten()[::stride].float().cpu()
        finite = values[torch.isfinite(values)]
        if finite.numel() > 0:
            yield f"weights/{name.replace('.', '/')}", finite


def hyperparameters(settings: Settings) -> dict[str, bool | int | float | str]:
    """Return the settings by name, without those about this machine and user. Lists and tables are JSON.

    Full paths are cut to the last part.
    """
    told = {}
    for name, value in settings.flat().items():
        if name not in UserSettings.model_fields:
            plain = without_whole_paths(value, _plain)
            told[name] = plain if isinstance(plain, bool | int | float | str) else json.dumps(plain)
    return told


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


def _compared_with(history: RaceHistory, reference: MedalTimes) -> dict[str, float]:
    figures: dict[str, float] = {}
    for medal, time_ms in times_to_beat_ms(reference).items():
        if history.best_time_ms is not None:
            figures[f"best_minus_{medal}_s"] = (history.best_time_ms - time_ms) / _MS_PER_S
            figures[f"best_over_{medal}"] = history.best_time_ms / time_ms
        if history.median_time_ms is not None:
            figures[f"median_over_{medal}"] = history.median_time_ms / time_ms
    return figures


def _totals(
    names: set[str], histories: Mapping[str, RaceHistory], to_beat_ms: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, float]]:
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
