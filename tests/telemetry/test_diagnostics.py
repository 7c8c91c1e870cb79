"""Diagnostic pictures of a run: of its numbers, of a record's Q values, of lines."""

import dataclasses
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import write_input_script
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.runs import save_best_run
from trackmania_rl.settings import load_settings
from trackmania_rl.settings.live import write_snapshot
from trackmania_rl.telemetry.mind import __main__ as program
from trackmania_rl.telemetry.mind import style
from trackmania_rl.telemetry.mind.album import KINDS, draw_set
from trackmania_rl.telemetry.mind.error_pictures import means_by_bin, quantiles_by_bin
from trackmania_rl.telemetry.mind.index import read_index
from trackmania_rl.telemetry.mind.numbers import (
    About,
    Comparison,
    DrivenRace,
    ErrorsByHorizon,
    Expectations,
    MindNumbers,
    Surprises,
    key_action_name,
    load_numbers,
    save_numbers,
)

RNG = np.random.default_rng(8)
KEYS = np.array([[1, 0, 0], [1, 0, -1], [0, 0, 0], [0, 1, 1]], dtype=np.float64)


def driven(n_actions: int, kind: str = "evaluated") -> DrivenRace:
    way_m = np.linspace(0, 90, n_actions)
    position_m = np.stack([np.sin(way_m / 20), 0 * way_m, way_m], axis=1)
    controls = KEYS[RNG.integers(0, 4, n_actions)]
    return DrivenRace(kind, True, n_actions * 50 - 20, np.array([n_actions * 50 - 20]), position_m, way_m, controls)


def tiny_numbers() -> MindNumbers:
    """All sections, with 4 actions, 3 states and 8 taus."""
    race = driven(40)
    names = np.array([key_action_name(*row) for row in KEYS.tolist()])
    n = 60
    return MindNumbers(
        about=About("valley", "valley", 12345, 61.5, 50, 100, names, KEYS, race.position_m),
        expectations=Expectations(
            time_s=np.array([0.5, 1.0, 1.5]),
            meters=race.meters[[10, 20, 30]],
            position_m=race.position_m[[10, 20, 30]],
            speed_km_h=np.array([100.0, 120.0, 140.0]),
            taus=(np.arange(8) + 0.5) / 8,
            returns=RNG.standard_normal((3, 8, 4)),
            elapsed_actions=np.arange(0.0, 100.0, 9.0),
            values=RNG.standard_normal((3, 12, 4)),
        ),
        comparison=Comparison(
            np.repeat([0, 1], 30), np.ones(n, dtype=bool), RNG.uniform(0, 90, n), RNG.normal(size=n), RNG.normal(size=n)
        ),
        errors=ErrorsByHorizon(RNG.random(n) < 0.5, RNG.integers(1, 101, n), RNG.random(n), RNG.normal(size=n)),
        surprises=Surprises(
            kind=np.array(["explored", "evaluated"]),
            time_s=np.array([0.5, 1.0]),
            meters=np.array([20.0, np.nan]),
            position_m=np.array([[0.0, 0, 20], [np.nan] * 3]),
            direction=np.array([[0.0, 1], [np.nan] * 2]),
            speed_km_h=np.array([100.0, np.nan]),
            action=np.array(["gas", "brake right"]),
            n_steps=np.array([3, 1]),
            reward=np.array([-0.1, 0.2]),
            error=np.array([1.5, 0.7]),
            predicted=np.array([-1.0, np.nan]),
            target=np.array([0.5, np.nan]),
            realised=np.array([np.nan, 0.2]),
            frames=RNG.integers(0, 256, (2, 9, 11)).astype(np.uint8),
        ),
        race=race,
        best=driven(36, "explored"),
    )


def test_every_kind_of_picture_is_drawn_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "DOTS_PER_INCH", 40)  # soon drawn
    monkeypatch.setattr(program.psutil.Process, "nice", lambda *_: None)
    numbers, folder = tmp_path / "numbers.npz", tmp_path / "pictures"
    save_numbers(numbers, tiny_numbers())
    monkeypatch.setattr("sys.argv", ["mind", str(numbers), str(folder)])
    assert program.main() == 0
    listed = read_index(folder)
    assert [(entry.file, entry.title) for entry in listed] == [
        (f"000000012345_valley_{kind.name}.png", kind.title) for kind in KINDS
    ]
    assert all(entry.map == "valley" and entry.frames == 12345 and entry.caption for entry in listed)
    for entry in listed:
        with Image.open(folder / entry.file) as picture:
            assert min(picture.size) > 100


def test_pictures_without_numbers_are_left_out(tmp_path: Path) -> None:
    numbers = tiny_numbers()
    about = dataclasses.replace(numbers.about, action_controls=np.zeros((0, 3)), line_m=np.zeros((0, 3)))
    assert draw_set(MindNumbers(about), tmp_path / "pictures") == []
    means = dataclasses.replace(numbers.expectations, taus=np.zeros(0), returns=np.zeros((3, 1, 4)))
    without_quantiles = MindNumbers(numbers.about, expectations=means)
    drawn = [kind.name for kind in KINDS if kind.draw(without_quantiles) is not None]
    assert drawn == ["values_over_elapsed_time"]


def test_files_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "numbers.npz"
    for content in (None, b"", b"PK\x03\x04 nonsense"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(UserError, match="holds no numbers of a run's pictures") as error:
            load_numbers(file)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="cannot be written"):
        draw_set(tiny_numbers(), file / "pictures")


def test_bins_are_those_counted_by_hand() -> None:
    at, values, edges = RNG.uniform(-1, 11, 50), RNG.normal(size=50), np.array([0.0, 2, 5, 5.001, 10])
    for index in range(4):
        inside = values[(at >= edges[index]) & (at < edges[index + 1])]
        mean, quantiles = means_by_bin(at, values, edges)[index], quantiles_by_bin(at, values, edges, (0.1, 0.5))[index]
        if len(inside) == 0:
            assert np.isnan([mean, *quantiles]).all()
        else:
            np.testing.assert_allclose([mean, *quantiles], [inside.mean(), *np.quantile(inside, [0.1, 0.5])])


N_DECISIONS = 45
TAKEN = np.repeat([0, 1, 8, 3, 2], 9)


@pytest.fixture
def run_folder(tmp_path: Path, repository_root: Path) -> Path:
    """A run with two records on valley and one on kart; `TAKEN` was driven, and 2 has the highest value."""
    config_file = repository_root / "config_files" / "config.py"
    write_snapshot(config_file, tmp_path / "config", ())
    values = RNG.random((N_DECISIONS, 12)).astype(np.float32)
    values[:, 2] = 2 + np.arange(N_DECISIONS)
    events = actions_of_game(load_settings(config_file).game).events(np.arange(N_DECISIONS) * 50, TAKEN)
    for map_name, time_ms in (("valley", 23000), ("valley", 2230), ("kart", 17000)):
        best_runs = tmp_path / "best_runs"
        save_best_run(best_runs, map_name, time_ms, write_input_script(events), values, tmp_path / "config")
    return tmp_path


@pytest.fixture
def q_values_command(script_module) -> ModuleType:
    return script_module("tools/show_q_values")


def test_q_values_of_the_fastest_record_are_shown_with_table_and_picture(
    run_folder: Path, q_values_command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert q_values_command.main([str(run_folder), "--map", "valley", "--every", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "valley_2230" in out
    assert "valley_23000" not in out
    assert "kart" not in out
    assert out.count("gas right") == 5  # a row every half second
    assert f"{N_DECISIONS} decisions among 12 actions" in " ".join(out.split())
    assert "80.0% of those taken were not the best" in " ".join(out.split())
    with Image.open(run_folder / "best_runs" / "valley_2230" / "q_values.png") as picture:
        assert picture.size[0] > 1000


def test_mistakes_of_the_q_values_command_are_one_line(
    run_folder: Path, tmp_path: Path, q_values_command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nonsense.npy").write_bytes(b"nonsense")
    np.save(tmp_path / "flat.npy", np.zeros(7, dtype=np.float32))
    np.save(tmp_path / "nan.npy", np.full((3, 1), np.nan, dtype=np.float32))
    np.save(tmp_path / "objects.npy", np.array([[object()]]), allow_pickle=True)
    cases = {
        "choose with --map": (run_folder, "--picture", tmp_path / "a.png"),
        "on speedway": (run_folder, "--map", "speedway"),
        "more than 0": (run_folder, "--every", "0"),
        "cannot be written": (run_folder, "--map", "kart", "--picture", tmp_path / "nowhere" / "a.png"),
        "absent.npy: there is no such file": (tmp_path / "absent.npy",),
        "nonsense.npy: cannot be read as Q values": (tmp_path / "nonsense.npy",),
        "flat.npy: holds no Q values": (tmp_path / "flat.npy",),
        "nan.npy: the agent of this run tells no values": (tmp_path / "nan.npy",),
        "objects.npy: cannot be read as Q values": (tmp_path / "objects.npy",),
    }
    for message, words in cases.items():
        assert q_values_command.main([str(word) for word in words]) == 1, words
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
