"""Runs with analog actions: a demonstration, then races of an agent that decides on numbers, by both transports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ENDS_WITHIN_S = 240.0
SAC = {
    "actions": "analog",
    "agent": "trackmania_rl.agents.torchrl_agent:SAC",
    "gamma_schedule": "((0, 0.98),)",
    "temporal_mini_race_duration_actions": None,
    "expected_reward_per_action": 0.0,
    "return_bounds_per_action": None,
    "min_horizon_to_update_priority_actions": None,
}


def test_an_agent_that_chooses_among_keys_is_told(start_training: Any, tmp_path: Path) -> None:
    run = start_training(tmp_path, actions="analog")
    assert run.process.wait(ENDS_WITHIN_S) == 78
    assert "chooses among a few actions, Discrete(A), but the games take Box(-1.0, 1.0, (3,), float32)" in run.output
    assert not run.run_folder.exists() or not (run.run_folder / "config" / "config.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["in_process", "socket"])
def test_numbers_are_driven_recorded_and_learned_from(
    start_training: Any, tmp_path: Path, scripted_inputs: Path, transport: str
) -> None:
    settings = SAC | {
        "game_transport": repr(transport),
        "demonstrations": repr(({"map_name": "valley", "inputs": str(scripted_inputs)},)),
        "cutoff_race_longer_than_ms": 40_000,
    }
    first = start_training(tmp_path, ("--max-frames", "1500"), **settings)
    assert first.process.wait(ENDS_WITHIN_S) == 0, first.output
    demonstration, *own = first.races
    assert demonstration["race_finished"]
    assert "605 of its 605 actions are exactly its inputs" in first.output
    second = start_training(tmp_path, ("--max-frames", str(own[-1]["frames_total"] + 300)), **settings)
    assert second.process.wait(ENDS_WITHIN_S) == 0, second.output
    assert len(second.races) > len(own) + 1
