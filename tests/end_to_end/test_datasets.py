"""Learning without a game: a data set is recorded, learned from alone, driven, and exported again."""

import json
import sys

import pytest

INPUTS = "research/planner/records/kart.inputs"


@pytest.mark.slow
def test_a_driver_is_cloned_without_a_game(
    script_module, repository_root, tmp_path, start_training, monkeypatch, capsys
):
    minari = pytest.importorskip("minari", reason='python -m pip install "minari[hdf5]"')
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    dataset = script_module("tools/dataset").main
    assert dataset(["record", str(repository_root / INPUTS), "--map", "kart", "--id", "tested/kart-v0"]) == 0
    assert "on kart: 0:17.250" in capsys.readouterr().out
    agent = "trackmania_rl.agents.behaviour_cloning:BehaviourCloning"
    for n_updates in (40, 60):
        options = ("--max-updates", str(n_updates))
        run = start_training(tmp_path, options, offline="tested/kart-v0", n_collectors=0, agent=agent)
        assert run.process.wait(120) == 0, run.output
        assert ("345 transitions" in run.output) == (n_updates == 40), "a run that resumes has them already"
    assert not run.races
    assert dataset(["export", str(run.run_folder), "--id", "tested/again-v0"]) == 0
    assert "1 races, 345 actions" in capsys.readouterr().out
    figures = tmp_path / "figures.json"
    words = [str(run.run_folder), "--map", "kart", "--no-video", "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *words])
    assert script_module("evaluate").main() == 0
    assert json.loads(figures.read_text())["frames_total"] > 0
    first, again = (
        minari.MinariDataset(tmp_path / "minari" / "tested" / name / "data")[0] for name in ("kart-v0", "again-v0")
    )
    for column in ("observations", "actions", "rewards", "terminations"):
        assert getattr(first, column).tobytes() == getattr(again, column).tobytes(), column
