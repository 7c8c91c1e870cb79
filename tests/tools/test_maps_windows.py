"""`maps.py windows` on real replays, and what it refuses."""

import re

import cv2
import pytest


@pytest.fixture(scope="module")
def maps(script_module):
    """scripts/tools/maps.py as a module."""
    return script_module("tools/maps")


def test_prints_and_draws_how_well_a_replay_is_followed(maps, shared_data, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets 80, at which rows go on in further lines
    replay = shared_data / "replays" / "mydli_20.14.Replay.gbx"
    picture = tmp_path / "windows.png"
    assert maps.main(["windows", str(replay), "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "38 windows of 1 s" in printed
    shares = {}
    for line in printed.splitlines():
        found = re.match(r"[│|] ([a-z ,]+?) +[│|] +(\d+) +[│|](.*)", line)
        if found:
            shares[found[1]] = (int(found[2]), [int(share) for share in re.findall(r"(\d+) %", found[3])])
    assert shares["start"][1][1] == 100
    assert shares["respawn"] == (1, [100, 100, 100, 100])
    count, within = shares["level asphalt"]
    assert count >= 10
    assert within[1] >= 80
    assert cv2.imread(str(picture)).shape[1] > 1000


def test_another_cars_replay_is_refused(maps, shared_data, capsys):
    assert maps.main(["windows", str(shared_data / "replays" / "PlatformA3_33.66.Replay.gbx")]) == 1
    assert "'Speed'" in capsys.readouterr().err


def test_a_length_between_samples_is_refused(maps, shared_data, capsys):
    replay = shared_data / "replays" / "mydli_20.14.Replay.gbx"
    assert maps.main(["windows", str(replay), "--length", "950"]) == 1
    assert "a sample every 100 ms" in capsys.readouterr().err
