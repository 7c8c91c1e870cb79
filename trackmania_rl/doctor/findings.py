"""What a check says, and what it may look at."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil
import torch

from trackmania_rl.agents.devices import usable_cores
from trackmania_rl.settings import Settings
from trackmania_rl.tmi_interaction.launchers.game_windows import (
    WindowError,
    WindowSystem,
    open_windows,
)

GUIDE = "docs/troubleshooting.rst"
"""Has a section for each `Check`."""


class Level(StrEnum):
    """How bad it is: a problem keeps a run from starting or the game from being played, a warning may."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(StrEnum):
    """What is checked. The values are anchors in docs/troubleshooting.rst."""

    MACHINE = "machine"
    CONFIGURATION = "configuration"
    PYTHON = "python"
    PACKAGES = "packages"
    GPU = "gpu"
    MEMORY = "memory"
    FOLDER = "folder"
    DISK = "disk"
    MAPS = "maps"
    PORTS = "ports"
    CLUSTER = "cluster"
    GAME = "game"
    TMLOADER = "tmloader"
    PROFILE = "profile"
    GAME_COMMAND = "game-command"
    WINE = "wine"
    GAME_DOCUMENTS = "game-documents"
    PLUGIN = "plugin"
    LOGIN = "login"
    WINDOW = "window"
    PLAY_START = "play-start"
    PLAY_MAP = "play-map"
    PLAY_DRIVE = "play-drive"
    PLAY_FRAME = "play-frame"
    PLAY_SPEED = "play-speed"


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        check: what was checked.
        level: how bad it is.
        text: one line: what was found and, unless it is well, what to do.
    """

    check: Check
    level: Level
    text: str


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu_name() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _gpu_memory_bytes() -> int | None:
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


@dataclass(frozen=True)
class System:
    """This machine, as the checks see it; tests put another one in its place.

    Attributes:
        platform: as `sys.platform` has it.
        name: of the operating system, with its version.
        n_cores: of the processor, as far as this process may use them.
        python: (major, minor, micro).
        home: the user's folder.
        installed_version: a package's version, None if it is not installed.
        total_memory_bytes: all memory.
        available_memory_bytes: memory that processes may still take.
        free_disk_bytes: of the disk that holds a folder.
        which: a program's path, None if it is not there.
        gpu_name: of the GPU that torch finds, None without one.
        gpu_memory_bytes: of that GPU.
        open_windows: the window system.
    """

    platform: str = sys.platform
    name: str = field(default_factory=lambda: f"{platform.system()} {platform.release()}")
    n_cores: int = field(default_factory=usable_cores)
    python: tuple[int, int, int] = sys.version_info[:3]
    home: Path = field(default_factory=Path.home)
    installed_version: Callable[[str], str | None] = _installed_version
    total_memory_bytes: Callable[[], int] = lambda: psutil.virtual_memory().total
    available_memory_bytes: Callable[[], int] = lambda: psutil.virtual_memory().available
    free_disk_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    which: Callable[[str], str | None] = shutil.which
    gpu_name: Callable[[], str | None] = _gpu_name
    gpu_memory_bytes: Callable[[], int | None] = _gpu_memory_bytes
    open_windows: Callable[[], WindowSystem] = open_windows

    @property
    def is_windows(self) -> bool:
        """Whether it is Microsoft Windows."""
        return self.platform == "win32"

    def why_no_windows(self) -> str | None:
        """Why windows can be neither found nor shown; None if they can."""
        try:
            self.open_windows()
        except WindowError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class Context:
    """What a check may look at.

    Attributes:
        settings: the configuration.
        output_folder: where the run writes.
        project: the project's folder, where requirements.txt and maps are.
        system: this machine.
    """

    settings: Settings
    output_folder: Path
    project: Path
    system: System = field(default_factory=System)

    @property
    def maps_folder(self) -> Path:
        """Where tracks and reference lines are."""
        return self.project / self.settings.game.maps_folder


def ok(check: Check, text: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, text)


def warning(check: Check, text: str) -> Finding:
    """It may go wrong."""
    return Finding(check, Level.WARNING, text)


def problem(check: Check, text: object) -> Finding:
    """It cannot work; an exception stands for its text."""
    return Finding(check, Level.PROBLEM, str(text))
