"""`check_run.py`, with which continuous integration looks at a short training."""

import json
import sys
from pathlib import Path

import pytest

GOOD = {"meters": (10, 20, 30, 40, 50), "first_s": 5.0, "greedy": True, "has_checkpoint": True}


@pytest.fixture
def check(script_module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = script_module("tools/check_run")

    def run(meters, first_s, greedy, has_checkpoint) -> int:
        races = [
            {"wall_s": first_s + k, "meters": m, "race_finished": m == 50, "is_explo": not greedy, "frames_total": k}
            for k, m in enumerate(meters)
        ]
        (tmp_path / "races.jsonl").write_text("".join(json.dumps(race) + "\n" for race in races))
        if has_checkpoint:
            (tmp_path / "checkpoints" / "000001").mkdir(parents=True)
            (tmp_path / "checkpoints" / "000001" / "manifest.json").touch()
        options = ["--min-races", "5", "--must-advance", "--must-finish", "--max-first-race-s", "60"]
        monkeypatch.setattr(sys, "argv", ["check_run.py", str(tmp_path), *options])
        return module.main()

    return run


def test_a_good_run_passes(check) -> None:
    assert check(**GOOD) == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"meters": (10, 20, 30, 50)}, "expected at least 5"),
        ({"meters": ()}, "0 races in"),
        ({"first_s": 99.0}, "first race ended after 99 s"),
        ({"meters": (50, 40, 30, 20, 10)}, "does not come further"),
        ({"greedy": False}, "no greedy race has reached the finish"),
        ({"has_checkpoint": False}, "no checkpoint"),
    ],
)
def test_what_is_missing_fails_and_is_told(check, capsys, changed, told) -> None:
    assert check(**{**GOOD, **changed}) == 1
    assert told in capsys.readouterr().err
