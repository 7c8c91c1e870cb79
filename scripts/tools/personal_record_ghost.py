"""Hide the ghosts of your personal records, which the game shows in every race, or bring them back.

End the game first. The replays are moved from Tracks/Replays/Autosaves to a folder beside it, and back; nothing is
deleted or overwritten.

Examples:
  python scripts/tools/personal_record_ghost.py hide
  python scripts/tools/personal_record_ghost.py restore --only A01-Race --base-path ~/Documents/TmForever
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.personal_records import (
    HIDDEN,
    autosaves_folder,
    hide_records,
    restore_records,
)


@command
def main(words: list[str] | None = None) -> None:
    arguments = parse_arguments(words)
    base_path = arguments.base_path or load_settings(arguments.config).user.trackmania_base_path
    autosaves = autosaves_folder(base_path)
    moved, left = (
        (hide_records(autosaves, arguments.only), [])
        if arguments.action == "hide"
        else restore_records(autosaves, arguments.only)
    )
    for file in moved:
        print(f"moved to {file}")
    for file in left:
        print(f"left where it is: {file} (the game has a new record of that name, or this is a numbered older copy)")
    if not moved and not left:
        print(f"nothing to do: no such replay in {autosaves if arguments.action == 'hide' else HIDDEN}")


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("action", choices=("hide", "restore"))
    add("--only", default="", metavar="TEXT", help="only replays whose name (LOGIN_MAP.Replay.gbx) contains this text")
    add("--base-path", metavar="FOLDER", help="the game's folder in your documents (default: as in user_config.py)")
    add("--config", type=Path, default=PROJECT_FOLDER / "config_files" / "config_tmnf.py", help="configuration file")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
