"""Zones, the moving current zone and metres, against a slow and straightforward reading of the rules."""

import itertools
import math

import numpy as np
import pytest

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.races import GameTimings
from trackmania_rl.settings import load_settings
from trackmania_rl.track.game_map import line_begins_m, zones_of_line

from .conftest import OneRace

N_STATES = 60


@pytest.fixture(scope="module")
def loaded(repository_root):
    return load_settings(repository_root / "config_files" / "config_tmnf.py", [f"horizon={N_STATES - 1}"])


@pytest.fixture(scope="module")
def settings(loaded):
    return loaded.observation


@pytest.fixture
def race_on(loaded):
    """`race_on(zones)`: a race of at most `N_STATES` states."""
    layout = ObservationLayout(loaded.observation)
    return lambda zones: OneRace(loaded.game, layout, zones)


def _winding_line():
    """A hilly figure of eight of about 300 m, one point every 0.5 m."""
    turns = np.linspace(0.3, 0.3 + 2 * math.pi, 40_000)
    dense = np.stack((60 * np.sin(turns), 4 * np.sin(3 * turns), 40 * np.sin(2 * turns)), axis=1)
    station = np.concatenate(([0], np.cumsum(np.linalg.norm(np.diff(dense, axis=0), axis=1))))
    wanted = np.arange(0, station[-1], 0.5)
    return np.stack([np.interp(wanted, station, dense[:, axis]) for axis in range(3)], axis=1)


class NaiveTracker:
    """The rules of reference/observation.md, one sentence after the other, in plain Python."""

    def __init__(self, zones):
        self.zones = zones
        self.zone = 20

    def update(self, position):
        zones = self.zones

        def distance(point):
            return math.dist(point, position)

        def real_checkpoint_allows(zone):
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
def test_the_tracker_agrees_with_the_naive_reading(settings, race_on, seed, with_checkpoints):
    rng = np.random.default_rng(seed)
    line = _winding_line()
    real = line[[150, 300, 420]] + rng.normal(0, 3, (3, 3)) if with_checkpoints else None
    zones = zones_of_line(line, settings, real)
    race, naive = race_on(zones), NaiveTracker(zones)
    furthest = 0
    wander = rng.normal(0, 8, 3)
    station = 0.0
    for step in range(N_STATES):
        if step > 0:
            race.act(0)
        station = min(max(station + rng.normal(7, 8), 0), len(line) - 1)  # now and then backwards
        wander = 0.8 * wander + rng.normal(0, 5, 3)
        position = (line[int(station)] + wander).astype(np.float32)
        seen = race.see_car_at(position)
        assert seen.meters == pytest.approx(naive.update(position.astype(np.float64)), abs=1e-9)
        assert seen.zone_idx == naive.zone
        furthest = max(furthest, naive.zone)
    end = race.races.cut_off(0, (), GameTimings()).facts
    assert (end.cutoff_reason, end.furthest_zone_idx) == ("horizon", furthest)


@pytest.mark.parametrize("spacing_m", [0.5, 1.0])
def test_driving_down_the_line_visits_every_zone_and_all_metres(settings, race_on, spacing_m):
    line = _winding_line()
    changes = {"distance_between_zone_centers_m": spacing_m, "road_width_m": 60.0}
    zones = zones_of_line(line, settings.model_copy(update=changes), line[[200]])
    race = race_on(zones)
    centers_m = zones.centers_m[zones.first_zone_idx : zones.last_zone_idx + 1]
    states = [race.see_car_at(center_m) for center_m in centers_m]
    metres = [seen.meters for seen in states]
    n_zones = round((len(line) - 1) * 0.5 / spacing_m) + 1
    assert [seen.zone_idx for seen in states] == list(range(20, 20 + n_zones))
    assert np.all(np.diff(metres) > 0)
    assert metres[0] == pytest.approx(line_begins_m(settings.model_copy(update=changes)), rel=1e-2)
    assert zones.start_m < metres[0] < metres[-1] < zones.finish_m
    assert zones.length_m == pytest.approx(0.5 * len(line), rel=0.02)
    assert zones.finish_zone_idx == 20 + n_zones
    assert zones.max_center_distance_m == math.hypot(spacing_m / 2, 30)
    assert np.flatnonzero(np.isfinite(zones.real_checkpoint_radius_m)).tolist() == [20 + round(100 / spacing_m)]
