"""A run that begins with a demonstration: driven first and once, by collectors of both kinds of games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ENDS_WITHIN_S = 240.0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["in_process", "socket"])
def test_a_demonstration_is_the_first_race_of_a_new_run_only(
    start_training: Any, tmp_path: Path, scripted_inputs: Path, transport: str
) -> None:
    settings = {
        "game_transport": repr(transport),
        "demonstrations": repr(({"map_name": "valley", "inputs": str(scripted_inputs)},)),
        "cutoff_race_longer_than_ms": 40_000,
    }
    first = start_training(tmp_path, ("--max-frames", "1200"), **settings)
    assert first.process.wait(ENDS_WITHIN_S) == 0, first.output
    demonstration, *own = first.races
    assert demonstration["is_demonstration"]
    assert demonstration["race_finished"]
    assert "scripted.inputs on valley: finished" in first.output
    assert not any(race["is_demonstration"] for race in own)
    assert not list((first.run_folder / "best_runs").glob("*")), "the finish is not the agent's"
    second = start_training(tmp_path, ("--max-frames", str(own[-1]["frames_total"] + 300)), **settings)
    assert second.process.wait(ENDS_WITHIN_S) == 0, second.output
    assert len(second.races) > len(own) + 1
    assert not any(race["is_demonstration"] for race in second.races[1:])
