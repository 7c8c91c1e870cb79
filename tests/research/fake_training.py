"""A training that takes no time: the nearer its learning rate is to one, the better; each piece adds to its weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.run_log import write_races
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.store import CheckpointFacts, CheckpointStore
from trackmania_rl.settings import parse_override

BEST_RATE = 1e-3
RACE_MS = 20_000


def option(command: Sequence[str], name: str) -> str:
    return command[list(command).index(name) + 1]


def settings_of(command: Sequence[str]) -> dict[str, object]:
    words = list(command)
    texts = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    return dict(map(parse_override, texts))


def fake_training(
    command: Sequence[str], terminal_file: Path, working_folder: Path, race_log: Path, piece_s: float
) -> int:
    """Write the files of `scripts/train.py`: a checkpoint, races and the number of sessions."""
    settings = settings_of(command)
    folder = Path(option(command, "--output-folder")) / "save" / str(settings["run_name"])
    if (loaded := load_checkpoint(folder)) is not None:
        before = loaded.state
    else:
        before = {"agent": {"online": {"w": torch.full((3,), float(folder.name[-1]))}}, "frames": 0}
    schedule = settings["lr_schedule"]
    assert isinstance(schedule, tuple)
    frames = before["frames"] + 100
    state = {"agent": {"online": {"w": before["agent"]["online"]["w"] + 1}}, "frames": frames}
    folder.mkdir(parents=True, exist_ok=True)
    CheckpointStore(folder).save(state, 0, CheckpointFacts(frames=frames), keep=2)
    session_file = folder / "sessions.txt"
    session = 1 + (int(session_file.read_text()) if session_file.exists() else 0)
    session_file.write_text(f"{session}\n")
    error = abs(math.log(schedule[0][1] / BEST_RATE))
    race = {
        "session": session,
        "wall_s": 7.0,
        "frames_total": frames,
        "map": "valley",
        "is_explo": False,
        "race_finished": True,
        "race_time_ms": round(RACE_MS * (1 + error)),
        "is_demonstration": False,
    }
    write_races(folder / "run.sqlite", [race])
    terminal_file.write_text(f"trained {session}\n")
    return 0
