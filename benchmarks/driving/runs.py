"""The trainings of the driving benchmark: which there are, what each has left behind, and running one.

A run's own files are those of any training, below FOLDER/save/ and FOLDER/tensorboard/. Beside them lie
FOLDER/runs/{run}.json, a note of what was run, and FOLDER/runs/{run}.txt, what it said. A run is complete when its note
says so: a training that was interrupted cannot be gone on with, since wall-clock is what is measured.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.driving.variants import Variant
from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.simulator.tracks.track_file import reference_line_file

PROJECT = Path(__file__).resolve().parents[2]
EXPLORED_RACES = 4
"""Races of the map cycle in which the agent explores, for one in which it drives greedily; as in config.py."""
END_WITHIN_S = 180.0
"""A training writes its checkpoint after its time is over; one that takes longer than this is killed."""
RACE_LIMIT_S = 60.0
"""What one evaluation race may take at most; one takes a second or so."""
BLIND_LIMIT_S = 3600.0
"""What a blind evaluation may take at most."""
LOOK_EVERY_S = 0.2
FINAL_ENDING, BLIND_MARK, MINUTE_MARK = "-final.json", "-blind-", "-minute-"
OWN_TO_EACH_RUN = ("run_name", "seed", "map_cycle", "base_tmi_port", "terminal_view", "keep_driver_every_s")


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        variant: how.
        track: a file that `find_track_file` finds; its stem is the name of the map.
        seed: the run's.
        minutes: wall-clock since the command.
        output: the benchmark's folder.
        port: the first one of its games, if they are played through sockets.
        keeps_drivers: whether what it has learned is kept each minute, for `evaluate_each_minute`.
    """

    variant: Variant
    track: Path
    seed: int
    minutes: int
    output: Path
    port: int
    keeps_drivers: bool = False

    @property
    def name(self) -> str:
        """The `run_name`."""
        return f"{self.variant.name}_{self.track.stem}_seed{self.seed}"

    @property
    def note_file(self) -> Path:
        """What was run; a run without one has not begun."""
        return self.output / "runs" / f"{self.name}.json"

    @property
    def terminal_file(self) -> Path:
        """What the training said."""
        return self.output / "runs" / f"{self.name}.txt"

    @property
    def final_file(self) -> Path:
        """What `scripts/evaluate.py` found of the last checkpoint."""
        return final_file_of(self.note_file)

    def blind_file(self, blind: str) -> Path:
        """What `scripts/evaluate.py` found on generated tracks, `DIFFICULTY:FIRST-LAST`."""
        return self.note_file.with_name(f"{self.name}{BLIND_MARK}{blind.replace(':', '-')}.json")

    def minute_file(self, number: int) -> Path:
        """What `scripts/evaluate.py` found of the driver of about that minute; the file says of which moment."""
        return self.note_file.with_name(f"{self.name}{MINUTE_MARK}{number:04d}.json")

    @property
    def save_folder(self) -> Path:
        """save/{run_name}."""
        return self.output / "save" / self.name

    @property
    def races_file(self) -> Path:
        """One line for each race."""
        return self.save_folder / "races.jsonl"

    @property
    def overrides(self) -> tuple[str, ...]:
        """All `--set` of the training; the variant's own come last and win."""
        own = [f"run_name={self.name}", f"seed={self.seed}", f"base_tmi_port={self.port}", "terminal_view=plain"]
        own += ["keep_driver_every_s=60"] * self.keeps_drivers
        return (*own, map_cycle_of(self.track), *self.variant.overrides)

    @property
    def command(self) -> list[str]:
        """The training's command line."""
        command = [sys.executable, str(PROJECT / "scripts" / "train.py"), "--config", str(self.variant.config_file)]
        command += ["--output-folder", str(self.output), "--max-wall-s", str(60 * self.minutes)]
        if self.variant.cluster is not None:
            command += ["--cluster", self.variant.cluster]
        if self.variant.weights_from is not None:
            command += ["--weights-from", self.variant.weights_from]
        return command + [word for text in self.overrides for word in ("--set", text)]

    def settings(self) -> Settings:
        """The settings that it is run with.

        Raises:
            UserError: if they are wrong.
        """
        return load_settings(self.variant.config_file, self.overrides)

    def last_words(self) -> str:
        """The last line that the training, or the evaluation after it, has said."""
        lines = self.terminal_file.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def is_complete(self) -> bool:
        """Whether it was run to its end.

        Raises:
            UserError: if its folder holds a run of another length or with other settings.
        """
        note = read_note(self.note_file)
        if note is None:
            if self.save_folder.exists():
                raise UserError(f"{self.save_folder} is not of this benchmark: choose another --output")
            return False
        if not note["is_complete"]:
            return False
        settings, before = plain_settings(self.settings()), note["settings"]
        differing = sorted(name for name in settings.keys() & before.keys() if settings[name] != before[name])
        if differing:
            raise UserError(
                f"{self.note_file} tells of a run with {differing[0]} = {before[differing[0]]}, now it is "
                f"{settings[differing[0]]} (differing: {', '.join(differing)}): choose another name for the variant, "
                "or another --output"
            )
        if note["minutes"] < self.minutes:
            raise UserError(
                f"{self.note_file} tells of a run of {note['minutes']} minutes, {self.minutes} are asked for: choose "
                "another --output, or delete that file and its run to train again"
            )
        return True


def map_cycle_of(track: Path) -> str:
    """The override that trains on one track, with the structure of the default map cycle.

    Args:
        track: a track file, or a bare reference line.

    Raises:
        UserError: if the track file is wrong.
    """
    entry = {
        "map_name": track.stem,
        "map_path": str(track),
        "reference_line": str(reference_line_file(track)),
        "fill_buffer": True,
    }
    explored = entry | {"is_explo": True, "repeat": EXPLORED_RACES}
    evaluated = entry | {"is_explo": False, "repeat": 1}
    return f"map_cycle={(explored, evaluated)!r}"


def make_folder(output: Path) -> None:
    """Make the benchmark's folder.

    Raises:
        UserError: if the disk says no.
    """
    try:
        (output / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output: cannot make {output}: {error.strerror}") from error


def read_note(file: Path) -> dict[str, Any] | None:
    """What is noted of a run; None for one that has not begun.

    Raises:
        UserError: if the note is damaged.
    """
    try:
        note: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}): delete it, and the run's folder, to train again") from error
    return note


def final_file_of(note_file: Path) -> Path:
    """Where the final races of a run lie, beside its note."""
    return note_file.with_name(note_file.stem + FINAL_ENDING)


def blind_files_of(note_file: Path) -> list[Path]:
    """The evaluations of a run on generated tracks."""
    return sorted(note_file.parent.glob(f"{note_file.stem}{BLIND_MARK}*.json"))


def minute_files_of(note_file: Path) -> list[Path]:
    """The evaluations of a run minute by minute, the first one first."""
    return sorted(note_file.parent.glob(f"{note_file.stem}{MINUTE_MARK}*.json"))


def is_evaluation(file: Path) -> bool:
    """Whether a file beside the notes holds an evaluation."""
    return file.name.endswith(FINAL_ENDING) or BLIND_MARK in file.name or MINUTE_MARK in file.name


def complete_notes(output: Path) -> list[dict[str, Any]]:
    """The notes of all complete runs of a folder, in the order in which they were begun."""
    notes = [read_note(file) for file in (output / "runs").glob("*.json") if not is_evaluation(file)]
    complete = [note for note in notes if note is not None and note["is_complete"]]
    return sorted(complete, key=lambda note: note["started"])


def plain_settings(settings: Settings) -> dict[str, str]:
    """Settings as texts, without those that only tell runs apart."""
    return {name: str(value) for name, value in settings.flat().items() if name not in OWN_TO_EACH_RUN}


def train(run: Run, stop: threading.Event) -> bool:
    """Run one training from its start to its end; what an interrupted one has left is removed first.

    Args:
        run: one that is not complete.
        stop: ends the training at once, and leaves it incomplete.

    Returns:
        Whether it is complete now; if not and `stop` is not set, `run.terminal_file` says why.
    """
    shutil.rmtree(run.save_folder, ignore_errors=True)
    shutil.rmtree(run.output / "tensorboard" / run.name, ignore_errors=True)
    note = {
        "variant": run.variant.name,
        "track": run.track.stem,
        "seed": run.seed,
        "minutes": run.minutes,
        "name": run.name,
        "is_complete": False,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "command": run.command,
        "commit": commit(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "settings": plain_settings(run.settings()),
    }
    _write_json(run.note_file, note)
    evaluations = (run.final_file, *blind_files_of(run.note_file), *minute_files_of(run.note_file))
    for file in (run.terminal_file, *evaluations):
        file.unlink(missing_ok=True)
    exit_code = run_process(run.command, run.terminal_file, stop, 60 * run.minutes + END_WITHIN_S)
    note["is_complete"] = exit_code == 0 and not stop.is_set()
    if note["is_complete"]:
        drop_replay(run.save_folder)
    note["load_at_end"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    _write_json(run.note_file, note)
    return bool(note["is_complete"])


def evaluate(run: Run, n_races: int, stop: threading.Event) -> bool:
    """Drive a complete run's last checkpoint, the starts of all races but the first varied; see scripts/evaluate.py.

    Returns:
        Whether `run.final_file` holds so many races now; if not and `stop` is not set, `run.terminal_file` says why.
    """
    return _drive(run, None, n_races, run.final_file, stop)


def evaluate_each_minute(run: Run, n_races: int, stop: threading.Event) -> bool:
    """Drive what a complete run had learned by the end of each of its minutes, as `evaluate` does.

    It is done after the training, which therefore is the same as without it, but for writing a file each minute.

    Returns:
        Whether all `run.minute_file`s hold so many races now; if not and `stop` is not set, `run.terminal_file` says
        why.

    Raises:
        UserError: if the run has kept no drivers.
    """
    note = read_note(run.note_file)
    assert note is not None
    kept = sorted((run.save_folder / "drivers").glob("*.pt"))[: note["minutes"] - 1]  # their names are ascending
    if note["minutes"] > 1 and not kept:
        raise UserError(
            f"{run.save_folder} has kept no drivers, as it was trained without --races-each-minute: choose another "
            "--output"
        )
    drivers = [*kept, None][: run.minutes]  # the last minute's is the newest checkpoint
    return all(
        _drive(run, driver, n_races, run.minute_file(number), stop) for number, driver in enumerate(drivers, start=1)
    )


def _drive(run: Run, checkpoint: Path | None, n_races: int, file: Path, stop: threading.Event) -> bool:
    """Drive a checkpoint of a run, None for its newest; whether `file` tells of so many races now."""
    told = read_note(file)
    if told is not None and all(len(one["races"]) >= n_races for one in told["maps"]):
        return True
    command = [sys.executable, str(PROJECT / "scripts" / "evaluate.py"), str(run.save_folder), "--no-video"]
    command += ["--races", str(n_races), "--json", str(file)]
    if checkpoint is not None:
        command += ["--checkpoint", str(checkpoint)]
    return run_process(command, run.terminal_file, stop, END_WITHIN_S + RACE_LIMIT_S * n_races) == 0


def evaluate_blind(run: Run, blind: str, stop: threading.Event) -> bool:
    """Drive each of some generated tracks once with a complete run's last checkpoint.

    Args:
        run: a complete one.
        blind: `DIFFICULTY:FIRST-LAST` seeds.
        stop: ends it at once.

    Returns:
        Whether `run.blind_file(blind)` is there now; if not and `stop` is not set, `run.terminal_file` says why.
    """
    file = run.blind_file(blind)
    if file.is_file():
        return True
    command = [sys.executable, str(PROJECT / "scripts" / "evaluate.py"), str(run.save_folder), "--no-video"]
    command += ["--map", f"generated:{blind}", "--json", str(file)]
    return run_process(command, run.terminal_file, stop, BLIND_LIMIT_S) == 0


def drop_replay(save_folder: Path) -> None:
    """Take the replay memory out of a run's checkpoint, and delete those before it: a benchmark has many runs.

    It is done after the training, which therefore is the very same as without a benchmark.
    """
    from trackmania_rl.runs import load_checkpoint, save_checkpoint  # torch: seconds

    state = load_checkpoint(save_folder, with_rows=False)
    if state is None:
        raise UserError(f"{save_folder} holds no checkpoint, although its training ended in order")
    state["hooks"]["StoreRaces"]["buffers"] = None  # as with checkpoint_holds_replay = False
    save_checkpoint(save_folder, state, minimum_free_disk_mb=0, keep=1)


def run_process(command: Sequence[str], terminal_file: Path, stop: threading.Event, limit_s: float) -> int:
    """Run a command in a session of its own, so that Ctrl-C reaches it through us alone; return its exit code.

    Args:
        command: the command line.
        terminal_file: what it says is added there.
        stop: has it end in order (SIGTERM).
        limit_s: it is killed after so many seconds.
    """
    began_s = time.monotonic()
    with (
        terminal_file.open("a", encoding="utf-8") as terminal,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        while process.poll() is None:
            if time.monotonic() - began_s > limit_s:
                process.kill()
            elif stop.wait(LOOK_EVERY_S):
                process.terminate()
                try:
                    process.wait(END_WITHIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
    return process.returncode


def commit() -> str | None:
    """The checkout's commit, with a plus sign if files were changed since; None outside a checkout."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


def _write_json(file: Path, content: dict[str, Any]) -> None:
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)
