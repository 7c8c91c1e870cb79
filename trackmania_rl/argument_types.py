"""Command-line arguments that several scripts take, and their types: `parser.add_argument("--port", type=port)`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trackmania_rl.presets import preset_files, presets_text


def add_configuration_arguments(parser: argparse.ArgumentParser, folder: Path) -> None:
    """Let a command choose its configuration: `--config FILE` or `--preset NAME`, and `--set NAME=VALUE`.

    Args:
        parser: whose text after the options lists the presets; both give the argument `config`.
        folder: of the configurations that ship.
    """
    which = parser.add_mutually_exclusive_group()
    default = folder / "config.py"
    which.add_argument("--config", type=Path, metavar="FILE", default=default, help="configuration file")
    preset = "a configuration that ships, by its short name: see below"
    which.add_argument("--preset", type=_preset_of(folder), dest="config", metavar="NAME", help=preset)
    override = "override a setting; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=override)
    parser.epilog = f"presets, each the configuration file of its name in {folder.name}/:\n{presets_text(folder)}"


def _preset_of(folder: Path) -> Callable[[str], Path]:
    def preset(name: str) -> Path:
        files = preset_files(folder)
        if name not in files:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(files)}")
        return files[name]

    return preset


def whole_number(lowest: int, highest: int = 1_000_000) -> Callable[[str], int]:
    """A type for whole numbers from `lowest` to `highest`, neither of them below 0."""

    def read(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest} to {highest}")
        return int(text)

    return read


port = whole_number(1024, 65535)
"""A TCP port that needs no privileges."""


def ports(text: str) -> range:
    """One or more TCP ports in a row, written 8478 or 8478-8481."""
    first, dash, last = text.partition("-")
    found = range(port(first), port(last if dash else first) + 1)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return found


def size_px(text: str) -> tuple[int, int]:
    """Width and height of a video, written 640x480."""
    width, _, height = text.lower().partition("x")
    side = whole_number(2, 4096)
    return side(width), side(height)


FRAMES_PER_S: Final = (10, 20, 25, 50, 100)
"""Of a video: the game's clock counts hundredths of a second."""


def add_video_options(parser: argparse.ArgumentParser) -> None:
    """Add what a race's video may look like: `video_size`, `video_fps` and `no_overlay`."""
    add = parser.add_argument
    add("--video-size", type=size_px, default=(854, 480), metavar="WxH", help="in pixels (default 854x480)")
    add("--video-fps", type=int, choices=FRAMES_PER_S, default=50, help="pictures a second of race time (default 50)")
    add("--no-overlay", action="store_true", help="film the game's picture alone, without time, speed, gear and keys")


def mp4_file(text: str) -> Path:
    """A file whose name ends in .mp4."""
    return _file_ending_in(".mp4", text)


def png_file(text: str) -> Path:
    """A file whose name ends in .png."""
    return _file_ending_in(".png", text)


def new_file(text: str) -> Path:
    """A file that is written when the work is done; its folder has to be there before."""
    file = Path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    return file


def _file_ending_in(ending: str, text: str) -> Path:
    if not text.lower().endswith(ending):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {ending}")
    return Path(text)
