"""Times to beat, from whatever file a map has."""

import shutil
from pathlib import Path

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.settings import MapEntry
from trackmania_rl.track.reference_times import load_reference_times


def entry(name: str, map_path: str) -> MapEntry:
    return MapEntry(map_name=name, map_path=map_path, reference_line="x.npy", is_explo=True, fill_buffer=True)


TRACK = 'name = "t"\nline = "t.npy"\n'


def test_times_of_tracks(tmp_path: Path) -> None:
    (tmp_path / "timed.toml").write_text(TRACK + "[times]\nauthor_ms = 23520\ngold_ms = 25000\n")
    (tmp_path / "plain.toml").write_text(TRACK)
    entries = [entry("timed", "timed.toml"), entry("timed", "timed.toml"), entry("plain", "plain.toml")]
    entries += [entry("absent", "absent.Challenge.Gbx"), entry("line", "x.npy")]
    (tmp_path / "x.npy").write_bytes(b"")
    assert load_reference_times(entries, tmp_path) == {"timed": MedalTimes(23_520, 25_000, None, None)}


@pytest.mark.parametrize("times", ["author_ms = 0", "author_ms = 1.5", 'gold_ms = "soon"', "platinum_ms = 20000"])
def test_impossible_times_are_refused(tmp_path: Path, times: str) -> None:
    (tmp_path / "t.toml").write_text(f"{TRACK}[times]\n{times}\n")
    with pytest.raises(UserError, match="times"):
        load_reference_times([entry("t", "t.toml")], tmp_path)


def test_times_of_real_maps(shared_data: Path, tmp_path: Path) -> None:
    for name in ("A01-Race", "test"):
        shutil.copy(shared_data / "tracks" / f"{name}.Challenge.Gbx", tmp_path)
    entries = [entry("a01", "A01-Race.Challenge.Gbx"), entry("test", "test.Challenge.Gbx")]
    assert load_reference_times(entries, tmp_path) == {"a01": MedalTimes(24_540, 25_870, 29_190, 38_030)}


def test_a_damaged_map_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.Challenge.Gbx").write_bytes(b"GBX")
    with pytest.raises(UserError, match=r"a\.Challenge\.Gbx"):
        load_reference_times([entry("a", "a.Challenge.Gbx")], tmp_path)


def test_medals() -> None:
    times = MedalTimes(100, 200, None, 400)
    assert [times.medal(time_ms) for time_ms in (100, 101, 200, 201, 400, 401)] == [
        *("author", "gold", "gold", "bronze", "bronze", None)
    ]


def test_a_map_in_a_folder_of_the_game_is_found_on_any_system(tmp_path: Path) -> None:
    (tmp_path / "My Challenges").mkdir()
    (tmp_path / "My Challenges" / "t.toml").write_text(f"{TRACK}[times]\nauthor_ms = 5000\n")
    times = load_reference_times([entry("t", "My Challenges\\t.toml")], tmp_path)
    assert times == {"t": MedalTimes(5000, None, None, None)}
