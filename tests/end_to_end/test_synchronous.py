"""Synchronous trainings as commands: run twice, or interrupted by Ctrl-C and resumed, they are the same to the byte."""

import hashlib
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import StartTraining, TrainCommand

N_FRAMES = 2_500
STOPS_WITHIN_S = 60.0
SYNCHRONOUS: dict[str, object] = {"sampling": "'synchronous'", "n_collectors": 2, "cutoff_race_longer_than_ms": 8_000}


def digests(state: Any, name: str = "") -> dict[str, Any]:
    """All that a checkpoint holds, by its place, tensors as digests; but for the time that training took."""
    if isinstance(state, dict):
        entries = [digests(value, f"{name}/{key}") for key, value in state.items() if key != "training_s"]
        return {place: digest for entry in entries for place, digest in entry.items()}
    if isinstance(state, list):
        return digests(dict(enumerate(state)), name)
    if isinstance(state, torch.Tensor):
        return {name: hashlib.sha256(state.contiguous().numpy().tobytes()).hexdigest()}
    return {name: state}


def what_came_out(command: TrainCommand) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The race log without times and sessions, and the checkpoint."""
    races = [{k: v for k, v in race.items() if k not in ("wall_s", "session")} for race in command.races]
    return races, digests(torch.load(command.run_folder / "checkpoint.pt", weights_only=True))


def finish(start_training: StartTraining, folder: Path, **settings: object) -> TrainCommand:
    command = start_training(folder, ("--max-frames", str(N_FRAMES)), **SYNCHRONOUS, **settings)
    assert command.process.wait(300) == 0, command.output
    return command


@pytest.mark.slow
@pytest.mark.parametrize("game_transport", ["in_process", "socket"])
def test_the_same_seed_gives_the_same_files(start_training: StartTraining, tmp_path: Path, game_transport: str) -> None:
    transport: dict[str, object] = {"game_transport": repr(game_transport)}
    races, state = what_came_out(finish(start_training, tmp_path / "once", **transport))
    assert len(races) >= 8
    assert state["/state/agent/updates"] > 50
    assert what_came_out(finish(start_training, tmp_path / "again", **transport)) == (races, state)

    folder = tmp_path / "interrupted"
    interrupted = start_training(folder, **SYNCHRONOUS, **transport)
    interrupted.wait_for_races(3)
    assert interrupted.stop(signal.SIGINT, whole_group=True) < STOPS_WITHIN_S
    assert interrupted.process.returncode == 0
    assert len(interrupted.races) < len(races)
    assert what_came_out(finish(start_training, folder, **transport)) == (races, state)
