"""The configurations that ship, by short names: `lidar` is config_files/config_lidar.py."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

DEFAULT: Final = "default"
"""config.py, on which the others are based."""


def preset_files(folder: Path) -> dict[str, Path]:
    """List the configurations of a folder by their short names, the default one first."""
    others = {file.stem.removeprefix("config_"): file for file in sorted(folder.glob("config_*.py"))}
    return {DEFAULT: folder / "config.py"} | others


def presets_text(folder: Path) -> str:
    """Write a line for each configuration of a folder: its short name, and what it says of itself."""
    files = preset_files(folder)
    width = max(map(len, files))
    return "\n".join(f"  {name:<{width}}  {_first_line(file)}" for name, file in files.items())


def _first_line(file: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8-sig"))) or ""
    except (OSError, SyntaxError, ValueError):  # a user's own, of which loading complains
        text = ""
    return text.partition("\n")[0].strip()
