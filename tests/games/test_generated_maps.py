"""Generated tracks in both kinds of games, and how many maps stay in memory."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.games import in_process as games_module
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.track.generated_maps import GeneratedMaps

N_ACTIONS = 12


@pytest.fixture
def entries(tmp_path: Path) -> list[MapEntry]:
    """Seven generated tracks under one name."""
    entry = MapEntry(
        map_name="made",
        generator={"difficulty": 0.4, "first_seed": 0, "last_seed": 9},
        is_explo=True,
        fill_buffer=True,
    )
    maps = GeneratedMaps(tmp_path / "tracks", np.random.SeedSequence(1))
    return [maps.concrete(entry, TrackRecipe(seed, 0.4)) for seed in range(7)]


def decide(actions: list[int]) -> BatchDecision:
    n = len(actions)
    return BatchDecision(np.array(actions), np.ones(n, dtype=bool), np.zeros((n, N_ACTIONS), dtype=np.float32))


def test_maps_in_memory_are_bounded_and_one_in_use_never_gives_way(
    entries: list[MapEntry], maps_folder: Path, make_settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(games_module, "SPARE_MAPS", 1)
    settings = make_settings(False)
    games = InProcessGames(2, settings.game, settings.observation, maps_folder)
    alone = InProcessGames(1, settings.game, settings.observation, maps_folder)
    games.begin(0, entries[0])
    alone.begin(0, entries[0])
    for entry in (*entries[1:], entries[1], *entries):  # game 1 sees all maps while game 0 stays on its own
        games.begin(1, entry)
        games.send(np.arange(2), decide([0, 0]))
        alone.send(np.arange(1), decide([0]))
        assert len(games._maps) <= 3
        ours, expected = games.recv(), alone.recv()
        np.testing.assert_array_equal(ours.images[:1], expected.images)
        np.testing.assert_array_equal(ours.floats[:1], expected.floats)
    assert games._maps[games._map_of_game[1]].track.world.station_m[-1] == pytest.approx(
        load_track(Path(entries[-1].map_path)).ribbon.station_m[-1]
    )
