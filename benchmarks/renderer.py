"""Frames per second of the simulated game's picture, on one core.

    python benchmarks/renderer.py [--track maps/valley.toml]

The poses are spread evenly along the track. Every round draws each of them once; the median round counts.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from statistics import median

import numpy as np

from trackmania_rl.simulator.renderer import Renderer
from trackmania_rl.simulator.track_file import load_track

SIZES_PX = ((160, 120), (64, 48), (640, 480))
N_POSES = 100
WARM_UP_ROUNDS = 2
ROUNDS = 15
REPOSITORY_ROOT = Path(__file__).resolve().parent.parent


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--track", type=Path, default=REPOSITORY_ROOT / "maps" / "valley.toml", help="a track file")
    track = load_track(parser.parse_args().track)
    ribbon = track.ribbon
    start, finish = np.searchsorted(ribbon.station_m, [0.0, track.finish_station_m])
    sections = np.linspace(start, finish, N_POSES).astype(int)
    rotations = np.stack([ribbon.left, ribbon.up, ribbon.forward], axis=2)[sections]
    renderer = Renderer(track)

    start_s = time.perf_counter()
    renderer.render(ribbon.center_m[sections[0]], rotations[0], sections[0], *SIZES_PX[0])
    first_s = time.perf_counter() - start_s
    print(f"{processor_name()}, Python {platform.python_version()}, track {track.name}")
    print(f"first frame {first_s:.2f} s (seconds where numba compiles, a fraction where its cache is found)")
    print(f"{N_POSES} poses a round, {WARM_UP_ROUNDS} rounds to warm up, median of {ROUNDS} rounds (fastest, slowest):")
    for width_px, height_px in SIZES_PX:
        rates = []
        for _ in range(WARM_UP_ROUNDS + ROUNDS):
            start_s = time.perf_counter()
            for section, rotation in zip(sections, rotations, strict=True):
                renderer.render(ribbon.center_m[section], rotation, section, width_px, height_px)
            rates.append(N_POSES / (time.perf_counter() - start_s))
        rates = rates[WARM_UP_ROUNDS:]
        print(
            f"  {width_px:4d} x {height_px:3d}: {median(rates):7,.0f} frames/s ({max(rates):,.0f}, {min(rates):,.0f})"
        )


if __name__ == "__main__":
    main()
