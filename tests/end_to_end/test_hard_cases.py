"""Trainings under conditions that are rare or take long; `python -m pytest -m slow tests/end_to_end` runs them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from trackmania_rl.checkpoints import find_manifests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STOPS_WITHIN_S = 10.0

IMAGE = {
    "image_width_px": 64,
    "image_height_px": 48,
    "conv_channels": "(4, 8)",
    "conv_kernel_sizes": "(4, 3)",
    "conv_strides": "(4, 2)",
}


def frames_saved(run_folder: Path) -> int:
    return max((manifest.frames for manifest in find_manifests(run_folder).values()), default=0)


def is_gone(path: str) -> bool:
    return not Path(path).exists()


@pytest.mark.parametrize("transport", ["socket", "in_process"])
@pytest.mark.parametrize("delay_s", [0.3, 1.5, 3.0, 4.5, 6.0, 8.0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_during_start_up(
    start_training: Any, tmp_path: Path, delay_s: float, number: signal.Signals, transport: str
) -> None:
    command = start_training(
        tmp_path, environment={"NUMBA_CACHE_DIR": str(tmp_path / "numba")}, game_transport=repr(transport)
    )
    time.sleep(delay_s)
    seconds = command.stop(number, whole_group=number == signal.SIGINT)
    print(f"{number.name} after {delay_s} s: {seconds:.2f} s, exit code {command.process.returncode}")
    assert "Traceback" not in command.output, command.output
    assert "leaked" not in command.output, command.output
    assert seconds < STOPS_WITHIN_S
    assert not command.survivors()
    # Before Python has come to the command's own first lines, a signal does what it always does.
    assert command.process.returncode in (0, 130, -number), command.output


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="compiling needs a C++ compiler")
@pytest.mark.parametrize("delay_s", [0.5, 4.0, 9.0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_while_the_update_is_compiled(
    start_training: Any, tmp_path: Path, delay_s: float, number: signal.Signals
) -> None:
    command = start_training(
        tmp_path, environment={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}, use_torch_compile=True
    )
    command.wait_for(lambda: "compiling the update" in command.output, "compiling")
    time.sleep(delay_s)
    seconds = command.stop(number, whole_group=number == signal.SIGINT)
    print(f"{number.name} {delay_s} s into compiling: {seconds:.2f} s")
    assert "Traceback" not in command.output, command.output
    assert seconds < STOPS_WITHIN_S
    assert not command.survivors()
    assert command.process.returncode == 0, command.output
    assert find_manifests(command.run_folder)


@pytest.mark.parametrize("transport", ["socket", "in_process"])
def test_a_killed_main_process_leaves_nothing_but_its_last_checkpoint(
    start_training: Any, tmp_path: Path, transport: str
) -> None:
    settings = {"game_transport": repr(transport), "n_collectors": 2, "checkpoint_interval_s": 1.0}
    command = start_training(tmp_path, **settings)
    command.wait_for_races(6)
    n_frames = command.races[-1]["frames_total"]
    command.wait_for(lambda: frames_saved(command.run_folder) >= n_frames, "a checkpoint of them")
    shared_memory = command.shared_memory()
    seconds = command.stop(signal.SIGKILL)
    print(f"all gone {seconds:.2f} s after the main process was killed")
    assert shared_memory
    assert all(map(is_gone, shared_memory))
    assert not command.survivors()
    assert seconds < STOPS_WITHIN_S

    resumed = start_training(tmp_path, **settings)
    resumed.wait_for_races(2)
    assert resumed.stop(signal.SIGTERM) < STOPS_WITHIN_S
    said = re.search(r"resumed .* at frame ([\d,]+)", resumed.output)
    assert said is not None, resumed.output
    assert int(said[1].replace(",", "")) >= n_frames


def test_a_game_that_hangs_is_replaced(start_training: Any, tmp_path: Path) -> None:
    command = start_training(tmp_path, game_transport="'socket'", games_per_collector=1, tmi_protection_timeout_s=5.0)
    command.wait_for_races(2)
    hung = command.games()[0]
    hung.suspend()
    n_races = len(command.races)
    seconds = command.wait_for(lambda: len(command.races) > n_races + 1, "another race")
    print(f"races go on {seconds:.1f} s after the game hung")
    assert seconds < 40
    assert hung not in command.games()

    command.games()[0].suspend()
    assert command.stop(signal.SIGINT, whole_group=True) < STOPS_WITHIN_S
    assert command.process.returncode == 0
    assert not command.survivors()


def test_games_that_hang_hold_up_neither_others_nor_the_end(start_training: Any, tmp_path: Path) -> None:
    command = start_training(tmp_path, game_transport="'socket'", games_per_collector=3)
    command.wait_for(lambda: len(command.games()) == 3, "three games")
    command.wait_for_races(6)
    for hung in command.games()[:2]:
        hung.suspend()
    command.wait_for_races(6)
    assert command.stop(signal.SIGINT, whole_group=True) < STOPS_WITHIN_S
    assert command.process.returncode == 0
    assert not command.survivors()


def test_two_trainings_side_by_side(start_training: Any, tmp_path: Path) -> None:
    commands = [start_training(tmp_path / name, game_transport="'socket'") for name in ("one", "two")]
    for command in commands:
        command.wait_for_races(3)
    assert all(command.stop(signal.SIGTERM) < STOPS_WITHIN_S for command in commands)
    assert [command.process.returncode for command in commands] == [0, 0]


@pytest.mark.parametrize(
    "settings",
    [
        IMAGE,
        IMAGE | {"game_transport": "'socket'"},
        {"n_collectors": 2},
        {"n_collectors": 2, "game_transport": "'socket'"},
        {"prio_alpha": 0.6},
        {"checkpoint_holds_replay": False},
    ],
    ids=["image", "image over socket", "two collectors", "two over socket", "prioritized", "no replay kept"],
)
def test_it_trains_and_resumes_with(start_training: Any, tmp_path: Path, settings: dict[str, object]) -> None:
    command = start_training(tmp_path, **settings)
    command.wait_for_races(12)
    assert {race["collector"] for race in command.races} == set(range(int(str(settings.get("n_collectors", 1)))))
    assert command.stop(signal.SIGINT, whole_group=True) < STOPS_WITHIN_S
    resumed = start_training(tmp_path, **settings)
    resumed.wait_for_races(3)
    assert resumed.stop(signal.SIGTERM) < STOPS_WITHIN_S
    assert [command.process.returncode, resumed.process.returncode] == [0, 0]
    assert "resumed" in resumed.output
    assert "Traceback" not in command.output + resumed.output
    assert not command.survivors() + resumed.survivors()


@pytest.mark.parametrize("transport", ["socket", "in_process"])
def test_memory_stays_flat(start_training: Any, tmp_path: Path, transport: str) -> None:
    command = start_training(tmp_path, game_transport=repr(transport), checkpoint_interval_s=10.0)
    command.wait_for_races(20)
    processes = [psutil.Process(command.process.pid), *command.children("")]
    samples = []
    for _ in range(7):
        time.sleep(25)
        samples.append([process.memory_info().rss >> 20 for process in processes])
    print(*samples, f"{len(command.races)} races", sep="\n")
    assert command.stop(signal.SIGTERM) < STOPS_WITHIN_S
    growth_mb = [last - middle for middle, last in zip(samples[1], samples[-1], strict=True)]
    assert max(growth_mb) < 40, samples
