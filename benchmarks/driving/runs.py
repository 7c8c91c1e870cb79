"""Trainings of the driving benchmark.

A run's own files are those of any training, in FOLDER/save/ and FOLDER/tensorboard/. FOLDER/runs/{run}.json is a note
of its settings, and FOLDER/runs/{run}.txt its terminal output. An interrupted run begins anew: wall-clock counts.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.driving.variants import PROJECT, Variant
from trackmania_rl.errors import UserError
from trackmania_rl.files import write_durably
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.simulator.tracks.track_file import reference_line_file

EXPLORATION_RACES: Final = 4
"""Exploration races of the map cycle for one evaluation race; as in config.py."""
END_WITHIN_S: Final = 180.0
"""Longest time from a training's limit to its end, in which it writes a checkpoint."""
CHECK_RUNS_EVERY_S: Final = 0.2
OWN_TO_EACH_RUN: Final = ("run_name", "seed", "map_cycle", "base_tmi_port", "terminal_view")


@dataclass(frozen=True)
class Run:
    """One training."""

    variant: Variant
    track: Path  # a file that `find_track_file` finds; its stem is the name of the map
    seed: int
    minutes: int  # wall-clock since the command
    output: Path  # the benchmark's folder
    port: int  # first one of its games, if they are played through sockets

    @property
    def name(self) -> str:
        """The `run_name`."""
        return f"{self.variant.name}_{self.track.stem}_seed{self.seed}"

    @property
    def note_file(self) -> Path:
        """Note of the run; a run without one has not begun."""
        return self.output / "runs" / f"{self.name}.json"

    @property
    def terminal_file(self) -> Path:
        """Terminal output of the training."""
        return self.output / "runs" / f"{self.name}.txt"

    @property
    def save_folder(self) -> Path:
        """Run folder, save/{run_name}."""
        return self.output / "save" / self.name

    @property
    def command(self) -> list[str]:
        """Command line of the training; the variant's own settings come last and win."""
        own = [f"run_name={self.name}", f"seed={self.seed}", f"base_tmi_port={self.port}", "terminal_view=plain"]
        command = [sys.executable, str(PROJECT / "scripts" / "train.py"), "--config", str(self.variant.config_file)]
        command += ["--output-folder", str(self.output), "--max-wall-s", str(60 * self.minutes)]
        if self.variant.cluster is not None:
            command += ["--cluster", self.variant.cluster]
        if self.variant.weights_from is not None:
            command += ["--weights-from", self.variant.weights_from]
        overrides = (*own, map_cycle_of(self.track), *self.variant.overrides)
        return command + [word for text in overrides for word in ("--set", text)]

    def settings(self) -> Settings:
        """Return the settings of the run.

        Raises:
            UserError: if they are wrong.
        """
        return load_settings(self.variant.config_file, (map_cycle_of(self.track), *self.variant.overrides))

    def last_line(self) -> str:
        """Return the last line of the training's output."""
        lines = self.terminal_file.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "no output")

    def is_complete(self) -> bool:
        """Return whether the run came to its end.

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
                f"{self.note_file} is of a run with {differing[0]} = {before[differing[0]]}, now it is "
                f"{settings[differing[0]]} (differing: {', '.join(differing)}): choose another name for the variant, "
                "or another --output"
            )
        if note["minutes"] < self.minutes:
            raise UserError(
                f"{self.note_file} is of a run of {note['minutes']} minutes, {self.minutes} are asked for: choose "
                "another --output, or delete that file and its run to train again"
            )
        return True


def map_cycle_of(track: Path) -> str:
    """Return the override that trains on one track, with the structure of the default map cycle.

    Raises:
        UserError: if the track file is wrong.
    """
    entry = {
        "map_name": track.stem,
        "map_path": str(track),
        "reference_line": str(reference_line_file(track)),
        "fill_buffer": True,
    }
    exploration = entry | {"is_explo": True, "repeat": EXPLORATION_RACES}
    evaluation = entry | {"is_explo": False, "repeat": 1}
    return f"map_cycle={(exploration, evaluation)!r}"


def read_note(file: Path) -> dict[str, Any] | None:
    """Return the note of a run; None for one that has not begun.

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


def complete_notes(output: Path) -> list[dict[str, Any]]:
    """Return the notes of all complete runs of a folder, in the order of their starts."""
    notes = [read_note(file) for file in (output / "runs").glob("*.json")]
    return sorted((note for note in notes if note is not None and note["is_complete"]), key=lambda one: one["started"])


def plain_settings(settings: Settings) -> dict[str, str]:
    """Return settings as texts, without those that only distinguish runs."""
    return {name: str(value) for name, value in settings.flat().items() if name not in OWN_TO_EACH_RUN}


def train(run: Run, stop: threading.Event) -> bool:
    """Run one training from its start to its end; files of an interrupted one are removed first.

    Args:
        run: one that is not complete.
        stop: ends the training at once, and leaves it incomplete.

    Returns:
        Whether it is complete now; if not and `stop` is not set, `run.terminal_file` says why.
    """
    shutil.rmtree(run.save_folder, ignore_errors=True)
    shutil.rmtree(run.output / "tensorboard" / run.name, ignore_errors=True)
    run.terminal_file.unlink(missing_ok=True)
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
    exit_code = _run_process(run.command, run.terminal_file, stop, 60 * run.minutes + END_WITHIN_S)
    note["is_complete"] = exit_code == 0 and not stop.is_set()
    note["load_at_end"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if note["is_complete"]:
        drop_replay(run.save_folder)
    _write_json(run.note_file, note)
    return bool(note["is_complete"])


def drop_replay(save_folder: Path) -> None:
    """Remove the replay memory of a finished run's checkpoint: a benchmark has many runs."""
    from trackmania_rl.runs.reading import load_checkpoint
    from trackmania_rl.runs.store import save_checkpoint  # torch: seconds

    loaded = load_checkpoint(save_folder, with_rows=False)
    if loaded is None:
        raise UserError(f"{save_folder} holds no checkpoint, although its training ended in order")
    loaded.state["replay"]["memory"] = None  # as with checkpoint_holds_replay = False
    save_checkpoint(save_folder, loaded.state, minimum_free_disk_mb=0, keep=1)


def _run_process(command: list[str], terminal_file: Path, stop: threading.Event, limit_s: float) -> int:
    """Run a command in a session of its own, so that Ctrl-C reaches it through this process; return its exit code."""
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
            elif stop.wait(CHECK_RUNS_EVERY_S):
                process.terminate()
                try:
                    process.wait(END_WITHIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
    return process.returncode


def commit() -> str | None:
    """Return the checkout's commit, with a plus sign if files were changed since; None outside a checkout."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _write_json(file: Path, content: dict[str, Any]) -> None:
    write_durably(file, json.dumps(content, indent=2) + "\n")
