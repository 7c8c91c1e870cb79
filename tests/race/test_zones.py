"""Zones, the moving current zone and metres, against a slow and straightforward reading of the rules."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.race.zones import VirtualCheckpoints, ZoneTracker
from trackmania_rl.settings import ObservationSettings, load_settings


@pytest.fixture(scope="module")
def settings(repository_root: Path) -> ObservationSettings:
    return load_settings(repository_root / "config_files" / "config_tmnf.py").observation


def _winding_line() -> np.ndarray:
    """A hilly figure of eight of about 300 m, one point every 0.5 m."""
    turns = np.linspace(0.3, 0.3 + 2 * math.pi, 40_000)
    dense = np.stack((60 * np.sin(turns), 4 * np.sin(3 * turns), 40 * np.sin(2 * turns)), axis=1)
    station = np.concatenate(([0], np.cumsum(np.linalg.norm(np.diff(dense, axis=0), axis=1))))
    wanted = np.arange(0, station[-1], 0.5)
    return np.stack([np.interp(wanted, station, dense[:, axis]) for axis in range(3)], axis=1)


class NaiveTracker:
    """The rules of reference/observation.md, one sentence after the other, in plain Python."""

    def __init__(self, zones: VirtualCheckpoints) -> None:
        self.zones = zones
        self.zone = 20

    def update(self, position: np.ndarray) -> float:
        zones = self.zones

        def distance(point: np.ndarray) -> float:
            return math.dist(point, position)

        def real_checkpoint_allows(zone: int) -> bool:
            radius = zones.real_checkpoint_radius_m[zone]
            return math.isinf(radius) or distance(zones.real_checkpoint_m[zone]) < radius

        reach = math.sqrt(0.25**2 + 45**2)
        centers = zones.centers_m
        last = len(centers) - 1 - 1000
        while (
            self.zone < last
            and distance(centers[self.zone + 1]) <= distance(centers[self.zone])
            and distance(centers[self.zone + 1]) <= reach
            and real_checkpoint_allows(self.zone)
        ):
            self.zone += 1
        while (
            self.zone >= 2
            and distance(centers[self.zone - 1]) < distance(centers[self.zone])
            and distance(centers[self.zone - 1]) <= reach
            and real_checkpoint_allows(self.zone - 1)
        ):
            self.zone -= 1
        border = [(a + b) / 2 for a, b in itertools.pairwise(centers)]
        before = sum(math.dist(border[i], border[i + 1]) for i in range(self.zone - 1))
        segment = border[self.zone] - border[self.zone - 1]
        along = float((position - border[self.zone - 1]) @ segment) / float(np.linalg.norm(segment))
        return before + min(max(along, 0), float(np.linalg.norm(segment)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_the_tracker_agrees_with_the_naive_reading(settings, seed, with_checkpoints):
    rng = np.random.default_rng(seed)
    line = _winding_line()
    real = line[[150, 300, 420]] + rng.normal(0, 3, (3, 3)) if with_checkpoints else None
    zones = VirtualCheckpoints.from_reference_line(line, settings, real)
    fast, naive = ZoneTracker(zones), NaiveTracker(zones)
    furthest = 0
    wander = rng.normal(0, 8, 3)
    station = 0.0
    for _ in range(60):
        station = min(max(station + rng.normal(7, 8), 0), len(line) - 1)  # now and then backwards
        wander = 0.8 * wander + rng.normal(0, 5, 3)
        position = line[int(station)] + wander
        assert fast.update(position.astype(np.float32)) == pytest.approx(
            naive.update(position.astype(np.float32).astype(np.float64)), abs=1e-9
        )
        assert fast.zone_idx == naive.zone
        furthest = max(furthest, naive.zone)
    assert fast.furthest_zone_idx == furthest


def test_driving_down_the_line_visits_every_zone_and_all_metres(settings):
    line = _winding_line()
    zones = VirtualCheckpoints.from_reference_line(line, settings)
    tracker = ZoneTracker(zones)
    seen = []
    metres = []
    for center in zones.centers_m[zones.first_zone_idx : zones.last_zone_idx + 1]:
        metres.append(tracker.update(center))
        seen.append(tracker.zone_idx)
    assert seen == list(range(20, 20 + len(line)))
    assert np.all(np.diff(metres) > 0)
    assert zones.start_m < metres[0] < metres[-1] < zones.finish_m
    assert zones.length_m == pytest.approx(0.5 * len(line), rel=0.02)
    assert zones.finish_zone_idx == 20 + len(line)
