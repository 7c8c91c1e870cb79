"""The yardsticks of the driving benchmark: the stored records replay to their times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.driving.variants import find_tracks
from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import Track

SHIPPED = ("valley", "speedway", "hills", "kart", "rally", "jump", "ring")
GENERATED = {"generated_0.300_5": "generated:0.3:5", "generated_0.600_7": "generated:0.6:7"}


@pytest.fixture(scope="module")
def entries(repository_root: Path) -> dict:
    file = repository_root / "benchmarks" / "driving" / "yardsticks.json"
    return json.loads(file.read_text(encoding="utf-8"))


def finish_ms(track: Track, script: Path) -> int:
    race = SimulatedRace(track)
    race.play_script(parse_input_script(script.read_text(encoding="utf-8")))
    while not race.is_finished:
        assert race.tick_time_ms < 90_000
        race.advance(1000)
    return race.checkpoint_times_ms[-1]


def test_every_shipped_track_has_yardsticks(entries: dict) -> None:
    assert {*SHIPPED, *GENERATED} == set(entries)


@pytest.mark.parametrize("name", [*SHIPPED, *GENERATED])
def test_records_replay_to_their_times_exactly(name: str, entries: dict, repository_root: Path, tmp_path: Path) -> None:
    entry, records = entries[name], repository_root / "research" / "planner" / "records"
    [file] = find_tracks([GENERATED.get(name, name)], tmp_path)
    track = load_track(file)
    assert finish_ms(track, records / f"{name}.inputs") == entry["record_ms"]
    assert entry["record_ms"] <= entry["scripted_tuned_ms"] <= entry["scripted_fast_ms"]
    assert entry["length_m"] == pytest.approx(track.finish_station_m, abs=0.1)
    if name in SHIPPED:
        assert finish_ms(track, records / f"{name}.wheel.inputs") == entry["wheel_ms"] <= entry["record_ms"]
