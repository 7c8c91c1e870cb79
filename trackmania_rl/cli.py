"""Command lines: arguments and their types, exit codes, errors in one line, an orderly end."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, ParamSpec

from trackmania_rl.errors import ExitCode, PlainError, UserError

P = ParamSpec("P")


def command(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorate a command's main function, which returns an exit code or None for 0.

    A `PlainError` is printed in one line without a traceback (`FAILED`), Ctrl-C in one word (`INTERRUPTED`). Other
    errors are bugs and propagate.
    """
    return _returning_exit_code(main, lambda _: ExitCode.FAILED)


def watched_command(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorate as `command` does, but exit with the error's own code."""
    return _returning_exit_code(main, lambda error: error.exit_code)


def _returning_exit_code(main: Callable[P, int | None], code_of: Callable[[PlainError], ExitCode]) -> Callable[P, int]:
    @functools.wraps(main)
    def exit_code(*arguments: P.args, **named: P.kwargs) -> int:
        _open_closed_streams()
        for stream in (sys.stdout, sys.stderr):  # names may have letters that the terminal has not
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(*arguments, **named) or 0
            sys.stdout.flush()
            return code
        except PlainError as error:
            print(f"error: {error}", file=sys.stderr)
            return code_of(error)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return ExitCode.INTERRUPTED
        except BrokenPipeError:  # as by `| head`
            discard_output()
            return ExitCode.FAILED

    return exit_code


def _open_closed_streams() -> None:
    """Replace closed standard streams (`>&-`) by the null device: the next opened file would get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def discard_output() -> None:
    """Discard unwritten output, which the interpreter would otherwise write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_in_order_when_terminated() -> None:
    """Handle SIGTERM as Ctrl-C, so that context managers end their games."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


DEFAULT: Final = "default"
"""config.py, on which the others are based."""


def preset_files(folder: Path) -> dict[str, Path]:
    """List the configurations of a folder by their short names, the default one first."""
    others = {file.stem.removeprefix("config_"): file for file in sorted(folder.glob("config_*.py"))}
    return {DEFAULT: folder / "config.py"} | others


def presets_text(folder: Path) -> str:
    """Write a line for each configuration of a folder: its short name and first line."""
    files = preset_files(folder)
    width = max(map(len, files))
    return "\n".join(f"  {name:<{width}}  {_first_line(file)}" for name, file in files.items())


def _first_line(file: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8-sig"))) or ""
    except (OSError, SyntaxError, ValueError):  # loading reports it
        text = ""
    return text.partition("\n")[0].strip()


def add_configuration_arguments(parser: argparse.ArgumentParser, folder: Path) -> None:
    """Add `--config FILE` or `--preset NAME`, both as `config`, and `--set NAME=VALUE`; the help lists the presets."""
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
    """Return an argument type for integers from `lowest` to `highest`, both at least 0."""

    def read(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest} to {highest}")
        return int(text)

    return read


port = whole_number(1024, 65535)
"""A TCP port that needs no privileges."""


def ports(text: str) -> range:
    """Parse one or more consecutive TCP ports, written 8478 or 8478-8481."""
    first, dash, last = text.partition("-")
    found = range(port(first), port(last if dash else first) + 1)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return found


def size_px(text: str) -> tuple[int, int]:
    """Parse width and height of a video, written 640x480."""
    width, _, height = text.lower().partition("x")
    side = whole_number(2, 4096)
    return side(width), side(height)


FRAMES_PER_S: Final = (10, 20, 25, 50, 100)
"""Frame rates of videos that divide the game's clock of hundredths of a second."""


def add_video_options(parser: argparse.ArgumentParser) -> None:
    """Add `video_size`, `video_fps` and `no_overlay`."""
    add = parser.add_argument
    add("--video-size", type=size_px, default=(854, 480), metavar="WxH", help="in pixels (default 854x480)")
    add("--video-fps", type=int, choices=FRAMES_PER_S, default=50, help="pictures a second of race time (default 50)")
    add("--no-overlay", action="store_true", help="film the game's picture alone, without time, speed, gear and keys")


def mp4_file(text: str) -> Path:
    """Parse the name of an .mp4 file."""
    return _file_ending_in(".mp4", text)


def png_file(text: str) -> Path:
    """Parse the name of a .png file."""
    return _file_ending_in(".png", text)


def new_file(text: str) -> Path:
    """Parse the name of a file to write; its folder must exist."""
    file = Path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    return file


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Raise an `OSError` of the body as a `UserError` that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror or error}") from error


def _file_ending_in(ending: str, text: str) -> Path:
    if not text.lower().endswith(ending):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {ending}")
    return Path(text)
