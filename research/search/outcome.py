"""What a search came to: each trial's scores, and the best one as a configuration. Nothing here knows Ray."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from research.search.space import SCALED, told
from research.search.trial import CLONES_FILE, Plan
from trackmania_rl.errors import UserError

TRIALS_FILE: Final = "trials.json"
BEST_FOLDER: Final = "best"
BEST_FILE: Final = "best.py"
SEEDS: Final = ("0", "1", "2")
"""With which the best is measured against the default."""

Status = Literal["under way", "complete", "failed"]


@dataclass
class TrialOutcome:
    """What is known of a trial.

    Attributes:
        drawn: what was drawn for each entry of the space; of a clone, what it goes on with.
        scores: after each of its pieces.
        frames: actions of its run in all.
        status: whether it goes on.
        why: it failed.
    """

    drawn: dict[str, Any]
    scores: list[float] = field(default_factory=list)
    frames: int = 0
    status: Status = "under way"
    why: str = ""


_TRIALS: Final = TypeAdapter(dict[str, TrialOutcome])


class Outcome:
    """The trials of a search, kept in a file that is whole at any moment.

    Args:
        output: the search's folder.
    """

    def __init__(self, output: Path) -> None:
        self._file = output / TRIALS_FILE
        self.trials: dict[str, TrialOutcome] = {}
        try:
            self.trials = _TRIALS.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            pass
        except ValidationError as error:
            raise UserError(f"{self._file} is damaged: choose another --output") from error

    def add(self, name: str, drawn: Mapping[str, Any], score: float, frames: int) -> None:
        """Note what a piece of a trial came to."""
        trial = self.trials.setdefault(name, TrialOutcome({}))
        trial.drawn, trial.frames, trial.status = dict(drawn), frames, "under way"
        trial.scores.append(score)
        self._write()

    def end(self, name: str, status: Status, why: str = "") -> None:
        """Note that a trial goes on no more."""
        trial = self.trials.setdefault(name, TrialOutcome({}))
        trial.status, trial.why = status, why
        self._write()

    def best(self) -> tuple[str, TrialOutcome] | None:
        """Give the trial whose last score is the highest; None where no trial has any."""
        judged = [(name, trial) for name, trial in self.trials.items() if trial.scores]
        return max(judged, key=lambda one: one[1].scores[-1], default=None)

    def _write(self) -> None:
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({name: asdict(trial) for name, trial in self.trials.items()}, indent=1) + "\n", encoding="utf-8"
        )
        os.replace(temporary, self._file)


def write_best(plan: Plan, drawn: Mapping[str, Any], score: float, trial: str) -> Path:
    """Write what the best trial had last as a configuration, with copies of what it is based on beside it.

    Returns:
        The configuration's file. It may be moved to where `plan.config_file` lies.
    """
    folder = plan.output / BEST_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file in plan.config_file.parent.glob("*.py"):  # its companions, what it is based on, and parts beside it
        shutil.copyfile(file, folder / file.name)
    drawn = plan.space.within(drawn)
    lines = [f"{name} = {value!r}" for name, value in plan.space.settings_of(drawn).items()]
    donors = _donors_of(plan.output, trial)
    history = f" Its weights came from {', then '.join(donors)}, which had other settings." if donors else ""
    text = (
        f'"""The best trial of a search, {trial}: score {score:.4f}, from one seed.{history}"""\n\n'
        f'based_on = "{plan.config_file.name}"\n\n'
        + "".join(
            f"# {name.removesuffix(SCALED)}, times {value:.4g}.\n"
            for name, value in drawn.items()
            if name.endswith(SCALED)
        )
        + "\n".join(lines)
        + "\n"
    )
    best = folder / BEST_FILE
    best.write_text(text, encoding="utf-8")
    return best


def command_against_default(plan: Plan, best: Path, minutes: float) -> str:
    """Write the command that trains with the best settings and with the default ones, and compares them."""
    words = ["python", "benchmarks/driving/run.py", "--tracks", *map(_name_of, plan.tracks), "--seeds", *SEEDS]
    words += ["--minutes", str(math.ceil(minutes)), "--config", str(plan.config_file)]
    words += ["--output", str(plan.output / "against_default")]
    words += [word for text in plan.overrides for word in ("--set", text)]
    return shlex.join([*words, "--variant", "default:", "--variant", f"best: config={best}"])


def table(outcome: Outcome) -> str:
    """Write the trials as lines, the best one first."""
    order = sorted(outcome.trials.items(), key=lambda one: -(one[1].scores or [-1.0])[-1])
    return "\n".join(
        f"{name}  {' '.join(f'{score:.3f}' for score in trial.scores) or '-':30}  {trial.status:9}  {told(trial.drawn)}"
        for name, trial in order
    )


def _donors_of(output: Path, trial: str) -> list[str]:
    try:
        lines = (output / CLONES_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(clone["donor"] for clone in map(json.loads, lines) if clone["trial"] == trial))


def _name_of(track: Path) -> str:
    """What a user writes for a track: one of maps/ by its name, others by their file."""
    return track.stem if track.parent.name == "maps" else str(track)
