"""Whether the run's training is well, as JSON, and its figures as Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trackmania_rl.telemetry.run_status import RunStatus, read_status

PREFIX: Final = "trackmania_"
METRICS_TYPE: Final = CONTENT_TYPE_LATEST
COUNTED: Final = "_total"

HELP: Final = {
    "frames_total": "Actions driven in the whole run",
    "races_total": "Races driven in the whole run",
    "races_finished_total": "Races of the whole run that reached the finish",
    "updates_total": "Batches trained on in the whole run",
    "updates_not_finite_total": "Updates that were left out, since their loss or gradient was not finite",
    "races_refused_total": "Races that were not learned from, since numbers of theirs were not finite",
    "collector_restarts_total": "Collectors that were started again in this session",
    "collectors_alive": "Collectors that run",
    "sessions_total": "How often the run was started",
    "frames_per_second": "Actions driven, over the last minute",
    "races_per_second": "Races driven, over the last minute",
    "updates_per_second": "Batches trained on, over the last minute",
    "learner_waiting_share": "Share of its time in which the learner waited for races, 0 to 1",
    "replay_transitions": "Transitions that the replay memory holds",
    "training_seconds_total": "Time of the whole run",
}
"""Figures of a `RunStatus`, by name."""


def health_of(folder: Path, now_s: float | None = None) -> tuple[int, dict[str, Any]]:
    """Give the HTTP status, 200 or 503, and what is to be said.

    Args:
        folder: the run's.
        now_s: on the machine's own clock, `time.monotonic`.
    """
    status = read_status(folder)
    now_s = time.monotonic() if now_s is None else now_s
    wrong = "nobody trains this run" if status is None else status.what_is_wrong(now_s)
    said: dict[str, Any] = {"ok": wrong is None, "run": folder.name}
    if wrong is not None:
        said["problem"] = wrong
    if status is not None and not status.is_over:
        said |= {f"seconds_since_{name}": round(age_s, 1) for name, age_s in _ages_s(status, now_s).items()}
        said["collectors_alive"] = status.figures.get("collectors_alive")
    return (200 if wrong is None else 503), said


def metrics_of(folder: Path, now_s: float | None = None) -> bytes:
    """Give the figures in Prometheus's text format; those of a training that has ended as they were last."""
    registry = CollectorRegistry()
    registry.register(_RunMetrics(folder, time.monotonic() if now_s is None else now_s))
    return generate_latest(registry)


class _RunMetrics(Collector):
    """Reads a run's status whenever it is asked."""

    def __init__(self, folder: Path, now_s: float) -> None:
        self._folder = folder
        self._now_s = now_s

    def collect(self) -> Iterator[Metric]:
        """Give all metrics."""
        status = read_status(self._folder)
        is_well = status is not None and status.what_is_wrong(self._now_s) is None
        yield GaugeMetricFamily(
            f"{PREFIX}up", "Whether the training is well: 1, as /healthz answers 200, or 0", is_well
        )
        if status is None:
            return
        for name, value in status.figures.items():
            family = CounterMetricFamily if name.endswith(COUNTED) else GaugeMetricFamily
            yield family(PREFIX + name, HELP.get(name, name), value)
        if not status.is_over:
            for name, age_s in _ages_s(status, self._now_s).items():
                yield GaugeMetricFamily(f"{PREFIX}seconds_since_{name}", f"Age of the last {name}", age_s)
        losses = GaugeMetricFamily(
            f"{PREFIX}learning", "Newest means of the updates' figures, by name", labels=["name"]
        )
        for name, value in status.losses.items():
            losses.add_metric([name], value)
        yield losses


def _ages_s(status: RunStatus, now_s: float) -> dict[str, float]:
    """How old its newest signs are, by name; what there was none of is left out."""
    at_s = {
        "sign_of_life": status.told_at_s,
        "tick": status.ticked_at_s,
        "race": status.raced_at_s,
        "checkpoint": status.saved_at_s,
    }
    return {name: max(0.0, now_s - when_s) for name, when_s in at_s.items() if when_s is not None}
