"""Outcome of a search: each trial's scores, and the best one as a configuration. Independent of Ray."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from research.search.space import SCALED, text_of
from research.search.trial import Plan
from trackmania_rl.errors import UserError
from trackmania_rl.files import write_durably

TRIALS_FILE: Final = "trials.json"
BEST_FOLDER: Final = "best"
BEST_FILE: Final = "best.py"
SEEDS: Final = ("0", "1", "2")
"""Of the comparison of the best with the default."""

Status = Literal["under way", "complete", "failed"]


@dataclass
class TrialOutcome:
    """Outcome of a trial."""

    drawn: dict[str, Any]  # values drawn for the entries of the space; after cloning, the new ones
    scores: list[float] = field(default_factory=list)  # after each piece
    frames: int = 0
    status: Status = "under way"
    why: str = ""  # reason of a failure


_TRIALS: Final = TypeAdapter(dict[str, TrialOutcome])


class Outcome:
    """Trials of a search, in a file in the search's folder that is replaced atomically."""

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
        """Add the result of a piece."""
        trial = self.trials.setdefault(name, TrialOutcome({}))
        trial.drawn, trial.frames, trial.status = dict(drawn), frames, "under way"
        trial.scores.append(score)
        self._write()

    def end(self, name: str, status: Status, why: str = "") -> None:
        """Set the final status of a trial."""
        trial = self.trials.setdefault(name, TrialOutcome({}))
        trial.status, trial.why = status, why
        self._write()

    def best(self) -> tuple[str, TrialOutcome] | None:
        """Return the trial with the highest last score."""
        judged = [(name, trial) for name, trial in self.trials.items() if trial.scores]
        return max(judged, key=lambda one: one[1].scores[-1], default=None)

    def _write(self) -> None:
        trials = {name: asdict(trial) for name, trial in self.trials.items()}
        write_durably(self._file, json.dumps(trials, indent=1) + "\n")


def write_best(plan: Plan, drawn: Mapping[str, Any], score: float, trial: str) -> Path:
    """Write the best trial's last settings as a configuration, with copies of the files that it is based on.

    The configuration may be moved beside `plan.config_file`.
    """
    folder = plan.output / BEST_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file in plan.config_file.parent.glob("*.py"):  # companions and parts
        shutil.copyfile(file, folder / file.name)
    drawn = plan.space.within(drawn)
    lines = [f"{name} = {value!r}" for name, value in plan.space.settings_of(drawn).items()]
    text = (
        f'"""The best trial of a search, {trial}: score {score:.4f}, from one seed."""\n\n'
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
    """Return the command that compares the best settings with the default ones."""
    words = ["python", "benchmarks/driving/run.py", "--tracks", *map(_name_of, plan.tracks), "--seeds", *SEEDS]
    words += ["--minutes", str(math.ceil(minutes)), "--config", str(plan.config_file)]
    words += ["--output", str(plan.output / "against_default")]
    words += [word for text in plan.overrides for word in ("--set", text)]
    return shlex.join([*words, "--variant", "default:", "--variant", f"best: config={best}"])


def table(outcome: Outcome) -> str:
    """Return the trials as lines, the best one first."""
    order = sorted(outcome.trials.items(), key=lambda one: -(one[1].scores or [-1.0])[-1])
    lines = []
    for name, trial in order:
        scores = " ".join(f"{score:.3f}" for score in trial.scores) or "-"
        lines.append(f"{name}  {scores:30}  {trial.status:9}  {text_of(trial.drawn)}")
    return "\n".join(lines)


def _name_of(track: Path) -> str:
    """Return a track's name on a command line."""
    return track.stem if track.parent.name == "maps" else str(track)
