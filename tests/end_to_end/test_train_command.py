"""One training over sockets: started, disturbed, stopped and resumed; each test looks at one thing that happened."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.checkpoints import find_manifests

FIRST_RACE_WITHIN_S = 120.0
STOPS_WITHIN_S = 10.0

EDITS = {"epsilon": "tau_epsilon_boltzmann = 0.02", "wrong": "batch_size = -5", "structure": "float_hidden_dim = 20"}


@dataclass
class Story:
    """What was seen of the two commands.

    Attributes:
        first: output of the first command, which Ctrl-C ended; second: of the one that resumed, which SIGTERM ended.
        log: train.log after both.
        seconds: what took how long.
        exit_codes: of the two commands.
        survivors: processes that outlived them.
        frames: frames in races.jsonl when the first ended, and after it was resumed.
        shared_memory_left: names that still exist.
        has_checkpoint: after the first command.
    """

    first: str = ""
    second: str = ""
    log: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    exit_codes: list[int | None] = field(default_factory=list)
    survivors: list[Any] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    shared_memory_left: list[str] = field(default_factory=list)
    has_checkpoint: bool = False


def lose_a_race(command: Any) -> None:
    """Kill games until one was in a race; one that ends between two races is replaced without a word about a race."""
    while "attempt 1 of 3" not in command.output:
        n_starts = command.output.count("starting a game")
        command.games()[0].kill()
        command.wait_for(lambda n=n_starts: command.output.count("starting a game") > n, "another game in the log")
        command.wait_for_races()


@pytest.fixture(scope="module")
def story(start_training: Any, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder, seen = tmp_path_factory.mktemp("run"), Story()
    command = start_training(folder, game_transport="'socket'")
    seen.seconds["first race"] = command.wait_for_races(4)

    config_file = command.run_folder / "config" / "config.py"
    for name, said in (("epsilon", "tau_epsilon_boltzmann"), ("wrong", "not applied"), ("structure", "wait for")):
        before = config_file.read_text()
        config_file.write_text(f"{before}\n{EDITS[name]}\n")
        command.wait_for(lambda said=said: said in command.output, f"{said!r} in the log")
        if name == "wrong":
            config_file.write_text(before)
    config_file.write_text(config_file.read_text().replace(EDITS["structure"], ""))

    lose_a_race(command)
    seen.seconds["race after the game was killed"] = command.wait_for_races(2)

    shared_memory = command.shared_memory()
    assert shared_memory
    victim, victims_game = command.collectors()[0], command.games()[0]
    victim.kill()
    command.wait_for(lambda: command.collectors() and command.collectors() != [victim], "another collector")
    seen.seconds["race after the collector was killed"] = command.wait_for_races(2)
    seen.survivors += [process for process in (victim, victims_game) if process in command.children("")]
    seen.shared_memory_left += [path for path in shared_memory if Path(path).exists()]

    shared_memory = command.shared_memory()
    assert shared_memory
    seen.seconds["Ctrl-C"] = command.stop(signal.SIGINT, whole_group=True)
    seen.shared_memory_left += [path for path in shared_memory if Path(path).exists()]
    seen.has_checkpoint = bool(find_manifests(command.run_folder))
    seen.frames.append(command.races[-1]["frames_total"])

    resumed = start_training(folder, game_transport="'socket'")
    resumed.wait_for_races(2)
    seen.seconds["SIGTERM"] = resumed.stop(signal.SIGTERM)
    seen.frames.append(resumed.races[-1]["frames_total"])
    seen.first, seen.second = command.output, resumed.output
    seen.log = (command.run_folder / "train.log").read_text()
    seen.exit_codes = [command.process.returncode, resumed.process.returncode]
    seen.survivors += command.survivors() + resumed.survivors()
    return seen


def test_races_are_driven_soon(story: Story) -> None:
    assert story.seconds["first race"] < FIRST_RACE_WITHIN_S


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_it_ends_in_time(story: Story, how: str) -> None:
    assert story.seconds[how] < STOPS_WITHIN_S


def test_nothing_is_left_behind(story: Story) -> None:
    assert story.exit_codes == [0, 0]
    assert not story.survivors
    assert not story.shared_memory_left
    assert story.has_checkpoint


def test_no_traceback_is_shown(story: Story) -> None:
    assert "Traceback" not in story.first + story.second
    assert "leaked" not in story.first + story.second


def test_the_log_names_the_day_and_the_terminal_the_time_of_day(story: Story) -> None:
    first_line = story.log.splitlines()[0]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ ", first_line)
    assert first_line.partition(" ")[2] in story.first.splitlines()


def test_killed_games_and_collectors_are_replaced(story: Story) -> None:
    assert "attempt 1 of 3" in story.first
    assert "collector 0 died (exit code -9)" in story.first


def test_edits_of_the_configuration_are_told(story: Story) -> None:
    assert "configuration: tau_epsilon_boltzmann = 0.02 (was 0.01)" in story.first
    assert "the last good one stays" in story.first
    assert "these settings wait for the next start: float_hidden_dim" in story.first


def test_the_same_command_goes_on(story: Story) -> None:
    assert "resumed" in story.second
    assert f"at frame {story.frames[0]:,}" in story.second
    assert story.frames[1] > story.frames[0]
