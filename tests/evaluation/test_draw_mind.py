"""Pictures of a run by its checkpoint: races are driven anew and looked at."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.telemetry.mind import album
from trackmania_rl.telemetry.mind.index import read_index
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.mind_of_run import drive_and_gather, load_mind

from .conftest import FORWARD, FRAMES_TOTAL, TRAINING_S, MakeScript


def test_races_are_driven_by_the_checkpoint(run_folder: Path, maps_folder: Path) -> None:
    run = load_mind(run_folder)
    [entry] = map_entries(run.settings, maps_folder)
    numbers = drive_and_gather(run, entry, 2, maps_folder)
    about, seen = numbers.about, numbers.expectations
    assert (about.map_name, about.frames_total) == ("bend", FRAMES_TOTAL)
    assert about.training_s == pytest.approx(TRAINING_S)
    assert len(about.line_m) == 120
    assert seen is not None
    assert (seen.best_actions == FORWARD).all()
    assert numbers.race is not None
    assert numbers.race.is_finished
    assert numbers.race.kind == "evaluated"
    assert numbers.comparison is not None
    assert set(numbers.comparison.race.tolist()) == {0, 1}
    assert numbers.surprises is not None
    assert set(numbers.surprises.kind.tolist()) == {"evaluated"}
    assert numbers.errors is None  # the memory is empty


def test_a_kept_driver_is_looked_into_as_well(run_folder: Path, driver_file: Path) -> None:
    kept, newest = load_mind(run_folder, driver_file), load_mind(run_folder)
    assert kept.frames_total == newest.frames_total == FRAMES_TOTAL
    assert kept.memory is None
    weights = [mind.agent.state_dict()["averaged"] for mind in (kept, newest)]
    for name in weights[0]:
        np.testing.assert_array_equal(weights[0][name].numpy(), weights[1][name].numpy())


def test_the_command_writes_a_set(
    run_folder: Path, tmp_path: Path, script: MakeScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(album, "KINDS", [kind for kind in album.KINDS if kind.name == "racing_line"])  # soon drawn
    code, out, err = script("tools/draw_mind", run_folder, "--races", 1, "--output", tmp_path / "pictures")
    assert (code, err) == (0, "")
    [entry] = read_index(tmp_path / "pictures")
    assert (entry.map, entry.frames) == ("bend", FRAMES_TOTAL)
    assert str(tmp_path / "pictures" / entry.file) in out


def test_mistakes_are_told_in_one_line(script: MakeScript, run_folder: Path, tmp_path: Path) -> None:
    cases = {
        "there is no such run folder": (tmp_path / "absent",),
        "there is no such checkpoint": (run_folder, "--checkpoint", tmp_path / "000099"),
        "the maps of this run are bend": (run_folder, "--map", "nowhere"),
    }
    for told, words in cases.items():
        code, _, err = script("tools/draw_mind", *words)
        assert code == 1
        assert told in err
        assert err.count("\n") == 1, err
