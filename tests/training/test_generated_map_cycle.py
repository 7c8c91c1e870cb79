"""A map cycle with a generator: every race on a track of its own, drawn from the seed it is given."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.doctor.run_checks import load_reference_lines
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.settings.live import LiveSettings, write_snapshot
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.track.generated_maps import GeneratedMaps
from trackmania_rl.training.collector import map_cycle


@pytest.fixture
def live(tmp_path: Path, repository_root: Path) -> LiveSettings:
    config_file = repository_root / "config_files" / "config_many_tracks.py"
    snapshot = write_snapshot(config_file, tmp_path / "config", ())
    snapshot.write_text(snapshot.read_text().replace('"races_per_track": 4', '"races_per_track": 1'))
    live = LiveSettings(snapshot, load_settings(snapshot))
    live.refresh()  # so that tests may replace `current`
    return live


def test_each_race_has_a_track_of_its_own_under_the_generators_name(live: LiveSettings, tmp_path: Path) -> None:
    def races(seed: int) -> list[tuple[str, bool, TrackRecipe]]:
        cycle = map_cycle(
            LocalRunState(live.current), GeneratedMaps(tmp_path / f"tracks-{seed}", np.random.default_rng(seed))
        )
        drawn = []
        for _ in range(20):
            entry, is_generated = next(cycle)
            assert is_generated
            recipe = TrackRecipe.from_name(Path(entry.map_path).stem)
            assert recipe is not None
            assert Path(entry.reference_line).is_file()
            drawn.append((entry.map_name, entry.is_explo, recipe))
        return drawn

    first = races(1)
    assert [name for name, _, _ in first] == [*["generated"] * 8, "unseen"] * 2 + ["generated"] * 2
    assert all(is_explo == (name == "generated") for name, is_explo, _ in first)
    assert len({recipe for _, _, recipe in first}) == 20
    assert all((recipe.seed < 10_000) == is_explo for _, is_explo, recipe in first)
    assert races(1) == first != races(2)


def test_generators_need_a_source_of_tracks_and_have_no_lines_before_the_run(
    live: LiveSettings, repository_root: Path
) -> None:
    with pytest.raises(ValueError, match="generated is a generator"):
        next(map_cycle(LocalRunState(live.current)))
    assert load_reference_lines(live.current, repository_root / "maps") == {}


def test_tracks_of_a_generator_that_was_edited_away_stay_a_generators(live: LiveSettings, tmp_path: Path) -> None:
    run_state = LocalRunState(live.current)
    cycle = map_cycle(run_state, GeneratedMaps(tmp_path / "tracks", np.random.default_rng(1)))
    next(cycle)
    game = live.current.game
    entry = {"map_name": "valley", "map_path": "valley.toml", "reference_line": "valley_0.5m.npy"}
    valley = MapEntry.model_validate(entry | {"is_explo": True, "fill_buffer": True})
    run_state.publish(
        settings=live.current.model_copy(update={"game": game.model_copy(update={"map_cycle": (valley,)})})
    )
    run_state.pull()
    races = [next(cycle) for _ in range(10)]
    assert [entry.map_name for entry, _ in races] == ["generated"] * 7 + ["unseen"] + ["valley"] * 2
    assert [is_generated for _, is_generated in races] == [True] * 8 + [False] * 2


@pytest.mark.parametrize(("first", "expected"), [(0, [1, 1, 2, 3, 1]), (1, [2, 3, 1, 1, 2]), (5, [3, 1, 1, 2, 3])])
def test_the_cycle_may_begin_further_on(live: LiveSettings, first: int, expected: list[int]) -> None:
    files = {"map_path": "valley.toml", "reference_line": "valley_0.5m.npy", "is_explo": True, "fill_buffer": True}
    entries = tuple(
        MapEntry.model_validate({"map_name": f"map {number}", "repeat": 2 if number == 1 else 1, **files})
        for number in (1, 2, 3)
    )
    game = live.current.game
    settings = live.current.model_copy(update={"game": game.model_copy(update={"map_cycle": entries})})
    cycle = map_cycle(LocalRunState(settings), first=first)
    assert [int(next(cycle)[0].map_name[-1]) for _ in range(5)] == expected
