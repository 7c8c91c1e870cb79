"""The map cycle: generated tracks from the run's seed, entries left out, and where a resumed run continues."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.channels.run_state import SharedRunState
from trackmania_rl.race.race import CollectorProgress, CyclePosition
from trackmania_rl.runs.snapshot import LiveSettings, write_snapshot
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.track.map_sources import GeneratedMaps
from trackmania_rl.training.collector import map_cycle


@pytest.fixture
def live(tmp_path, repository_root):
    config_file = repository_root / "config_files" / "config_many_tracks.py"
    snapshot = write_snapshot(config_file, tmp_path, ())
    snapshot.write_text(snapshot.read_text().replace("races_per_track = 4", "races_per_track = 1"))
    live = LiveSettings(snapshot, load_settings(snapshot))
    live.refresh()  # so that tests may replace `current`
    return live


def test_each_race_has_a_track_of_its_own_under_the_generators_name(live, tmp_path):
    def races(seed):
        cycle = map_cycle(
            SharedRunState(live.current, {}), GeneratedMaps(tmp_path / f"tracks-{seed}", np.random.SeedSequence(seed))
        )
        drawn = []
        for _ in range(10):
            entry, is_generated, _ = next(cycle)
            assert is_generated
            recipe = TrackRecipe.from_name(Path(entry.map_path).stem)
            assert Path(entry.reference_line).is_file()
            drawn.append((entry.map_name, entry.is_explo, recipe))
        return drawn

    first = races(1)
    assert [name for name, _, _ in first] == [*["generated"] * 8, "unseen", "generated"]
    assert all(is_explo == (name == "generated") for name, is_explo, _ in first)
    assert len({recipe for _, _, recipe in first}) == 10
    assert all((recipe.seed < 10_000) == is_explo for _, is_explo, recipe in first)
    assert races(1) == first != races(2)


@pytest.fixture
def three_maps(live):
    """The cycle 1, 1, 2, 3."""
    files = {"map_path": "valley.toml", "reference_line": "valley_0.5m.npy", "is_explo": True, "fill_buffer": True}
    entries = tuple(
        MapEntry.model_validate({"map_name": f"map {number}", "repeat": 2 if number == 1 else 1, **files})
        for number in (1, 2, 3)
    )
    game = live.current.game
    return SharedRunState(live.current.model_copy(update={"game": game.model_copy(update={"map_cycle": entries})}), {})


@pytest.mark.parametrize(
    ("place", "n_left_out", "expected"),
    [
        (0, 0, [1, 1, 2, 3, 1]),
        (0, 5, [3, 1, 1, 2, 3]),
        (1, 0, [1, 2, 3, 1, 1]),
        (6, 0, [2, 3, 1, 1, 2]),
        (1, 1, [2, 3, 1, 1, 2]),
        (3, 1, [1, 1, 2, 3, 1]),
    ],
)
def test_the_cycle_continues_from_a_place_and_may_leave_entries_out(three_maps, place, n_left_out, expected):
    cycle = map_cycle(three_maps, None, CollectorProgress(n_races=17, place=place), n_left_out)
    races = [next(cycle) for _ in range(5)]
    assert [int(race.entry.map_name[-1]) for race in races] == expected
    assert [race.position.number for race in races] == [17, 18, 19, 20, 21]
    for race, following in itertools.pairwise(races):
        assert next(map_cycle(three_maps, None, CollectorProgress().after(race.position))) == following


def test_progress_takes_races_in_any_order_and_is_checked_when_it_is_read():
    races = [
        CyclePosition(number=n, place=n % 3, generator="g", generator_number=n, streams={"s": str(n)}) for n in range(4)
    ]
    progress = CollectorProgress()
    for race in (races[1], races[0], races[3], races[2]):
        progress = progress.after(race)
    assert progress == CollectorProgress(4, 1, {"g": 4}, {"s": "2"}), "streams are those of the race that came last"
    for changes in ({"place": -1}, {"n_races": "3"}, {"of_generators": {"g": None}}):
        with pytest.raises(ValueError, match="a collector's progress"):
            CollectorProgress.of_state(progress.state_dict() | changes)


def test_a_cycle_of_generators_goes_on_with_the_tracks_that_come_next(live, tmp_path):
    run_state = SharedRunState(live.current, {})

    def cycle(progress):
        seeds, n_begun = np.random.SeedSequence(3), progress.of_generators
        return map_cycle(run_state, GeneratedMaps(tmp_path / "tracks", seeds, n_begun=n_begun), progress)

    whole = cycle(CollectorProgress())
    expected = [next(whole) for _ in range(20)]
    progress, driven = CollectorProgress(), []
    for n_of_session in (1, 4, 0, 15):
        session = cycle(progress)
        for race in [next(session) for _ in range(n_of_session)]:
            progress = CollectorProgress.of_state(progress.after(race.position).state_dict())
            driven.append(race)
    assert [(race.entry.map_path, race.position) for race in driven] == [
        (race.entry.map_path, race.position) for race in expected
    ]
