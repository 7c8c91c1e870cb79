"""A map's own checkpoints and times, from its file."""

import shutil

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.track import game_map
from trackmania_rl.track.game_map import load_game_map, load_reference_times


def entry(name, map_path):
    return MapEntry(map_name=name, map_path=map_path, reference_line="x.npy", is_explo=True, fill_buffer=True)


TRACK = 'name = "t"\nline = "t.npy"\n'
REAL = entry("real", "real.Challenge.Gbx")
LINE_M = 0.5 * np.arange(400)[:, None] * np.array([0.0, 0.0, 1.0])


@pytest.fixture
def observation(repository_root, tmp_path):
    np.save(tmp_path / "x.npy", LINE_M)
    return load_settings(repository_root / "config_files" / "config_tmnf.py").observation


def test_the_maps_own_checkpoints_belong_to_zones(observation, tmp_path, monkeypatch):
    (tmp_path / "real.Challenge.Gbx").touch()
    monkeypatch.setattr(game_map, "read_checkpoint_positions", lambda file: LINE_M[[100, 300]])
    zones = load_game_map(REAL, tmp_path, observation).zones
    tied = np.flatnonzero(np.isfinite(zones.real_checkpoint_radius_m)) - zones.first_zone_idx
    assert tied.tolist() == [100, 300]


def test_a_real_map_whose_file_is_missing_is_told(observation, tmp_path, caplog):
    zones = load_game_map(REAL, tmp_path, observation).zones
    assert np.isinf(zones.real_checkpoint_radius_m).all()
    assert "map real: " in caplog.text
    assert "nothing checks that the car passes the map's own checkpoints" in caplog.text


def test_times_of_tracks(tmp_path):
    (tmp_path / "timed.toml").write_text(TRACK + "[times]\nauthor_ms = 23520\ngold_ms = 25000\n")
    (tmp_path / "plain.toml").write_text(TRACK)
    entries = [entry("timed", "timed.toml"), entry("timed", "timed.toml"), entry("plain", "plain.toml")]
    entries += [entry("absent", "absent.Challenge.Gbx"), entry("line", "x.npy")]
    (tmp_path / "x.npy").write_bytes(b"")
    assert load_reference_times(entries, tmp_path) == {"timed": MedalTimes(23_520, 25_000, None, None)}


@pytest.mark.parametrize("times", ["author_ms = 0", "author_ms = 1.5", 'gold_ms = "soon"', "platinum_ms = 20000"])
def test_impossible_times_are_refused(tmp_path, times):
    (tmp_path / "t.toml").write_text(f"{TRACK}[times]\n{times}\n")
    with pytest.raises(UserError, match="times"):
        load_reference_times([entry("t", "t.toml")], tmp_path)


def test_times_of_real_maps(shared_data, tmp_path):
    for name in ("A01-Race", "test"):
        shutil.copy(shared_data / "tracks" / f"{name}.Challenge.Gbx", tmp_path)
    entries = [entry("a01", "A01-Race.Challenge.Gbx"), entry("test", "test.Challenge.Gbx")]
    assert load_reference_times(entries, tmp_path) == {"a01": MedalTimes(24_540, 25_870, 29_190, 38_030)}
