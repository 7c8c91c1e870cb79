"""What was tried, how often it went well, and where it is kept."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trackmania_rl.files import replace_patiently


@dataclass
class Outcome:
    """One row of the table.

    Attributes:
        what: was done to a training.
        promised: what should become of it.
        tries: how often it was done.
        survived: how often it went as promised.
        told: measured figures, in words.
        failures: what went otherwise, one text each.
    """

    what: str
    promised: str
    tries: int = 0
    survived: int = 0
    told: str = ""
    failures: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        """Count a try; what went otherwise is a text."""
        self.tries += 1
        if failure is None:
            self.survived += 1
        else:
            self.failures.append(failure)


def outcome_of(what: str, promised: str, experiment: Callable[[], str]) -> Outcome:
    """Do something once.

    Args:
        what: is done.
        promised: what should come of it.
        experiment: does it and returns measured figures; an error is a failure.
    """
    outcome = Outcome(what, promised)
    try:
        outcome.told = experiment()
    except Exception as error:  # whatever goes wrong is a finding, and the other experiments go on
        outcome.count("".join(traceback.format_exception(error))[-4000:])
    else:
        outcome.count(None)
    return outcome


def write_outcomes(file: Path, outcomes: list[Outcome]) -> None:
    """Keep what a part has found."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1), encoding="utf-8")
    replace_patiently(unfinished, file)


def read_outcomes(file: Path) -> Iterator[Outcome]:
    """Read what a part has found."""
    for values in json.loads(file.read_text(encoding="utf-8")):
        yield Outcome(**values)
