"""Reads files of strangers in a process of its own, and prints the result of each: `read_files.py LIST`.

LIST has lines `kind<TAB>path`. A JSON line is written for each: the error's class and text, seconds of processor time,
and the most memory that was taken beyond what was before, in MB.
"""

from __future__ import annotations

import contextlib
import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackmania_rl.drivers.driver_file import read_driver
from trackmania_rl.drivers.evaluation import load_driver
from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.minari_files import open_dataset
from trackmania_rl.gbx.reading import read_gbx
from trackmania_rl.migration.linesight_config import read_linesight_config
from trackmania_rl.migration.linesight_files import read_statistics, read_weights
from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.reference_line import load_reference_line

MOST_MEMORY_BYTES = 8 << 30
"""Of addresses: what is too much for the test must not be too much for the machine."""


def read_dataset(path: Path) -> None:
    for _ in open_dataset(str(path), Path()).episodes():
        pass


READERS: dict[str, Callable[[Path], Any]] = {
    "track": load_track,
    "line": lambda path: load_reference_line(path, 0.5),
    "driver": read_driver,
    "driver that drives": load_driver,
    "gbx": read_gbx,
    "inputs": read_input_script,
    "weights": read_weights,
    "statistics": read_statistics,
    "config": read_linesight_config,
    "dataset": read_dataset,
}


def memory_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise LookupError(name)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    listed = [line.split("\t") for line in Path(sys.argv[1]).read_text().splitlines()]
    for kind in {kind for kind, _ in listed}:  # late imports are no cost of a file
        with contextlib.suppress(Exception):
            READERS[kind](Path("absent"))
    for kind, path in listed:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before_mb, started_s, error = memory_mb("VmRSS"), time.process_time(), ("", "")
        try:
            READERS[kind](Path(path))
        except BaseException as caught:
            error = (type(caught).__name__ if not isinstance(caught, UserError) else "UserError", str(caught))
        told = {"kind": kind, "path": path, "error": error[0], "text": error[1]}
        told |= {"cpu_s": time.process_time() - started_s, "peak_mb": memory_mb("VmHWM") - before_mb}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
