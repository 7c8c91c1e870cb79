"""A real map's own checkpoints: tied to zones where the map's file is there, told where it is not."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.track import game_map
from trackmania_rl.track.game_map import load_game_map

REAL = MapEntry(
    map_name="real", map_path="real.Challenge.Gbx", reference_line="line.npy", is_explo=True, fill_buffer=True
)
LINE_M = 0.5 * np.arange(400)[:, None] * np.array([0.0, 0.0, 1.0])


@pytest.fixture
def observation(repository_root: Path, tmp_path: Path):
    np.save(tmp_path / "line.npy", LINE_M)
    return load_settings(repository_root / "config_files" / "config_tmnf.py").observation


def test_the_maps_own_checkpoints_belong_to_zones(observation, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "real.Challenge.Gbx").touch()
    monkeypatch.setattr(game_map, "read_checkpoint_positions", lambda file: LINE_M[[100, 300]])
    zones = load_game_map(REAL, tmp_path, observation).zones
    tied = np.flatnonzero(np.isfinite(zones.real_checkpoint_radius_m)) - zones.first_zone_idx
    assert tied.tolist() == [100, 300]


def test_a_real_map_whose_file_is_missing_is_told(observation, tmp_path: Path, caplog) -> None:
    zones = load_game_map(REAL, tmp_path, observation).zones
    assert np.isinf(zones.real_checkpoint_radius_m).all()
    assert "map real: " in caplog.text
    assert "nothing checks that the car passes the map's own checkpoints" in caplog.text
