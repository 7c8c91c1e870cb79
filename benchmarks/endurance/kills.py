"""Random `kill -9` over learner, collectors and games, at any moment and while a checkpoint is being written.

One run goes on through all of them. After each it must drive on, or, where the learner was killed, leave nothing behind
and go on from its last checkpoint with the same command.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks.endurance.outcomes import Outcome
from benchmarks.endurance.small_training import CHECKPOINT_INTERVAL_S, TormentedRun
from benchmarks.training_command import TrainCommand, TrainingFailedError
from trackmania_rl.telemetry.learning_summary import iterate_races

VICTIMS: Final = ("learner", "collector", "game", "all")
"""`all` is the whole family at once, as when the machine runs out of memory or power."""
WEIGHTS: Final = (4, 3, 2, 1)
MOMENTS: Final = ("any", "in a checkpoint")
LONGEST_WAIT_S: Final = 4.0
CHECKPOINT_WITHIN_S: Final = 60.0
ALL_GONE_WITHIN_S: Final = 10.0
RESUMES_WITHIN_S: Final = 120.0
WRITING_TAKES_S: Final = 3.0
"""At most, on a busy machine."""


@dataclass
class Seen:
    """What was measured over all kills.

    Attributes:
        gone_s: until all processes of a killed learner were gone.
        resumed_s: from the start of a command to its first race.
        lost_s: how old the newest whole checkpoint was when the learner was killed.
        back_s: from the death of a collector or game to races of its collector.
        moments: how many kills fell in a checkpoint.
    """

    gone_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    lost_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    moments: int = 0


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Kill so many processes."""
    draw, seen = random.Random(asked.seed), Seen()
    outcomes = {
        victim: Outcome(
            f"kill -9 of {'the whole family at once' if victim == 'all' else f'the {victim}'}",
            "resumes, nothing left or lost" if victim in ("learner", "all") else "replaced, the others drive on",
        )
        for victim in VICTIMS
    }
    n_done = 0
    for session, transport in enumerate(("socket", "in_process")):
        run = TormentedRun(folder / f"{asked.seed}-{session}-{transport}", game_transport=transport)
        command = run.start()
        try:
            command.wait_for_races(4)
            while n_done < asked.kills * (session + 1) // 2:
                victim = draw.choices(VICTIMS, WEIGHTS)[0]
                if victim == "game" and transport == "in_process":
                    victim = "collector"
                n_done += 1
                try:
                    _wait_for_the_moment(command, draw, seen)
                    if victim in ("learner", "all"):
                        command = _kill_learner(run, command, victim, seen)
                    else:
                        _kill_part(command, victim, draw, seen)
                    failure = None
                except (TrainingFailedError, FoundError) as error:
                    failure = f"kill {n_done}: {error}"
                    command.end()
                    command = run.start()
                    command.wait_for_races(4)
                outcomes[victim].count(failure)
                print(f"kill {n_done}, {victim}: {'as promised' if failure is None else failure}", flush=True)
        finally:
            command.end()
    outcomes["learner"].told = (
        f"all gone after {max(seen.gone_s):.1f} s, next race {_told(seen.resumed_s)} after the start; the newest "
        f"checkpoint was {_told(seen.lost_s)} old; {seen.moments} of all kills while a checkpoint was written"
    )
    outcomes["collector"].told = f"its next race after {_told(seen.back_s)} (games and collectors)"
    return [outcome for outcome in outcomes.values() if outcome.tries > 0]


class FoundError(Exception):
    """Something that should not be."""


def _wait_for_the_moment(command: TrainCommand, draw: random.Random, seen: Seen) -> None:
    """Wait a random while, or until a checkpoint has been begun."""
    time.sleep(draw.uniform(0, LONGEST_WAIT_S))
    if draw.choice(MOMENTS) == "any":
        return
    give_up_s = time.monotonic() + CHECKPOINT_WITHIN_S
    while time.monotonic() < give_up_s:
        if _unfinished(command.run_folder):
            time.sleep(draw.uniform(0, 0.05))
            seen.moments += 1
            return
        time.sleep(0.001)
    raise FoundError(f"no checkpoint was begun within {CHECKPOINT_WITHIN_S:g} s")


def _unfinished(run_folder: Path) -> list[Path]:
    """Find what a checkpoint and the rows of its memory are written under before they are whole."""
    return list((run_folder / "checkpoints").rglob(".*.tmp"))


def _is_whole(checkpoint: Path) -> bool:
    return checkpoint.name.isdigit()


def _whole_checkpoints(run_folder: Path) -> dict[str, float]:
    """Find whole checkpoints by name, with the time at which each was there."""
    found = {}
    for path in (run_folder / "checkpoints").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
            if _is_whole(path):
                found[path.name] = path.stat().st_mtime
    return found


def _kill_part(command: TrainCommand, victim: str, draw: random.Random, seen: Seen) -> None:
    """Kill a collector or a game, and wait for a race of each collector."""
    candidates = command.collectors() if victim == "collector" else command.games()
    if not candidates:
        raise FoundError(f"there is no {victim} to kill")
    n_races, began_s = len(command.races), time.monotonic()
    with contextlib.suppress(psutil.NoSuchProcess):
        draw.choice(candidates).kill()
    n_collectors = 2
    command.wait_for(
        lambda: len({race["collector"] for race in command.races[n_races + 2 :]}) == n_collectors,
        f"races of both collectors after a {victim} was killed",
        RESUMES_WITHIN_S,
    )
    seen.back_s.append(time.monotonic() - began_s)


def _kill_learner(run: TormentedRun, command: TrainCommand, victim: str, seen: Seen) -> TrainCommand:
    """Kill the learner, see what is left, start the command again, and see that nothing is lost."""
    command.collectors()
    shared_memory = command.shared_memory()
    records = {path.name for path in (command.run_folder / "best_runs").glob("[!.]*")}
    if victim == "all":
        family = command.children("")
        for process in (psutil.Process(command.process.pid), *family):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        command.process.wait()
        psutil.wait_procs(family, ALL_GONE_WITHIN_S)  # a process that is killed is gone a moment later
    else:
        seen.gone_s.append(command.stop(signal.SIGKILL))
    killed_at_s = time.time()
    if command.survivors():
        raise FoundError(f"these live on: {command.survivors()}")
    checkpoints = _whole_checkpoints(command.run_folder)
    if not checkpoints:
        raise FoundError("no whole checkpoint is there")
    lost_s = killed_at_s - max(checkpoints.values())
    seen.lost_s.append(lost_s)
    if victim == "learner" and (left := [name for name in shared_memory if os.path.exists(name)]):
        raise FoundError(f"shared memory is left: {left}")
    _require_free_ports(command.port)
    session = max(race["session"] for race in command.races)
    again = run.start()
    seen.resumed_s.append(
        again.wait_for(
            lambda: any(race["session"] > session for race in again.races), "a race after the start", RESUMES_WITHIN_S
        )
    )
    if left := [name for name in shared_memory if os.path.exists(name)]:
        raise FoundError(f"shared memory is left after the next start: {left}")
    if "resumed" not in again.output:
        raise FoundError(f"it did not resume: {again.output}")
    _require_records(again.run_folder, records)
    for _ in iterate_races(again.run_folder / "races.jsonl"):
        pass  # every line is one
    if lost_s > CHECKPOINT_INTERVAL_S + WRITING_TAKES_S + LONGEST_WAIT_S:
        raise FoundError(f"the newest checkpoint was {lost_s:.1f} s old")
    return again


def _require_records(run_folder: Path, before: set[str]) -> None:
    """See that each record is whole, and that none is gone."""
    now = {path.name: path for path in (run_folder / "best_runs").glob("[!.]*")}
    if missing := before - now.keys():
        raise FoundError(f"these records are gone: {missing}")
    for name, path in now.items():
        if not ((path / f"{name}.inputs").is_file() and (path / "q_values.npy").is_file()):
            raise FoundError(f"the record {name} is not whole")


def _require_free_ports(first: int) -> None:
    """See that every game's port can be had."""
    for port in range(first, first + 4):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise FoundError(f"port {port} is still taken") from error


def _told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({max(seconds):.1f} s at most)" if seconds else "never"
