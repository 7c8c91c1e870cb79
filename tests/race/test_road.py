"""The range finder and the road ahead: against a naive search, pictures of the same places, cross-sections."""

import math

import cv2
import numpy as np
import pytest

from trackmania_rl.protocol.state_blob import HEAD_BYTES, STATE_HEAD_DTYPE
from trackmania_rl.race.road import (
    BEAM_ANGLES_DEG,
    N_BEAMS,
    N_QUALITIES,
    ROAD_QUALITIES,
    ChaseCamera,
    PictureRangeFinder,
    measure_ranges,
    observe_road,
)
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.simulator.picture import rasterizer as camera
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import Edge, Surface
from trackmania_rl.track.game_map import load_game_map

REACH_M = 150.0


@pytest.fixture(scope="module")
def settings(repository_root):
    blocks = 'observation_blocks=("mini_race_time_actions", "speed_m_s", "range_finder_m", "road_ahead")'
    return load_settings(repository_root / "config_files" / "config.py", [blocks, "fourier_wavelengths={}"])


def head(position_m, forward):
    """The head of a state blob with a car that stands upright and looks along `forward` (world x, z)."""
    made = np.zeros(HEAD_BYTES, dtype=np.uint8)
    x, z = np.array(forward) / np.hypot(*forward)
    state = made.view(STATE_HEAD_DTYPE)[0]
    state["position_m"] = position_m
    state["rotation"] = [[z, 0, x], [0, 1, 0], [-x, 0, z]]  # columns: left, up, forward
    return made.view(np.float32)


def ranges(road, position_m, forward, zone):
    measured = np.full(N_BEAMS, np.nan, dtype=np.float32)
    measure_ranges(measured, head(position_m, forward), zone, road, REACH_M)
    return measured


def naive_ranges(ribbon, position_m, forward, first, end):
    """Each beam against each piece of each border between two cross-sections, one by one."""
    origin, ahead = np.array(position_m)[[0, 2]], np.array(forward) / np.hypot(*forward)
    aside = np.array([ahead[1], -ahead[0]])
    nearest = np.full(N_BEAMS, REACH_M)
    for side in (1.0, -1.0):
        chain = (ribbon.center_m + side * ribbon.half_width_m[:, None] * ribbon.left)[:, [0, 2]]
        for section in range(first, end):
            if not (ribbon.has_road[section] and ribbon.has_road[section + 1]):
                continue
            piece = chain[section + 1] - chain[section]
            for beam, angle in enumerate(BEAM_ANGLES_DEG):
                way = math.cos(math.radians(angle)) * ahead + math.sin(math.radians(angle)) * aside
                matrix = np.stack([way, -piece], axis=1)
                if abs(np.linalg.det(matrix)) > 1e-9:
                    to_m, share = np.linalg.solve(matrix, chain[section] - origin)
                    if to_m >= 0 and 0 <= share <= 1:
                        nearest[beam] = min(nearest[beam], to_m)
    return nearest


def entry(name):
    return MapEntry(
        map_name=name, map_path=f"{name}.toml", reference_line=f"{name}_0.5m.npy", is_explo=True, fill_buffer=True
    )


@pytest.mark.parametrize("name", ["jump", "ring"])
def test_the_range_finder_agrees_with_a_naive_search(name, repository_root, settings):
    maps, rng = repository_root / "maps", np.random.default_rng(3)
    ribbon = load_track(maps / f"{name}.toml").ribbon
    game_map = load_game_map(entry(name), maps, settings.observation)
    for _ in range(2):
        section = int(rng.integers(200, len(ribbon.station_m) - 700))
        zone = int(np.abs(game_map.zones.centers_m - ribbon.center_m[section]).sum(1).argmin())
        if name == "ring":  # laps lie over each other: the zone as far along
            zone = section - 80 + game_map.zones.first_zone_idx
        position = ribbon.center_m[section] + rng.uniform(-5, 5) * ribbon.left[section]
        forward = ribbon.forward[section, [0, 2]] + rng.uniform(-0.5, 0.5, 2)
        expected = naive_ranges(ribbon, position, forward, max(section - 450, 0), section + 450)
        measured = ranges(game_map.road, position, forward, zone)
        # Its borders have a point every metre, and its gaps end there.
        assert np.mean(np.abs(measured - expected) < 0.02 * expected + 0.1) > 0.9


def test_pictures_show_the_shape_of_the_track(repository_root, settings):
    """On a flat track, away from the white lines under its gates."""
    maps, rng = repository_root / "maps", np.random.default_rng(1)
    track = load_track(maps / "speedway.toml")
    ribbon, renderer = track.ribbon, Renderer(track)
    game_map = load_game_map(entry("speedway"), maps, settings.observation)
    finder = PictureRangeFinder(160, 120, REACH_M)
    gates_m = np.array([*track.checkpoint_stations_m, track.finish_station_m])
    errors = []
    while len(errors) < 40:
        section = int(rng.integers(100, len(ribbon.station_m) - 1000))
        ahead_m = gates_m - ribbon.station_m[section]
        if np.any((ahead_m > -10) & (ahead_m < REACH_M)):
            continue
        aside_m, turn = rng.uniform(-6, 6), rng.uniform(-0.2, 0.2)
        left, up, forward = ribbon.left[section], ribbon.up[section], ribbon.forward[section]
        cosine, sine = math.cos(turn), math.sin(turn)
        rotation = np.stack([cosine * left - sine * forward, up, cosine * forward + sine * left], axis=1)
        position = ribbon.center_m[section] + aside_m * left
        picture = cv2.cvtColor(renderer.render(position, rotation, section, 160, 120), cv2.COLOR_BGRA2GRAY)
        zone = section - 80 + game_map.zones.first_zone_idx
        on_track = np.minimum(ranges(game_map.road, position, rotation[[0, 2], 2], zone), finder.limits_m)
        errors.append(np.abs(finder.measure(picture) - on_track) / on_track)
    assert ChaseCamera() == ChaseCamera(
        camera.BEHIND_CAR_M, camera.ABOVE_CAR_M, camera.PITCH_DOWN_RAD, camera.VERTICAL_FIELD_OF_VIEW_RAD
    )
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.85) < 0.2


@pytest.mark.parametrize("name", ["jump", "rally", "ring"])
def test_the_road_ahead_is_that_of_the_nearest_cross_section(name, repository_root, settings):
    maps = repository_root / "maps"
    game_map, ribbon = load_game_map(entry(name), maps, settings.observation), load_track(maps / f"{name}.toml").ribbon
    zones = game_map.zones
    stride, n_points = 20, 5
    for zone in range(zones.first_zone_idx, len(zones.centers_m) // 3, 37):
        floats = np.full(n_points * N_QUALITIES, np.nan, dtype=np.float32)
        observe_road(floats, zone, stride, game_map.road)
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
