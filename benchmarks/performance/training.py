"""A short training from end to end, by `scripts/train.py`."""

from __future__ import annotations

import contextlib
import re
import signal
import tempfile
from pathlib import Path

import psutil

from benchmarks.performance.measuring import Figure, Machine, Options
from benchmarks.training_command import TrainCommand

PART = "training"
SETTLED_SHARE = 0.5
"""Rates are those of the last half: the first compiles, and fills the memory without learning."""


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Train with the default configuration: floats only.

    Raises:
        RuntimeError: if no race ends in that time.
    """
    if options.training_s == 0:
        return []
    settings = {
        "terminal_view": "plain",
        "torch_device": options.device,
        "use_torch_compile": options.compiled,
    }
    usages: list[list[tuple[float, float]]] = []
    with tempfile.TemporaryDirectory() as folder, TrainCommand(Path(folder), settings) as command:
        command.watch(options.training_s, lambda: usages.append(_usage(command)))
        command.stop(signal.SIGTERM)
        races, output = command.races, command.output
    rates = re.findall(r"([\d.,]+) batches/s", output)
    if not races or not rates:
        raise RuntimeError(f"no race was over within {options.training_s:.0f} s, starting and compiling included")
    last = races[-1]
    first = next(race for race in races if race["wall_s"] >= SETTLED_SHARE * last["wall_s"])
    frames_per_s = (last["frames_total"] - first["frames_total"]) / max(1e-9, last["wall_s"] - first["wall_s"])
    halfway, end = usages[int(SETTLED_SHARE * len(usages))], usages[-1]
    learner_s, others_s = (late[0] - early[0] for early, late in zip(halfway, end, strict=True))
    name = f"default configuration, {options.training_s:.0f} s"
    note = (
        f"collectors and games took {100 * others_s / (learner_s + others_s):.0f} % of the processor time; resident "
        f"memory: learner {end[0][1]:.0f} MB, largest other {end[1][1]:.0f} MB"
    )
    return [
        Figure(PART, name, frames_per_s, "frames/s", note=note),
        Figure(PART, name, float(rates[-1].replace(",", "")), "batches/s"),
    ]


def _usage(command: TrainCommand) -> list[tuple[float, float]]:
    """Return (processor time in s, resident memory of the largest process in MB) of the learner and of its children."""
    usage = []
    for processes in ([psutil.Process(command.process.pid)], command.children("")):
        seconds, megabytes = 0.0, 0.0
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # ended since it was listed
                seconds += sum(process.cpu_times()[:2])
                megabytes = max(megabytes, process.memory_info().rss / 1e6)
        usage.append((seconds, megabytes))
    return usage
