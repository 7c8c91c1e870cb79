"""The clock of all benchmarks: functions timed in turns, and the figure that comes of it."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from trackmania_rl.settings import Settings, load_settings

PROJECT = Path(__file__).resolve().parent.parent.parent
FULL_SIZE = PROJECT / "config_files" / "config_tmnf.py"
DEFAULT_SIZE = PROJECT / "config_files" / "config.py"
MS_PER_ACTION = 50
FEWEST_REPETITIONS = 3


@dataclass(frozen=True)
class Options:
    """How thoroughly to measure.

    Attributes:
        device: where replay memory and networks live.
        repetitions: of calls of milliseconds; slower ones are repeated less, within `seconds_per_figure`.
        seconds_per_figure: about how long one function is repeated.
        n_frames: length of the race that is sent and stored.
        image_size_px: (height, width) of a frame.
        batch_sizes: of sampling.
        learner_batch_size: of learner steps; None for each configuration's own.
        memory_rows: rows of the replay memory.
        client_actions: played in one repetition.
        ticks: of the physics, and 1 / 20 as many pictures, in one repetition.
        training_s: how long to train for the end-to-end figure; 0 leaves it out.
        in_process_games: numbers of games that one process steps together.
        compiled: whether to measure torch.compile as well, which takes minutes.
    """

    device: str = "cpu"
    repetitions: int = 40
    seconds_per_figure: float = 3.0
    n_frames: int = 1_000
    image_size_px: tuple[int, int] = (120, 160)
    batch_sizes: tuple[int, ...] = (512, 64)
    learner_batch_size: int | None = None
    memory_rows: int = 6_000
    client_actions: int = 3_000
    ticks: int = 20_000
    training_s: float = 90.0
    in_process_games: tuple[int, ...] = (16,)
    compiled: bool = True


@dataclass(frozen=True)
class Timing:
    """One function's times.

    Attributes:
        wall_ms: median by the wall clock.
        processor_ms: median of the processor time of this process, all threads.
    """

    wall_ms: float
    processor_ms: float

    @staticmethod
    def median(samples: list[tuple[float, float]]) -> Timing:
        """Of (wall_ms, processor_ms) pairs."""
        walls_ms, processors_ms = zip(*samples, strict=True)
        return Timing(statistics.median(walls_ms), statistics.median(processors_ms))


@dataclass(frozen=True)
class Figure:
    """One line of the report. Times count in ms per call, rates per second; fewer ms and higher rates are better.

    Attributes:
        part: which benchmark it belongs to.
        name: what was measured.
        value: the median by the wall clock.
        unit: "ms", "actions/s", "kB", ...
        processor_ms: processor time of one call or one action; None where it says nothing.
        classic: the yardstick's value, measured in the same run; None where there is none.
        classic_processor_ms: the yardstick's processor time.
        ratio_to: what the yardstick is.
        floor: the best this machine could do, for the reason that `floor_is` gives.
        floor_is: what the floor is made of.
        required_ratio: how many times better than the classic way it is meant to be.
        note: what else one must know.
    """

    part: str
    name: str
    value: float
    unit: str = "ms"
    processor_ms: float | None = None
    classic: float | None = None
    classic_processor_ms: float | None = None
    ratio_to: str = "classic"
    floor: float | None = None
    floor_is: str = ""
    required_ratio: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better than the yardstick, by the wall clock."""
        if self.classic is None:
            return None
        return self.value / self.classic if self.unit.endswith("/s") else self.classic / self.value

    @property
    def processor_ratio(self) -> float | None:
        """The same by processor time, which a busy machine disturbs less."""
        if not self.processor_ms or not self.classic_processor_ms:
            return None
        return self.classic_processor_ms / self.processor_ms

    @staticmethod
    def of_times(part: str, name: str, ours: Timing, classic: Timing | None = None, **rest: object) -> Figure:
        """A figure in ms."""
        return Figure(
            part,
            name,
            ours.wall_ms,
            processor_ms=ours.processor_ms,
            classic=None if classic is None else classic.wall_ms,
            classic_processor_ms=None if classic is None else classic.processor_ms,
            **rest,  # type: ignore[arg-type]
        )

    @staticmethod
    def of_rate(
        part: str, name: str, timing: Timing, count: int, unit: str, classic: Timing | None = None, **rest: object
    ) -> Figure:
        """Return a figure of `count` things per second; `processor_ms` is of one."""
        return Figure(
            part,
            name,
            1e3 * count / timing.wall_ms,
            unit,
            processor_ms=timing.processor_ms / count,
            classic=None if classic is None else 1e3 * count / classic.wall_ms,
            classic_processor_ms=None if classic is None else classic.processor_ms / count,
            **rest,  # type: ignore[arg-type]
        )


def time_once(function: Callable[[], object], device: str = "cpu") -> tuple[float, float]:
    """(wall_ms, processor_ms) of one call, the device's work included."""
    wall_s, processor_s = time.perf_counter(), time.process_time()
    function()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - wall_s), 1e3 * (time.process_time() - processor_s)


def times_in_turns(options: Options, **functions: Callable[[], object]) -> dict[str, Timing]:
    """Time the functions alternately, so that what else the machine does meets all of them alike.

    One round of each is a warm-up and decides how many follow.
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


def settings_for(config: Path, options: Options, *overrides: str) -> Settings:
    """A configuration for the simulated game; with the options' picture where it has one."""
    settings = load_settings(config, ["game=simulated", *overrides])
    if settings.game.image_height_px == 0:
        return settings
    height_px, width_px = options.image_size_px
    size = [f"image_height_px={height_px}", f"image_width_px={width_px}"]
    return load_settings(config, ["game=simulated", *size, *overrides])
