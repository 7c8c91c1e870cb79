"""A run's folder pictures/: all pictures of the newest sets, and index.json, which lists them for whoever shows them.

index.json is `{"pictures": [...]}`, the newest first, each with

    file        its name in the folder
    name        which picture it is, the same in each set: "quantile_functions", ...
    map         whose race is shown
    title       for a heading
    caption     what it tells, in a few sentences
    frames      actions that the run had collected
    training_s  seconds that it had trained
    written     when, as ISO 8601 with the time zone

A picture or index is complete, or not there.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.files import parse_json, read_bounded, replace_patiently

INDEX: Final = "index.json"
MOST_INDEX_BYTES: Final = 1 << 20
MOST_SETS: Final = 10
"""Sets whose pictures stay in the folder: the newest ones."""
OF_A_SET: Final = re.compile(r"\d{12}_")
"""How the names of pictures begin: with the frames."""
RACING_LINE: Final = "racing_line"
"""The kind of picture of which loggers have a newer one, under this name."""


@dataclass(frozen=True)
class Entry:
    """A picture in the index; see the head of this module."""

    file: str
    name: str
    map: str
    title: str
    caption: str
    frames: int
    training_s: float
    written: str

    def is_of_set(self, other: Entry) -> bool:
        """Whether the other picture was drawn with this one."""
        return (self.frames, self.map) == (other.frames, other.map)


def read_index(folder: Path) -> list[Entry]:
    """The pictures in a folder, the newest first; none where there is no index, or a damaged one."""
    try:
        listed = parse_json(read_bounded(folder / INDEX, MOST_INDEX_BYTES))["pictures"]
        entries = [Entry(**entry) for entry in listed]
        return [entry for entry in entries if Path(entry.file).name == entry.file]  # nothing outside of the folder
    except (UserError, ValueError, KeyError, TypeError):
        return []


def add_to_index(folder: Path, new: list[Entry]) -> None:
    """Write the index of the newest sets, then remove all other pictures.

    Args:
        folder: a run's pictures/.
        new: a set whose pictures lie there already.

    Raises:
        OSError: if it cannot be written.
    """
    new_files = {entry.file for entry in new}
    entries = new + [entry for entry in read_index(folder) if entry.file not in new_files]
    sets = list(dict.fromkeys((entry.frames, entry.map) for entry in entries))[:MOST_SETS]
    kept = [entry for entry in entries if (entry.frames, entry.map) in sets]
    listed: dict[str, Any] = {"pictures": [asdict(entry) for entry in kept]}
    part = folder / f".{INDEX}.part"
    part.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    replace_patiently(part, folder / INDEX)
    files = {entry.file for entry in kept}
    for file in folder.glob("*.png"):  # also those of a set whose drawing was given up
        if OF_A_SET.match(file.name) and file.name not in files:
            file.unlink(missing_ok=True)
