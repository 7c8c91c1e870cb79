"""Diagnostic pictures of a run: of its numbers, of a record's Q values, of lines."""

import numpy as np
import pytest
from PIL import Image

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import write_input_script
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.runs.snapshot import write_snapshot
from trackmania_rl.runs.store import save_best_run
from trackmania_rl.settings import load_settings
from trackmania_rl.telemetry import diagnostics
from trackmania_rl.telemetry.diagnostics import (
    KINDS,
    Section,
    band_of,
    binned,
    draw_diagnostics,
    list_pictures,
)

RNG = np.random.default_rng(8)


def line_data():
    """Data of nothing but a line that was driven."""
    meters = np.linspace(0, 90, 40)
    line_m = np.stack([np.sin(meters / 20), 0 * meters, meters], axis=1)
    keys = {"action_names": np.array(["gas"]), "action_controls": np.ones((1, 3))}
    about = Section(map_name="valley", track="valley", frames_total=12345, training_s=61.5, s_per_action=0.05, **keys)
    about.line_m = about.driven_m = line_m
    return {"about": about}


def test_road_is_a_band_in_metres():
    outline_m = band_of(np.stack([np.zeros(5), np.zeros(5), np.arange(5.0)], axis=1))
    assert outline_m.tolist() == [[-10.0, z] for z in range(5)] + [[10.0, z] for z in reversed(range(5))]


def test_numbers_of_near_places_are_beside_each_other():
    figure = diagnostics.new_figure((4, 4))
    places_m = np.array([[0.0, 0, 10], [0.5, 0, 10.5], [0, 0, 80]])
    diagnostics._draw_places(figure.add_subplot(), line_data(), places_m)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 3
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


def test_the_newest_sets_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnostics, "KINDS", {"racing_line": KINDS["racing_line"]})
    monkeypatch.setattr(diagnostics, "SETS_KEPT", 2)
    data = line_data()
    for number in range(4):
        data["about"].frames_total = 1000 + number
        [picture] = draw_diagnostics(data, tmp_path)
        assert picture.pixels.shape[2] == 3
    (tmp_path / "000000001000_valley_strange.png").touch()
    assert [entry["frames"] for entry in list_pictures(tmp_path)] == [1003, 1002]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "a file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        list(draw_diagnostics(line_data(), tmp_path / "a file" / "diagnostics"))


def test_bins_are_those_counted_by_hand():
    at, values, edges = RNG.uniform(-1, 11, 50), RNG.normal(size=50), np.array([0.0, 2, 5, 5.001, 10])
    for index in range(4):
        inside = values[(at >= edges[index]) & (at < edges[index + 1])]
        of_bin = binned(at, values, edges)[index]
        if len(inside) == 0:
            assert np.isnan(of_bin).all()
        else:
            np.testing.assert_allclose(of_bin, [inside.mean(), *np.quantile(inside, [0.1, 0.9])])


N_DECISIONS = 45
TAKEN = np.repeat([0, 1, 8, 3, 2], 9)


@pytest.fixture
def run_folder(tmp_path, repository_root):
    """A run with two records on valley and one on kart; `TAKEN` was driven, and 2 has the highest value."""
    config_file = repository_root / "config_files" / "config.py"
    write_snapshot(config_file, tmp_path, ())
    values = RNG.random((N_DECISIONS, 12)).astype(np.float32)
    values[:, 2] = 2 + np.arange(N_DECISIONS)
    events = actions_of_game(load_settings(config_file).game).events(np.arange(N_DECISIONS) * 50, TAKEN)
    for map_name, time_ms in (("valley", 23000), ("valley", 2230), ("kart", 17000)):
        best_runs = tmp_path / "best_runs"
        facts = {"map_name": map_name, "is_explo": False, "fill_buffer": True, "race_time_ms": time_ms}
        race = Race({"q_values": values}, RaceFacts(**facts, inputs=write_input_script(events)))
        save_best_run(best_runs, race, load_settings(config_file))
    return tmp_path


@pytest.fixture
def q_values_command(script_module):
    return script_module("tools/show_q_values")


def test_q_values_of_the_fastest_record_are_drawn(run_folder, q_values_command, capsys):
    assert q_values_command.main([str(run_folder), "--map", "valley"]) == 0
    out = capsys.readouterr().out
    assert "valley_2230" in out
    assert "valley_23000" not in out
    assert "kart" not in out
    assert f"{N_DECISIONS} decisions among 12 actions" in " ".join(out.split())
    assert "80.0% of those taken were not the best" in " ".join(out.split())
    with Image.open(run_folder / "best_runs" / "valley_2230" / "q_values.png") as picture:
        assert picture.size[0] > 1000
