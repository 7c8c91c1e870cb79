"""The Q values of a record are read again: what is found, what is refused, and what the table says."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from trackmania_rl.checkpoints import save_best_run
from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import read_input_script, write_input_script
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.settings.live import write_snapshot
from trackmania_rl.telemetry.q_values import (
    NO_ACTION,
    RaceValues,
    actions_taken,
    draw_q_values,
    fastest_records,
    read_q_values,
)

RNG = np.random.default_rng(4)
N_ACTIONS, N_DECISIONS = 12, 45
TAKEN = np.repeat([0, 1, 8, 3, 2], 9)


@pytest.fixture(scope="module")
def settings(repository_root: Path) -> Settings:
    return load_settings(repository_root / "config_files" / "config.py")


@pytest.fixture
def run_folder(tmp_path: Path, repository_root: Path, settings: Settings) -> Path:
    """A run with two records on valley and one on kart; `TAKEN` was driven, and 2 is thought best."""
    write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config", ())
    values = RNG.random((N_DECISIONS, N_ACTIONS)).astype(np.float32)
    values[:, 2] = 2 + np.arange(N_DECISIONS)
    events = actions_of_game(settings.game).events(np.arange(N_DECISIONS) * 50, TAKEN)
    for map_name, time_ms in (("valley", 23000), ("valley", 2230), ("kart", 17000)):
        best_runs = tmp_path / "best_runs"
        save_best_run(best_runs, map_name, time_ms, write_input_script(events), values, tmp_path / "config")
    return tmp_path


@pytest.fixture
def script(script_module) -> ModuleType:
    return script_module("tools/show_q_values")


def test_the_fastest_record_of_each_map_is_found(run_folder: Path) -> None:
    found = fastest_records(run_folder / "best_runs")
    assert {name: file.parent.name for name, file in found.items()} == {"kart": "kart_17000", "valley": "valley_2230"}
    assert list(fastest_records(run_folder / "best_runs", "kart")) == ["kart"]
    assert fastest_records(run_folder / "nowhere") == {}


def test_what_was_taken_is_found_in_the_inputs(run_folder: Path, settings: Settings) -> None:
    events = read_input_script(run_folder / "best_runs" / "valley_2230" / "valley_2230.inputs")
    controls = actions_of_game(settings.game).controls(np.arange(N_ACTIONS))
    np.testing.assert_array_equal(actions_taken(events, controls, N_DECISIONS, 50), TAKEN)
    assert (actions_taken(events, controls[:1], N_DECISIONS, 50) == NO_ACTION).sum() == (TAKEN != 0).sum()


def test_gaps_and_shares_are_those_counted_by_hand() -> None:
    values = RNG.standard_normal((9, 4)).astype(np.float32)
    taken = np.array([*values.argmax(axis=1)[:6], NO_ACTION, 0, 0])
    race = RaceValues(values, ("a", "b", "c", "d"), 0.05, taken)
    expected = [sorted(row)[-1] - sorted(row)[-2] for row in values.tolist()]
    np.testing.assert_allclose(race.gaps, expected, rtol=1e-5)
    others = sum(values[row].argmax() != 0 for row in (7, 8))
    assert race.share_not_best == pytest.approx(others / 8)
    assert RaceValues(values[:, :1], ("a",), 0.05).gaps.tolist() == [0] * 9


@pytest.mark.parametrize("n_actions", [1, 3])
def test_a_picture_is_drawn(n_actions: int) -> None:
    values = RNG.standard_normal((30, n_actions)).astype(np.float32)
    figure = draw_q_values(RaceValues(values, tuple("abc"[:n_actions]), 0.05, np.zeros(30, dtype=int)), "a $title$")
    assert len(figure.axes) == (1 if n_actions == 1 else 4)  # the colour bar is one


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (None, "there is no such file"),
        (b"nonsense", "cannot be read as Q values"),
        (np.zeros(7, dtype=np.float32), "holds no Q values"),
        (np.zeros((0, 4), dtype=np.float32), "holds no Q values"),
        (np.array([["a", "b"]]), "holds no Q values"),
        (np.full((3, 1), np.nan, dtype=np.float32), "tells no values of actions"),
        (np.array([[object()]]), "cannot be read as Q values"),
    ],
)
def test_a_bad_file_is_told_in_one_line(
    tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str], array: object, told: str
) -> None:
    file = tmp_path / "q_values.npy"
    if isinstance(array, bytes):
        file.write_bytes(array)
    elif array is not None:
        np.save(file, array, allow_pickle=True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=told):
        read_q_values(file)
    assert script.main([str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}")
    assert error.count("\n") == 1


def test_a_run_is_shown_with_table_and_picture(
    run_folder: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([str(run_folder), "--map", "valley", "--every", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "valley_2230" in out
    assert "kart" not in out
    assert out.count("gas right") == 5  # in a row every half second
    assert f"{N_DECISIONS} decisions among 12 actions" in " ".join(out.split())
    assert "80.0% of those taken were not the best" in " ".join(out.split())
    with Image.open(run_folder / "best_runs" / "valley_2230" / "q_values.png") as picture:
        assert picture.size[0] > 1000


def test_a_file_that_lies_elsewhere_has_numbered_actions(
    run_folder: Path, tmp_path_factory: pytest.TempPathFactory, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("elsewhere") / "values.npy"
    file.write_bytes((run_folder / "best_runs" / "kart_17000" / "q_values.npy").read_bytes())
    assert script.main([str(file), "--no-picture"]) == 0
    assert "action 2" in capsys.readouterr().out
    assert not file.with_suffix(".png").exists()


def test_mistakes_are_told_in_one_line(
    run_folder: Path, tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {
        "choose with --map": (run_folder, "--picture", tmp_path / "a.png"),
        "on speedway": (run_folder, "--map", "speedway"),
        "holds no Q values of a record": (run_folder / "config",),
        "more than 0": (run_folder, "--every", "0"),
        "cannot be written": (run_folder, "--map", "kart", "--picture", tmp_path / "nowhere" / "a.png"),
    }
    for told, words in cases.items():
        assert script.main([str(word) for word in words]) == 1, words
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
