"""A run that begins with a demonstration: driven first and once, over both transports, by keys and analog actions."""

from __future__ import annotations

import pytest

SAC = {
    "actions": "analog",
    "agent": "trackmania_rl.agents.torchrl_agent:SAC",
    "gamma_schedule": "((0, 0.98),)",
    "temporal_mini_race_duration_actions": None,
    "expected_reward_per_action": 0.0,
}


@pytest.mark.slow
@pytest.mark.parametrize("agent", [{}, SAC], ids=["keys", "analog"])
@pytest.mark.parametrize("transport", ["in_process", "socket"])
def test_a_demonstration_is_the_first_race_of_a_new_run_only(
    start_training, tmp_path, scripted_inputs, transport, agent
):
    settings = agent | {
        "game_transport": repr(transport),
        "demonstrations": repr(({"map_name": "valley", "inputs": str(scripted_inputs)},)),
        "cutoff_race_longer_than_ms": 40_000,
    }
    first = start_training(tmp_path, ("--max-frames", "1500"), **settings)
    assert first.process.wait(240) == 0, first.output
    demonstration, *own = first.races
    assert demonstration["is_demonstration"]
    assert demonstration["race_finished"]
    assert "scripted.inputs on valley: finished" in first.output
    if agent:
        assert "605 of its 605 actions are exactly its inputs" in first.output
    assert not any(race["is_demonstration"] for race in own)
    if not any(race["race_finished"] for race in own):
        assert not list((first.run_folder / "best_runs").glob("*")), "the demonstration's finish is not the agent's"
    second = start_training(tmp_path, ("--max-frames", str(own[-1]["frames_total"] + 300)), **settings)
    assert second.process.wait(240) == 0, second.output
    assert len(second.races) > len(own) + 1
    assert not any(race["is_demonstration"] for race in second.races[1:])
