"""Command lines: argument types, exit codes, one-line errors and termination."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import ipaddress
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, ParamSpec

from trackmania_rl.errors import ExitCode, PlainError, UserError
from trackmania_rl.files import read_bounded_text

log = logging.getLogger(__name__)

P = ParamSpec("P")

TOKEN_VARIABLE: Final = "TRACKMANIA_WORKER_TOKEN"
MOST_TOKEN_BYTES: Final = 4096
SHORTEST_TOKEN: Final = 16


def command(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorate a command's main function, which returns an exit code or None for 0.

    Print a `PlainError` in one line without a traceback and return the exit code. Print Ctrl-C in one word
    (`INTERRUPTED`). Other errors are bugs and propagate.
    """

    @functools.wraps(main)
    def exit_code(*arguments: P.args, **named: P.kwargs) -> int:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set for the imports
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _open_closed_streams()
        for stream in (sys.stdout, sys.stderr):  # names may have letters that the terminal lacks
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(*arguments, **named) or 0
            sys.stdout.flush()
            return code
        except PlainError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return ExitCode.INTERRUPTED
        except BrokenPipeError:  # e.g. by `| head`
            discard_output()
            return ExitCode.FAILED

    return exit_code


def _open_closed_streams() -> None:
    """Replace closed standard streams (`>&-`) by the null device: the next opened file would get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def discard_output() -> None:
    """Discard unwritten output, which the interpreter would write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_in_order_when_terminated() -> None:
    """Handle SIGTERM as Ctrl-C, so context managers end their games."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def preset_files(folder: Path) -> dict[str, Path]:
    """List a folder's configurations by short name, first config.py, the others' base."""
    others = {file.stem.removeprefix("config_"): file for file in sorted(folder.glob("config_*.py"))}
    return {"default": folder / "config.py"} | others


def add_configuration_arguments(parser: argparse.ArgumentParser, folder: Path) -> None:
    """Add `--config FILE` or `--preset NAME`, both as `config`, and `--set NAME=VALUE`; the help lists the presets."""
    files = preset_files(folder)

    def preset(name: str) -> Path:
        if name not in files:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(files)}")
        return files[name]

    which = parser.add_mutually_exclusive_group()
    default = files["default"]
    which.add_argument("--config", type=Path, metavar="FILE", default=default, help="configuration file")
    help_text = "a configuration that ships, by its short name: see below"
    which.add_argument("--preset", type=preset, dest="config", metavar="NAME", help=help_text)
    override = "override a setting; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=override)
    first_lines = {name: re.search('^"""(.*)', file.read_text("utf-8", "replace")) for name, file in files.items()}
    lines = [f"  {name:<13} {line[1] if line else ''}".rstrip() for name, line in first_lines.items()]
    parser.epilog = "\n".join([f"presets, each the configuration file of its name in {folder.name}/:", *lines])


def parse_with_plain_words(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; settings may be written as `name=value` and `--name value`, and save/RUN names a run.

    Raises:
        UserError: for a word that is no option; it names the way.
    """
    from trackmania_rl.runs.folder import SETTINGS_FILE, is_run
    from trackmania_rl.settings.descriptions import OTHER_WORDS, hint  # not needed by other commands
    from trackmania_rl.settings.groups import FIELDS

    def is_named(folder: Path) -> bool:
        return is_run(folder) and folder.absolute().parent.name == "save"

    arguments, words = parser.parse_known_args()
    translated: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        ours = OTHER_WORDS.get(name, name)
        if word == "--resume":
            if not (words and is_named(Path(words[0]))):
                raise UserError("--resume: leave it out: the same command resumes a run; train.py save/RUN does, too")
        elif is_named(run := Path(word)):
            run = run.absolute()
            translated += ["--config", str(run / SETTINGS_FILE), "--output-folder", str(run.parent.parent)]
            translated += ["--set", f"run_name={run.name}"]
        elif (ours in FIELDS or ours == "--max-frames") and (equals or (word.startswith("--") and words)):
            value = value if equals else words.pop(0)
            translated += ["--set", f"{ours}={value}"] if ours in FIELDS else [ours, value]
        elif "/" in word or os.sep in word:
            raise UserError(f"{word}: there is no such run folder; a training makes save/{{run_name}}")
        else:
            nearest = hint(name, re.findall("--[a-z-]+", parser.format_usage()))
            raise UserError(f"{word}: no option, setting or run folder{nearest or '; --help lists the options'}")
    return parser.parse_args(translated, arguments)


def whole_number(lowest: int, highest: int = 1_000_000) -> Callable[[str], int]:
    """Return an argument type for integers from `lowest` (at least 0) to `highest`."""

    def read(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest} to {highest}")
        return int(text)

    return read


port = whole_number(1024, 65535)
"""A TCP port that needs no privileges."""


def size_px(text: str) -> tuple[int, int]:
    """Parse a video's width and height, e.g. 640x480."""
    width, _, height = text.lower().partition("x")
    side = whole_number(2, 4096)
    return side(width), side(height)


def add_video_options(parser: argparse.ArgumentParser) -> None:
    """Add `video_size`, `video_fps` and `no_overlay`."""
    add = parser.add_argument
    add("--video-size", type=size_px, default=(854, 480), metavar="WxH", help="in pixels (default 854x480)")
    rates = (10, 20, 25, 50, 100)  # the game's clock counts hundredths of a second
    add("--video-fps", type=int, choices=rates, default=50, help="pictures a second of race time (default 50)")
    add("--no-overlay", action="store_true", help="film the game's picture alone, without time, speed, gear and keys")


def worker_token(file: Path | None) -> str:
    """Return the workers' token: a file's text, or `TRACKMANIA_WORKER_TOKEN`; empty for none.

    Raises:
        UserError: if the file cannot be read, or the packages for workers are missing.
    """
    if find_spec("grpc") is None or find_spec("zstandard") is None:
        raise UserError('workers need two more packages: python -m pip install "trackmania-rl[worker]"')
    token = os.environ.get(TOKEN_VARIABLE, "") if file is None else read_bounded_text(file, MOST_TOKEN_BYTES).strip()
    if not token.isascii() or not token.isprintable():
        raise UserError("the token of workers has other letters than those of ASCII: make it with openssl rand -hex 32")
    if file is not None and os.name == "posix" and file.stat().st_mode & 0o077:
        log.warning("%s: other users of this machine can read the token: chmod 600 %s", file, file)
    if 0 < len(token) < SHORTEST_TOKEN or (file is not None and not token):
        raise UserError(
            f"the token of workers has {len(token)} letters, which others can guess: make it with openssl rand -hex 32"
        )
    return token


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options with which a worker finds the learner: `connect`, `token_file`, `certificate` and `insecure`."""
    add = parser.add_argument
    add("--connect", metavar="https://HOST:PORT", help="address of train.py --workers")
    add("--token-file", type=Path, metavar="FILE", help=f"holds the learner's token (default: {TOKEN_VARIABLE})")
    add("--certificate", type=Path, metavar="FILE", help="the learner's certificate, unless an authority signed it")
    add("--insecure", action="store_true", help="connect without TLS to another machine")


def file_ending_in(ending: str) -> Callable[[str], Path]:
    """Return an argument type for file names that end in `ending`, e.g. ".mp4"."""

    def read(text: str) -> Path:
        if not text.lower().endswith(ending):
            raise argparse.ArgumentTypeError(f"{text!r} does not end in {ending}")
        return Path(text)

    return read


mp4_file = file_ending_in(".mp4")
png_file = file_ending_in(".png")


def new_file(text: str) -> Path:
    """Parse a file name to write, in an existing folder."""
    file = Path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    return file


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Raise an `OSError` from the body as a `UserError` that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror or error}") from error
