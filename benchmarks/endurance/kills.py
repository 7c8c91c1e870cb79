"""Random `kill -9` of learner, collectors and games, at any moment and while a checkpoint is being written.

One run survives all of them. After each kill it must continue; if the learner was killed, no process or shared memory
may remain, and the same command must resume from the last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import socket
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import psutil

from benchmarks.endurance.experiments import (
    CHECKPOINT_INTERVAL_S,
    DisturbedRun,
    Outcome,
    checkpoints,
    wait_for_checkpoint,
)
from benchmarks.training_command import MOST_GAMES, TrainCommand
from trackmania_rl.processes import end_processes

VICTIMS: Final = {"learner": 4, "collector": 3, "game": 2, "all": 1}
"""Weights of the draw. `all` kills all processes at once, as a power failure does."""
LONGEST_WAIT_S: Final = 4.0
CHECKPOINT_WITHIN_S: Final = 60.0
ALL_GONE_WITHIN_S: Final = 10.0
RESUMES_WITHIN_S: Final = 120.0
WRITING_TAKES_S: Final = 3.0
"""At most, on a busy machine."""

Seconds = defaultdict[str, list[float]]
"""Measured seconds of all kills: `gone` until all processes ended, `resumed` from a start to its first race, `lost` the
age of the newest checkpoint at a learner's death, `back` from a death to races."""


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Kill `asked.kills` processes, half of them with games behind sockets."""
    draw, seconds, n_in_checkpoint, n_done = random.Random(asked.seed), Seconds(list), 0, 0
    outcomes = {
        victim: Outcome(
            f"kill -9 of {'all processes at once' if victim == 'all' else f'the {victim}'}",
            "resumes, nothing left or lost" if victim in ("learner", "all") else "replaced, the others drive on",
        )
        for victim in VICTIMS
    }
    for session, transport in enumerate(("socket", "in_process")):
        run = DisturbedRun(folder / f"{asked.seed}-{session}-{transport}", game_transport=transport)
        command = run.start()
        try:
            command.wait_for_races(4)
            wait_for_checkpoint(command)  # before it, a killed learner begins anew
            while n_done < asked.kills * (session + 1) // 2:
                victim = draw.choices(list(VICTIMS), list(VICTIMS.values()))[0]
                if victim == "game" and transport == "in_process":
                    victim = "collector"
                n_done += 1
                failure = None
                try:
                    n_in_checkpoint += _wait_for_moment(command, draw)
                    if victim in ("learner", "all"):
                        command = _kill_learner(run, command, victim, seconds)
                    else:
                        _kill_part(command, victim, draw, seconds)
                except AssertionError as error:
                    failure = f"kill {n_done}: {error}"
                    command.end()
                    command = run.start()
                    command.wait_for_races(4)
                outcomes[victim].count(failure)
                print(f"kill {n_done}, {victim}: {failure or 'as promised'}", flush=True)
        finally:
            command.end()
    outcomes["learner"].measured = (
        f"all gone after {_text(seconds['gone'])}, next race {_text(seconds['resumed'])} after the start; the newest "
        f"checkpoint was {_text(seconds['lost'])} old; {n_in_checkpoint} of all kills while a checkpoint was written"
    )
    outcomes["collector"].measured = f"its next race after {_text(seconds['back'])} (games and collectors)"
    return [outcome for outcome in outcomes.values() if outcome.tries > 0]


def _wait_for_moment(command: TrainCommand, draw: random.Random) -> bool:
    """Wait for a random time, then in half of the draws for the start of a checkpoint; return whether it did."""
    time.sleep(draw.uniform(0, LONGEST_WAIT_S))
    if draw.random() < 0.5:
        return False
    deadline_s = time.monotonic() + CHECKPOINT_WITHIN_S
    while not list((command.run_folder / "checkpoints").rglob(".*.tmp")):
        assert time.monotonic() < deadline_s, f"no checkpoint was begun within {CHECKPOINT_WITHIN_S:g} s"
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.05))
    return True


def _kill_part(command: TrainCommand, victim: str, draw: random.Random, seconds: Seconds) -> None:
    """Kill a collector or a game, and wait for a race of both collectors."""
    candidates = command.collectors() if victim == "collector" else command.games()
    assert candidates, f"there is no {victim} to kill"
    n_races = len(command.races)
    with contextlib.suppress(psutil.NoSuchProcess):
        draw.choice(candidates).kill()
    back_s = command.wait_for(
        lambda: len({race["collector"] for race in command.races[n_races + 2 :]}) == 2,
        f"races of both collectors after a {victim} was killed",
        RESUMES_WITHIN_S,
    )
    seconds["back"].append(back_s)


def _kill_learner(run: DisturbedRun, command: TrainCommand, victim: str, seconds: Seconds) -> TrainCommand:
    """Kill the learner, check what is left, start the command again, and check that nothing is lost."""
    command.collectors()
    records = {path.name for path in (command.run_folder / "best_runs").glob("[!.]*")}
    if victim == "all":
        family = command.children("")
        end_processes([psutil.Process(command.process.pid), *family], ALL_GONE_WITHIN_S)
        command.process.wait()
    else:
        seconds["gone"].append(command.stop(signal.Signals["SIGKILL"]))
    assert not command.survivors(), f"these live on: {command.survivors()}"
    written_s = checkpoints(command).values()
    assert written_s, "no whole checkpoint is there"
    seconds["lost"].append(time.time() - max(written_s))
    _require_free_ports(command.port)
    session = max(race["session"] for race in command.races)
    again = run.start()
    try:
        resumed_s = again.wait_for(
            lambda: any(race["session"] > session for race in again.races), "a race after the start", RESUMES_WITHIN_S
        )
        seconds["resumed"].append(resumed_s)
        assert "resumed" in again.output, f"it did not resume: {again.output}"
        _require_records(again.run_folder, records)
        lost_s = seconds["lost"][-1]
        oldest_s = CHECKPOINT_INTERVAL_S + WRITING_TAKES_S + LONGEST_WAIT_S
        assert lost_s <= oldest_s, f"the newest checkpoint was {lost_s:.1f} s old"
    except AssertionError:
        again.end()
        raise
    return again


def _require_records(run_folder: Path, before: set[str]) -> None:
    now = {path.name: path for path in (run_folder / "best_runs").glob("[!.]*")}
    assert not before - now.keys(), f"these records are gone: {before - now.keys()}"
    for name, path in now.items():
        is_whole = (path / f"{name}.inputs").is_file() and (path / "q_values.npy").is_file()
        assert is_whole, f"the record {name} is not whole"


def _require_free_ports(first: int) -> None:
    for port in range(first, first + MOST_GAMES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise AssertionError(f"port {port} is still taken") from error


def _text(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({max(seconds):.1f} s at most)" if seconds else "never"
