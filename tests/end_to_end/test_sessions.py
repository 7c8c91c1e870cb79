"""Several sessions of one run, ended in order or killed: the map cycle goes on, and no race counts twice."""

import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.checkpoints import load_checkpoint

from .conftest import StartTraining, TrainCommand

N_REPEATED = 12
CYCLE = tuple(
    {"map_name": name, "map_path": f"{name}.toml", "reference_line": f"{name}_0.5m.npy"}
    | {"is_explo": True, "fill_buffer": True, "repeat": N_REPEATED}
    for name in ("valley", "ring", "kart")
)


def _require_that_file_and_statistics_agree(command: TrainCommand) -> None:
    state = load_checkpoint(command.run_folder)
    assert state is not None
    counted, races = state["hooks"]["CountRaces"], command.races
    assert counted["races_total"] == len(races)
    assert counted["frames_total"] == state["frames"] == races[-1]["frames_total"]
    assert (np.diff([race["frames_total"] for race in races]) > 0).all()
    n_of_map = {name: of["explored"]["n_races"] for name, of in counted["maps"].items()}
    assert n_of_map == Counter(race["map"] for race in races)


@pytest.mark.slow
def test_short_sessions_drive_the_whole_map_cycle(start_training: StartTraining, tmp_path: Path) -> None:
    for session in range(4):
        command = start_training(
            tmp_path,
            map_cycle=repr(CYCLE),
            number_times_single_memory_is_used_before_discard=0.1,
            cutoff_no_progress_within_ms=1000,
            checkpoint_interval_s=0.3,
        )
        command.wait_for_races(N_REPEATED if session > 0 else N_REPEATED // 2)
        assert {race["session"] for race in command.races} <= set(range(1, session + 2))
        if session == 1:
            command.stop(signal.SIGKILL)
            continue
        command.stop(signal.SIGINT, whole_group=True)
        assert command.process.returncode == 0, command.output
        _require_that_file_and_statistics_agree(command)
    assert list(dict.fromkeys(race["map"] for race in command.races))[:3] == ["valley", "ring", "kart"]
