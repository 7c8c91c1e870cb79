"""Findings of the doctor, and the machine and configuration that its checks read."""

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
from trackmania_rl.tmi_interaction.launchers.game_windows import WindowSystem, open_windows

GUIDE = "docs/troubleshooting.rst"
"""Has a section for each `Check`."""


class Level(StrEnum):
    """Severity: a problem keeps a run from starting or the game from being played, a warning may."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(StrEnum):
    """Subject of a finding. The values are anchors in docs/troubleshooting.rst."""

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
    """Result of a check.

    Attributes:
        check: its subject.
        level: its severity.
        text: one line: the facts and, unless all is well, the remedy.
    """

    check: Check
    level: Level
    text: str


def ok(check: Check, text: object) -> Finding:
    """Return a finding without a fault."""
    return Finding(check, Level.OK, str(text))


def warning(check: Check, text: object) -> Finding:
    """Return a finding that may cause a failure."""
    return Finding(check, Level.WARNING, str(text))


def problem(check: Check, text: object) -> Finding:
    """Return a finding that causes a failure, from a text or an exception."""
    return Finding(check, Level.PROBLEM, str(text))


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> str | None:
    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.get_device_name()}, {gib(torch.cuda.get_device_properties(0).total_memory)}"


def gib(size_bytes: int) -> str:
    """Return a size in GiB as text."""
    return f"{size_bytes / (1 << 30):.1f} GiB"


@dataclass(frozen=True)
class System:
    """Properties of a machine, by default this one.

    Attributes:
        platform: as `sys.platform` has it.
        name: operating system and version.
        n_cores: usable by this process.
        installed_version: version of a package, None if not installed.
        free_disk_bytes: of the disk that holds a folder.
        which: path of a program, None if missing.
        gpu: name and memory of the GPU, None if torch finds none.
        open_windows: raises `WindowError` if there are none.
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
    gpu: Callable[[], str | None] = _gpu
    open_windows: Callable[[], WindowSystem] = open_windows


@dataclass(frozen=True)
class Context:
    """Input of the checks.

    Attributes:
        settings: the configuration.
        output_folder: where the run writes.
        project: folder of requirements.txt and maps.
        system: the machine.
    """

    settings: Settings
    output_folder: Path
    project: Path
    system: System = field(default_factory=System)

    @property
    def maps_folder(self) -> Path:
        """Folder of tracks and reference lines."""
        return self.project / self.settings.game.maps_folder
