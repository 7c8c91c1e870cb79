"""What runs came to, one line each, in a file small enough to keep: `runs.csv` of a benchmark's folder."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from trackmania_rl.errors import UserError

RUNS_FILE = "runs.csv"


@dataclass(frozen=True)
class RunResult:
    """What one run came to; a line of `runs.csv`.

    Attributes:
        variant: its name.
        track: its name.
        seed: the run's.
        minutes: how much of it was judged.
        frames: actions in all.
        last_minute_score: see `RunFigures`.
        mean_score: see `RunFigures`.
        commit: of the checkout that was run.
        started: when, UTC.
    """

    variant: str
    track: str
    seed: int
    minutes: int
    frames: int
    last_minute_score: float
    mean_score: float
    commit: str | None
    started: str


def write_results(file: Path, results: Sequence[RunResult]) -> None:
    """Write one line for each run, with headings."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(RunResult)], lineterminator="\n")
        writer.writeheader()
        for result in results:
            writer.writerow(
                asdict(result) | {name: f"{getattr(result, name):.4f}" for name in ("last_minute_score", "mean_score")}
            )


def read_results(file: Path) -> list[RunResult]:
    """The runs of a file of `write_results`.

    Raises:
        UserError: if it cannot be read, is no such file, or holds no run.
    """
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            results = TypeAdapter(list[RunResult]).validate_python(list(csv.DictReader(stream)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        line, *column = first["loc"]
        where = f"run {int(line) + 1}: {' '.join(map(str, column))}"
        raise UserError(f"{file} is no runs.csv of the driving benchmark: {where}: {first['msg']}") from error
    if not results:
        raise UserError(f"{file} holds no run")
    return results
