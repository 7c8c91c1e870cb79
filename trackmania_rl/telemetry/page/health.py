"""Health of a run's training as JSON, and its figures for Prometheus."""

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


def health_of(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status, 200 or 503, and the answer for a run."""
    status, now_s = read_status(folder), time.monotonic()
    wrong = "nobody trains this run" if status is None else status.what_is_wrong(now_s)
    answer: dict[str, Any] = {"ok": wrong is None, "run": folder.name}
    if wrong is not None:
        answer["problem"] = wrong
    if status is not None and not status.is_over:
        answer |= {f"seconds_since_{name}": round(age_s, 1) for name, age_s in _ages_s(status, now_s).items()}
        answer["collectors_alive"] = status.figures.get("collectors_alive")
    return (200 if wrong is None else 503), answer


def metrics_of(folder: Path) -> bytes:
    """Return the figures of a run in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_RunMetrics(folder))
    return generate_latest(registry)


class _RunMetrics(Collector):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        status, now_s = read_status(self._folder), time.monotonic()
        is_well = status is not None and status.what_is_wrong(now_s) is None
        yield GaugeMetricFamily(f"{PREFIX}up", "1 while /healthz answers 200, else 0", is_well)
        if status is None:
            return
        for name, value in status.figures.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(PREFIX + name, name.replace("_", " "), value)
        if not status.is_over:
            for name, age_s in _ages_s(status, now_s).items():
                yield GaugeMetricFamily(f"{PREFIX}seconds_since_{name}", f"Age of the last {name}", age_s)
        losses = GaugeMetricFamily(
            f"{PREFIX}learning", "Newest means of the updates' figures, by name", labels=["name"]
        )
        for name, value in status.losses.items():
            losses.add_metric([name], value)
        yield losses


def _ages_s(status: RunStatus, now_s: float) -> dict[str, float]:
    at_s = {
        "sign_of_life": status.told_at_s,
        "tick": status.ticked_at_s,
        "race": status.raced_at_s,
        "checkpoint": status.saved_at_s,
    }
    return {name: max(0.0, now_s - when_s) for name, when_s in at_s.items() if when_s is not None}
