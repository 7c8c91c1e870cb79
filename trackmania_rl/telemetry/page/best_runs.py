"""The records of a run, its films and pictures: what can be watched and downloaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.files import parse_npy, read_bounded
from trackmania_rl.telemetry.diagnostics import list_pictures
from trackmania_rl.telemetry.page.run_on_disk import RunOnDisk

MOST_SHOWN: Final = 200
"""Records and films that are listed."""
MOST_Q_VALUES_BYTES: Final = 64 << 20
"""Of a record's Q values; a larger file is not read."""
FILM_FOLDERS: Final = ("best_runs", "evaluation", "recordings", "videos")
FILM_ENDINGS: Final = (".mp4", ".webm")
DIAGNOSTICS: Final = "diagnostics"

_NAME: Final = re.compile(r"(.+)_(\d+)")


@dataclass(frozen=True)
class BestRun:
    """A race that was its map's fastest.

    Attributes:
        folder: best_runs/{map}_{time}.
        map_name: of the map.
        race_time_ms: its time.
        inputs: the inputs file.
        driver: the driver's file; None where a faster one took its place.
        driven_s: when it was driven, seconds since 1970.
    """

    folder: Path
    map_name: str
    race_time_ms: int
    inputs: Path
    driver: Path | None
    driven_s: float

    def q_values(self) -> list[list[float]]:
        """Its Q values, a row for each action; none where there is no such file, or it is damaged."""
        try:
            values = parse_npy(read_bounded(self.folder / "q_values.npy", MOST_Q_VALUES_BYTES))
        except (UserError, ValueError):
            return []
        if values.ndim != 2 or values.dtype.kind != "f":
            return []
        return [[float(f"{number:.6g}") for number in row] for row in np.nan_to_num(values).tolist()]


class RunFiles:
    """What lies in the run's folder for a user to take away.

    Only files that were listed can be asked for, by their paths within the folder: no name leads anywhere else.

    Args:
        run: has the folder.
    """

    def __init__(self, run: RunOnDisk) -> None:
        self._run = run

    def best_runs(self) -> list[BestRun]:
        """The records, map by map, the fastest first, which is also the newest."""
        found = []
        for folder in self._run.best_runs.glob("*"):
            match = _NAME.fullmatch(folder.name)
            inputs, driver = (folder / f"{folder.name}{ending}" for ending in (".inputs", ".driver"))
            if match and inputs.is_file() and not inputs.is_symlink():
                kept = driver if driver.is_file() and not driver.is_symlink() else None
                found.append(BestRun(folder, match[1], int(match[2]), inputs, kept, inputs.stat().st_mtime))
        return sorted(found, key=lambda best: (best.map_name, best.race_time_ms))[:MOST_SHOWN]

    def best_run(self, name: str) -> BestRun | None:
        """The record whose folder has this name."""
        return next((best for best in self.best_runs() if best.folder.name == name), None)

    def films(self) -> list[Path]:
        """Films, the newest first."""
        files = [
            file
            for folder in FILM_FOLDERS
            for file in (self._run.path / folder).rglob("*")
            if file.suffix in FILM_ENDINGS and not file.name.startswith(".") and file.is_file()
        ]
        return sorted(files, key=lambda file: -file.stat().st_mtime)[:MOST_SHOWN]

    def listed(self) -> dict[str, Any]:
        """Records, films and pictures as the page lists them."""
        return {
            "best_runs": [
                {
                    "name": best.folder.name,
                    "map": best.map_name,
                    "time_ms": best.race_time_ms,
                    "driven_s": best.driven_s,
                    "file": self._name(best.inputs),
                    "driver": best.driver and self._name(best.driver),
                }
                for best in self.best_runs()
            ],
            "films": [{"name": file.name, "file": self._name(file), "mb": _mb(file)} for file in self.films()],
            "pictures": [
                entry | {"file": f"{DIAGNOSTICS}/{entry['file']}"}
                for entry in list_pictures(self._run.path / DIAGNOSTICS)
            ],
        }

    def file(self, name: str) -> Path | None:
        """The listed file of this name, None for any other."""
        return next((file for file in self._files() if self._name(file) == name), None)

    def _files(self) -> Iterator[Path]:
        yield from (file for best in self.best_runs() for file in (best.inputs, best.driver) if file is not None)
        yield from self.films()
        folder = self._run.path / DIAGNOSTICS
        yield from (folder / entry["file"] for entry in list_pictures(folder))

    def _name(self, file: Path) -> str:
        return file.relative_to(self._run.path).as_posix()


def _mb(file: Path) -> float:
    return round(file.stat().st_size / 1e6, 1)
