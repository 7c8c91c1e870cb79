"""Draws the pictures of a run, in a process of its own and with low priority, so that training goes before it.

python -m trackmania_rl.telemetry.mind NUMBERS FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import psutil

from trackmania_rl.cli import command
from trackmania_rl.telemetry.mind.album import draw_set
from trackmania_rl.telemetry.mind.numbers import load_numbers

NICENESS: Final = 15


@command
def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=Path)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else NICENESS)
    draw_set(load_numbers(asked.numbers), asked.folder)


if __name__ == "__main__":
    sys.exit(main())
