"""An installed package's commands: `trackmania-train` and others, and `python -m trackmania_rl COMMAND`."""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Callable
from typing import Final

from trackmania_rl.cli import command
from trackmania_rl.errors import ExitCode
from trackmania_rl.paths import CONFIG_FILES, MAPS, SHIPPED_FOLDER, WORKING_FOLDER

SCRIPTS: Final = {
    "train": ("train.py", "train a driver"),
    "evaluate": ("evaluate.py", "let a driver drive: times, inputs files, films"),
    "dashboard": ("dashboard.py", "the live page of a run, in a browser"),
    "doctor": ("doctor.py", "examine what this machine needs for a training"),
    "maps": ("tools/maps.py", "maps, replays and reference lines; add a map"),
    "driver": ("tools/driver.py", "pack what a run has learned as one file; look at such a file"),
    "dataset": ("tools/dataset.py", "record and export data sets"),
    "replay": ("replay_inputs.py", "drive an inputs file"),
    "generate-track": ("generate_track.py", "make a track"),
    "keep-games": ("keep_games.py", "keep games running for collectors elsewhere"),
    "worker": ("worker.py", "play for a learner on another machine"),
    "simulated-game": ("simulated_game.py", "a simulated game behind a socket"),
}
"""Script in `scripts/` and description by command."""


def runner(name: str) -> Callable[[], None]:
    """Return a function that runs a command's script with this process's arguments."""

    def run() -> None:
        # As "__main__" for spawned processes; runpy would change the usage's name.
        script = SHIPPED_FOLDER / "scripts" / SCRIPTS[name][0]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        module.__file__ = str(script)
        exec(compile(script.read_bytes(), script, "exec"), vars(module))

    return run


train = runner("train")
evaluate = runner("evaluate")
dashboard = runner("dashboard")
doctor = runner("doctor")
maps = runner("maps")
driver = runner("driver")


@command
def initialize() -> None:
    """Copy configurations and tracks into the current folder."""
    missing = [name for name in (CONFIG_FILES, MAPS) if not (WORKING_FOLDER / name).exists()]
    for name in missing:
        shutil.copytree(SHIPPED_FOLDER / name, WORKING_FOLDER / name, ignore=shutil.ignore_patterns("__pycache__"))
    names = " and ".join(f"{name}/" for name in missing)
    print(f"{names} copied to {WORKING_FOLDER}" if missing else f"{WORKING_FOLDER} has config_files/ and maps/ already")


def main() -> int:
    """Run `python -m trackmania_rl COMMAND ...`; return the exit code."""
    name, *others = sys.argv[1:] or ["--help"]
    if name == "init":
        return initialize()
    if name in SCRIPTS:
        sys.argv = [f"trackmania_rl {name}", *others]
        runner(name)()
        return 0
    lines = [f"  {command:16}{text}" for command, (_, text) in SCRIPTS.items()]
    lines.append(f"  {'init':16}copy configurations and tracks into the current folder, to edit them")
    usage = "usage: python -m trackmania_rl COMMAND ...\n\ncommands:\n" + "\n".join(lines)
    if name in ("-h", "--help"):
        print(usage)
        return 0
    print(f"error: {name!r} is no command\n\n{usage}", file=sys.stderr)
    return ExitCode.FAILED


if __name__ == "__main__":
    sys.exit(main())
