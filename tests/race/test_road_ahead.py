"""The road ahead: against the track's own cross-sections, and where it cannot be told."""

import re
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.race.known_road import N_QUALITIES, ROAD_QUALITIES, look_along_road
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.settings import MapEntry, Settings, SettingsError, load_settings
from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track
from trackmania_rl.simulator.tracks.world import Edge, Surface
from trackmania_rl.track.game_map import load_game_map

BLOCKS = 'observation_blocks=("mini_race_time_actions", "speed_m_s", "road_ahead")'


@pytest.fixture(scope="module")
def shipped(repository_root: Path) -> Path:
    return repository_root / "config_files" / "config.py"


@pytest.fixture(scope="module")
def settings(shipped: Path) -> Settings:
    return load_settings(shipped, [BLOCKS, "fourier_wavelengths={}"])


@pytest.mark.parametrize("name", ["jump", "rally", "ring"])
def test_it_is_that_of_the_nearest_cross_section(name, repository_root, settings):
    maps = repository_root / "maps"
    entry = MapEntry(
        map_name=name, map_path=f"{name}.toml", reference_line=f"{name}_0.5m.npy", is_explo=True, fill_buffer=True
    )
    game_map = load_game_map(entry, maps, settings.observation)
    ribbon = load_track(maps / entry.map_path).ribbon
    assert game_map.road is not None
    zones = game_map.zones
    stride, n_points = 20, 5
    for zone in range(zones.first_zone_idx, len(zones.centers_m) // 3, 37):
        floats = np.full(n_points * N_QUALITIES, np.nan, dtype=np.float32)
        look_along_road(floats, zone, stride, game_map.road)
        for told, center_m in zip(floats.reshape(n_points, -1), zones.centers_m[zone::stride][:n_points], strict=True):
            # A lap's sections lie over each other and are alike; a told point may be half a metre off.
            near = np.flatnonzero(((ribbon.center_m - center_m) ** 2).sum(axis=1) < 1.5**2)
            of = dict(zip(ROAD_QUALITIES, told.tolist(), strict=True))
            assert of["half_width_m"] == pytest.approx(ribbon.half_width_m[near], abs=0.5)
            assert of["has_wall"] in (ribbon.edge[near] == Edge.WALL)
            assert of["has_grass_beside"] in (ribbon.edge[near] == Edge.GRASS)
            assert of["is_dirt"] in (ribbon.surface[near] == Surface.DIRT)
            assert of["is_grass"] in (ribbon.surface[near] == Surface.GRASS)
            assert of["is_there"] in ribbon.has_road[near]
            assert np.abs(of["banking"] - ribbon.left[near, 1]).min() < 0.05


def test_it_is_refused_where_no_road_is_known(shipped):
    with pytest.raises(SettingsError, match=re.escape('"road_ahead" with game = "tmnf"')):
        load_settings(shipped, [BLOCKS, "fourier_wavelengths={}", "game=tmnf"])
    fewer = load_settings(shipped, [BLOCKS, "fourier_wavelengths={}", "n_zone_centers_in_inputs=19"])
    with pytest.raises(SettingsError, match="road_ahead_zone_centers = 20"):
        ObservationLayout.from_settings(fewer.observation)


def test_a_real_map_tells_no_road(settings, repository_root):
    entry = MapEntry(
        map_name="a01", map_path="A01.Challenge.Gbx", reference_line="valley_0.5m.npy", is_explo=True, fill_buffer=True
    )
    with pytest.raises(TrackFileError, match=r"maps\.py track"):
        load_game_map(entry, repository_root / "maps", settings.observation)
