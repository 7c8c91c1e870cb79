"""Maps, replays and reference lines: show them, build a line, check it, add a map to the map cycle.

Examples:
  python scripts/tools/maps.py show B13-Obstacle.Challenge.Gbx
  python scripts/tools/maps.py line --replay best.Replay.Gbx --output maps/b13_0.5m.npy --picture b13.png
  python scripts/tools/maps.py add B13-Obstacle.Challenge.Gbx best.Replay.Gbx --name b13 --insert

Every command has its own help: python scripts/tools/maps.py COMMAND --help
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for tests

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command

import maps_commands


@command
def main(command_line: list[str] | None = None) -> int:
    """Run the command line (default: this process's); return the exit code, 1 for a problem."""
    arguments = make_parser().parse_args(command_line)
    return int(arguments.run(arguments))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with a subcommand per public module of `maps_commands`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in sorted(module.name for module in pkgutil.iter_modules(maps_commands.__path__)):
        if not name.startswith("_"):
            module = importlib.import_module(f"{maps_commands.__name__}.{name}")
            summary = (module.__doc__ or "").partition("\n")[0].rstrip(".")
            of_command = subparsers.add_parser(name, help=summary, description=module.__doc__, formatter_class=raw)
            module.add_arguments(of_command)
            of_command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
