"""Command lines of scripts/tools, run in this process, and their inputs."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from trackmania_rl.protocol.input_script import events_of_keys, write_input_script
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.simulator.physics.scripted_driver import DECISION_MS, FAST_DRIVER, DriverSettings, drive
from trackmania_rl.simulator.tracks.track_file import load_track

Tool = Callable[..., int]


@pytest.fixture(scope="session")
def tool(script_module: Callable[[str], ModuleType]) -> Tool:
    """`tool("NAME", *words)` runs `python scripts/tools/NAME.py ...`; returns the exit code."""
    return lambda name, *words: script_module(f"tools/{name}").main([str(word) for word in words])


@pytest.fixture(scope="module")
def maps(script_module: Callable[[str], ModuleType]) -> Tool:
    """`maps(*words)` runs `python scripts/tools/maps.py ...`; returns the exit code."""
    module = script_module("tools/maps")
    return lambda *words: module.main([str(word) for word in words])


@pytest.fixture
def config(repository_root: Path, tmp_path: Path) -> Path:
    """A copy of the default configuration."""
    return Path(shutil.copytree(repository_root / "config_files", tmp_path / "config_files")) / "config.py"


@pytest.fixture(scope="session")
def write_race(repository_root: Path) -> Callable[..., int]:
    """`write_race(track, file, driver)` writes the inputs of the scripted driver's race; returns its time in ms."""

    def write(track: str, file: Path, driver: DriverSettings = FAST_DRIVER) -> int:
        race = drive(load_track(repository_root / "maps" / f"{track}.toml"), driver)
        keys = [KeyState(accelerate=gas, brake=brake, left=left, right=right) for gas, brake, left, right in race.keys]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(write_input_script(events_of_keys(zip(itertools.count(0, DECISION_MS), keys))))
        return race.race_time_ms

    return write


@pytest.fixture(scope="session")
def kart_inputs(write_race: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inputs file that finishes the track kart."""
    file = tmp_path_factory.mktemp("inputs") / "kart_20590.inputs"
    write_race("kart", file)
    return file
