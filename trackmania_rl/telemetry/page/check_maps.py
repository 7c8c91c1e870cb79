"""Looks at the maps of an edited configuration, as the training does before it takes the edit.

A program of its own, since what it uses imports torch, which the page does without:

    python -m trackmania_rl.telemetry.page.check_maps save/simulated/settings.toml maps
"""

from __future__ import annotations

import sys
from pathlib import Path

from trackmania_rl.cli import command
from trackmania_rl.doctor.run_checks import check_edited_maps
from trackmania_rl.settings import load_settings


@command
def main() -> None:
    """Run the command line."""
    config_file, maps_folder = map(Path, sys.argv[1:])
    check_edited_maps(load_settings(config_file), maps_folder)


if __name__ == "__main__":
    sys.exit(main())
