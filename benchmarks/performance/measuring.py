"""Clock, machine rates, figures and report of all parts: functions timed in turns, and the table and JSON of them."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from trackmania_rl.settings import Settings, load_settings

PROJECT = Path(__file__).resolve().parent.parent.parent
FULL_SIZE = PROJECT / "config_files" / "config_tmnf.py"
DEFAULT_SIZE = PROJECT / "config_files" / "config.py"
MS_PER_ACTION = 50
FEWEST_REPETITIONS = 3
GEMM_SIDE = 2048
COPY_BYTES = 64 << 20
MACHINE_ROUNDS = 15


@dataclass(frozen=True)
class Options:
    """Sizes and durations of the measurements."""

    device: str = "cpu"  # of replay memory and networks
    repetitions: int = 40  # of calls of milliseconds; slower ones are repeated less, within `seconds_per_figure`
    seconds_per_figure: float = 3.0  # duration of the repetitions of one function
    n_frames: int = 1_000  # of the race that is sent and stored
    image_size_px: tuple[int, int] = (120, 160)  # (height, width) of a frame
    batch_sizes: tuple[int, ...] = (512, 64)  # of sampling
    learner_batch_size: int | None = None  # of learner steps; None for each configuration's own
    memory_rows: int = 6_000  # of the replay memory
    client_actions: int = 3_000  # played in one repetition
    ticks: int = 20_000  # of the physics, and 1 / 20 as many pictures, in one repetition
    training_s: float = 90.0  # of the training from end to end; 0 leaves it out
    in_process_games: tuple[int, ...] = (16,)  # numbers of games that one process steps together
    compiled: bool = True  # measure torch.compile as well, which takes minutes


@dataclass(frozen=True)
class Timing:
    """Median times of one function."""

    wall_ms: float
    processor_ms: float  # of this process, all threads

    @staticmethod
    def median(samples: list[tuple[float, float]]) -> Timing:
        """Return the medians of (wall_ms, processor_ms) pairs."""
        walls_ms, processors_ms = zip(*samples, strict=True)
        return Timing(statistics.median(walls_ms), statistics.median(processors_ms))


@dataclass(frozen=True)
class Machine:
    """Measured rates, each the best of a few rounds."""

    name: str  # of the processor or the GPU
    threads: int  # of torch
    flop_per_s: float  # of a large matrix product in the precision that networks compute in here
    copied_bytes_per_s: float  # of a large copy in the device's memory, each byte counted once
    load: float  # of the system when the measurement began, running processes per core

    def copy_ms(self, n_bytes: float) -> float:
        """Return the time of copying some bytes once."""
        return 1e3 * n_bytes / self.copied_bytes_per_s

    def compute_ms(self, flop: float) -> float:
        """Return the time of some floating-point operations in large matrix products."""
        return 1e3 * flop / self.flop_per_s


@dataclass(frozen=True)
class Figure:
    """One line of the report: ms per call, where less is better, or a rate per second, where more is."""

    part: str
    name: str
    value: float  # median by the wall clock
    unit: str = "ms"  # or "actions/s", ...
    processor_ms: float | None = None  # of one call or one action
    classic: float | None = None  # the classic way's value, measured in the same run
    classic_processor_ms: float | None = None
    floor: float | None = None  # the best that this machine could do
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ratio to the classic way by the wall clock; above 1 is better."""
        if self.classic is None:
            return None
        return self.value / self.classic if self.unit.endswith("/s") else self.classic / self.value

    @property
    def processor_ratio(self) -> float | None:
        """Ratio by processor time, which a busy machine disturbs less."""
        if not self.processor_ms or not self.classic_processor_ms:
            return None
        return self.classic_processor_ms / self.processor_ms

    @staticmethod
    def of_times(
        part: str, name: str, ours: Timing, classic: Timing | None = None, floor: float | None = None, note: str = ""
    ) -> Figure:
        """Return a figure in ms."""
        wall_ms, processor_ms = (None, None) if classic is None else (classic.wall_ms, classic.processor_ms)
        return Figure(part, name, ours.wall_ms, "ms", ours.processor_ms, wall_ms, processor_ms, floor, note)

    @staticmethod
    def of_rate(
        part: str,
        name: str,
        timing: Timing,
        count: int,
        unit: str,
        classic: Timing | None = None,
        floor: float | None = None,
        note: str = "",
    ) -> Figure:
        """Return a figure of `count` things per second; `processor_ms` is of one."""
        rate, per_thing_ms = 1e3 * count / timing.wall_ms, timing.processor_ms / count
        if classic is None:
            return Figure(part, name, rate, unit, per_thing_ms, floor=floor, note=note)
        of_classic = 1e3 * count / classic.wall_ms, classic.processor_ms / count
        return Figure(part, name, rate, unit, per_thing_ms, *of_classic, floor, note)


def time_once(function: Callable[[], object], device: str = "cpu") -> tuple[float, float]:
    """Return (wall_ms, processor_ms) of one call, the device's work included."""
    wall_s, processor_s = time.perf_counter(), time.process_time()
    function()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - wall_s), 1e3 * (time.process_time() - processor_s)


def times_in_turns(options: Options, **functions: Callable[[], object]) -> dict[str, Timing]:
    """Time functions alternately, so that other work of the machine affects all of them alike.

    The first round is a warm-up and decides the number of rounds.
    """
    once_s = {name: time_once(function, options.device)[0] / 1e3 for name, function in functions.items()}
    affordable = int(options.seconds_per_figure / max(once_s.values()))
    repetitions = max(FEWEST_REPETITIONS, min(options.repetitions, affordable))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    gc.collect()
    gc.freeze()  # one way's many objects must not be searched for garbage in the other way's time
    try:
        for _ in range(repetitions):
            for name, function in functions.items():
                samples[name].append(time_once(function, options.device))
    finally:
        gc.unfreeze()
    return {name: Timing.median(pairs) for name, pairs in samples.items()}


def measure_machine(device: str) -> Machine:
    """Measure the rates on a device; float32 on a processor, float16 (the precision of training) on a GPU."""
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # One thread is timed by its processor's time, as others may use the processor too.
    clock = 1 if torch.device(device).type == "cpu" and torch.get_num_threads() == 1 else 0
    gemm_ms, copy_ms = (
        min(time_once(function, device)[clock] for _ in range(MACHINE_ROUNDS))
        for function in (matrix_product(torch.device(device)), lambda: target.copy_(source))
    )
    return Machine(
        name=torch.cuda.get_device_name(device) if device.startswith("cuda") else processor_name(),
        threads=torch.get_num_threads(),
        flop_per_s=2 * GEMM_SIDE**3 / (gemm_ms / 1e3),
        copied_bytes_per_s=COPY_BYTES / (copy_ms / 1e3),
        load=os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0,
    )


def matrix_product(device: torch.device) -> Callable[[], object]:
    """Return a function that multiplies two matrices of `GEMM_SIDE` rows and columns."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    left = torch.randn(GEMM_SIDE, GEMM_SIDE, dtype=dtype, device=device)
    product = torch.empty_like(left)
    return lambda: torch.mm(left, left, out=product)


def processor_name() -> str:
    """Return the processor's own name where the system has it."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def settings_for(config: Path, options: Options, *overrides: str) -> Settings:
    """Return a configuration for the simulated game, with the options' picture if it has one."""
    settings = load_settings(config, ["game=simulated", *overrides])
    if settings.game.image_height_px == 0:
        return settings
    height_px, width_px = options.image_size_px
    size = [f"image_height_px={height_px}", f"image_width_px={width_px}"]
    return load_settings(config, ["game=simulated", *size, *overrides])


def print_report(figures: Sequence[Figure], machine: Machine, console: Console) -> None:
    """Print one line for each figure, and its notes below."""
    console.print(
        f"{machine.name}, {machine.threads} thread(s), torch {torch.__version__}, Python {platform.python_version()}: "
        f"{machine.flop_per_s / 1e9:,.0f} GFLOP/s in a matrix product, {machine.copied_bytes_per_s / 1e9:.1f} GB/s "
        f"copied; load per core at the start {machine.load:.1f}"
    )
    table = Table("part", "figure", title="medians, and ratios to the classic way")
    for heading in ("here", "processor ms", "classic", "ratio", "by processor", "floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        numbers = (figure.processor_ms, figure.classic, figure.ratio, figure.processor_ratio, figure.floor)
        here = f"{_number(figure.value)} {figure.unit}"
        table.add_row(figure.part, figure.name + (" *" if figure.note else ""), here, *map(_number, numbers))
    console.print(table)
    for figure in figures:
        if figure.note:
            console.print(f"{figure.part}, {figure.name}: {figure.note}")


def write_json(file: Path, figures: Sequence[Figure], machine: Machine, options: Options) -> None:
    """Write all figures with machine, versions and options."""
    content = {
        "machine": asdict(machine),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "options": asdict(options),
        "figures": [
            asdict(figure) | {"ratio": figure.ratio, "processor_ratio": figure.processor_ratio} for figure in figures
        ],
    }
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.4g}"
