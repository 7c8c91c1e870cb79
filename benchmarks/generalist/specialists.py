r"""Times of drivers that were trained on one of the tracks alone, by the driving benchmark.

Those of five tracks of each difficulty are kept in specialists.json, which these two commands made:
  python benchmarks/driving/run.py --tracks generated:0.3:100000-100004 generated:0.5:100000-100004 \
      generated:0.8:100000-100004 --seeds 0 --minutes 5 --yardsticks benchmarks/generalist/yardsticks.json \
      --output specialists
  python -m benchmarks.generalist.specialists specialists

They are of two cores of an AMD EPYC without a GPU. On another machine five minutes teach more or less.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.driving.runs import complete_notes
from benchmarks.driving.score import greedy_races
from benchmarks.generalist.unseen_races import UnseenRace
from trackmania_rl.cli import command
from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.learning_summary import WINDOW_RACES, Race, read_races

KEPT_FILE: Final = Path(__file__).with_name("specialists.json")


@command
def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the driving benchmark, with its trainings")
    times_ms = specialists_times_ms(parser.parse_args().folder)
    KEPT_FILE.write_text(json.dumps(times_ms, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(times_ms)} times in {KEPT_FILE}")


def kept_times_ms() -> dict[str, float]:
    """Read the times that are kept, by name of the track."""
    times_ms: dict[str, float] = json.loads(KEPT_FILE.read_text(encoding="utf-8"))
    return times_ms


def specialists_times_ms(folder: Path) -> dict[str, float]:
    """Read the trainings of the driving benchmark in a folder, as its score does.

    Args:
        folder: the benchmark's.

    Returns:
        By name of the track, the median of the last ten greedy races, in which a race that does not finish counts as
        slower than any; of specialists whose median race finishes.

    Raises:
        UserError: if there is no complete training.
    """
    notes = complete_notes(folder)
    if not notes:
        raise UserError(f"{folder} holds no complete training of benchmarks/driving/run.py")
    times_ms = {}
    for note in notes:
        races = read_races(folder / "save" / note["name"] / "races.jsonl")
        time_ms = median_time_ms(greedy_races(races, note["track"])[-WINDOW_RACES:])
        if time_ms is not None:
            times_ms[note["track"]] = time_ms
    return times_ms


def median_time_ms(races: Sequence[Race]) -> float | None:
    """The median finish time; None if fewer than ten races were driven, or the median race does not finish."""
    times_ms = [race["race_time_ms"] if race["race_finished"] else math.inf for race in races]
    median_ms = statistics.median(times_ms) if len(times_ms) == WINDOW_RACES else math.inf
    return None if math.isinf(median_ms) else median_ms


def ratios(races: Sequence[UnseenRace], times_ms: Mapping[str, float]) -> list[float]:
    """How much longer finished races took than their track's specialist, where there is one."""
    names = {race: race.recipe.name for race in races if race.is_finished}
    return [race.time_ms / times_ms[name] for race, name in names.items() if name in times_ms]


if __name__ == "__main__":
    sys.exit(main())
