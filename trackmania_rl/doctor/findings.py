"""The doctor's findings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trackmania_rl.settings import Settings

GUIDE = "docs/troubleshooting.rst"
"""Has a section for each `Check`."""


class Level(StrEnum):
    """Severity: a problem keeps a run from starting or the game from being played, a warning may."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(StrEnum):
    """A finding's subject. The values are anchors in docs/troubleshooting.rst."""

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
    LEARNER = "learner"
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
    """A check's result in one line: the facts and, unless all is well, the remedy."""

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


@dataclass(frozen=True)
class Context:
    """Checked configuration, run folder, and folder with requirements.txt and maps."""

    settings: Settings
    output_folder: Path
    project: Path

    @property
    def maps_folder(self) -> Path:
        """Folder with tracks and reference lines."""
        return self.project / self.settings.game.maps_folder
