"""What this machine can do: the rates from which floors follow."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.performance.measuring import time_once

GEMM_SIDE = 2048
COPY_BYTES = 64 << 20
ROUNDS = 15


@dataclass(frozen=True)
class Machine:
    """Measured rates, each the best of a few rounds: a floor is what the machine can do when it is left alone.

    Attributes:
        name: of the processor or the GPU.
        threads: that torch computes with.
        flop_per_s: of a large matrix product in the precision that networks compute in here.
        copied_bytes_per_s: of a large copy in the device's memory, each byte counted once.
        load: of the system when the measurement began, in running processes per core.
    """

    name: str
    threads: int
    flop_per_s: float
    copied_bytes_per_s: float
    load: float

    def copy_ms(self, n_bytes: float) -> float:
        """The time of copying so many bytes once."""
        return 1e3 * n_bytes / self.copied_bytes_per_s

    def compute_ms(self, flop: float) -> float:
        """The time of so many floating-point operations in large matrix products."""
        return 1e3 * flop / self.flop_per_s


def measure_machine(device: str) -> Machine:
    """Measure the rates on a device; float32 on a processor, float16 (the precision of training) on a GPU."""
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # One thread is timed by its processor's time, as others may use the processor too.
    clock = 1 if torch.device(device).type == "cpu" and torch.get_num_threads() == 1 else 0
    gemm_ms, copy_ms = (
        min(time_once(function, device)[clock] for _ in range(ROUNDS))
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
    """A function that multiplies two matrices of `GEMM_SIDE` rows and columns."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    left = torch.randn(GEMM_SIDE, GEMM_SIDE, dtype=dtype, device=device)
    product = torch.empty_like(left)
    return lambda: torch.mm(left, left, out=product)


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
