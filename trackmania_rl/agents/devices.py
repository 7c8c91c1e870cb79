"""Device, precision, compilation, memory and threads for network computations.

torch._dynamo, which takes two seconds to import, is imported only where something is compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from trackmania_rl.errors import UserError, warn_once
from trackmania_rl.paths import user_folder
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import AgentSettings, Settings

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_MAX: Final = -4
KEPT_BYTES: Final = 2**31 - 1
"""The largest value that `mallopt` takes."""
GROWS_BY_BYTES: Final = 64 << 20
BFLOAT16_INSTRUCTIONS: Final = ("amx_bf16", "avx512_bf16")
LEAST_WEIGHTS: Final = 1 << 20
PROBE_ROWS: Final = 64
PROBE_ROUNDS: Final = 5
LEAST_GAIN: Final = 1.2
MOST_COMPILATIONS: Final = 64
"""Compilations per function, for edited settings, before it runs eagerly. Torch's default is 8."""


def pick_device(torch_device: str, setting: str = "torch_device") -> torch.device:
    """Return the device that a setting names, and make it current; "auto" is a GPU if one works.

    Raises:
        UserError: if torch cannot use the named device.
    """
    if torch_device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        if (reason := why_unusable("cuda")) is not None:
            warn_once(f"the GPU cannot be used ({reason}); the network runs on the processor", log)
            return torch.device("cpu")
        return torch.device("cuda")
    if (reason := why_unusable(torch_device)) is not None:
        raise UserError(f'{setting} = "{torch_device}" cannot be used here: {reason}; try "auto" or "cpu"')
    device = torch.device(torch_device)
    if device.type == "cuda" and device.index is not None:  # streams and memory figures are for the current GPU
        torch.cuda.set_device(device)
    return device


def pick_playing_device(settings: Settings, spaces: Spaces) -> torch.device:
    """Return the collectors' device: as `collector_device` says; "auto" is the processor, unless there is an image.

    A few float states take a fraction of a millisecond on a processor, less than a GPU's launches.

    Raises:
        UserError: if torch cannot use the named device.
    """
    run = settings.run
    if run.collector_device != "auto":
        return pick_device(run.collector_device, "collector_device")
    return pick_device(run.torch_device) if spaces.has_image else torch.device("cpu")


@functools.cache
def why_unusable(device: str) -> str | None:
    """Return in one line why torch cannot compute on a device; None if it can.

    torch lists GPUs older than its kernels or newer than the driver, so this makes a computation.
    """
    try:
        torch.ones(1, device=device).add_(1).item()
    except torch.OutOfMemoryError:  # usable, but full
        return None
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA fails an assertion
        return str(error).splitlines()[0]
    return None


def arithmetic_dtype(device: torch.device, settings: AgentSettings, network: nn.Module) -> torch.dtype:
    """Return the precision for a network's large products.

    A GPU computes as configured, "auto" is float16; but in float16 where it would emulate bfloat16. A processor
    computes in float32 or, if it has instructions for it, in a configured bfloat16; "auto" is the faster one.
    """
    name = settings.autocast_dtype
    if device.type == "cuda":
        dtype: torch.dtype = torch.float16 if name == "auto" else getattr(torch, name)
        emulates = dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.float16 if emulates else dtype
    capabilities = torch.cpu.get_capabilities()
    if name in ("float32", "float16") or not any(capabilities.get(one, False) for one in BFLOAT16_INSTRUCTIONS):
        return torch.float32
    shapes = [layer.weight.shape for layer in network.modules() if isinstance(layer, nn.Linear)]
    largest = max(shapes, key=math.prod, default=torch.Size((0, 0)))
    return torch.bfloat16 if name == "bfloat16" or bfloat16_is_faster(*largest) else torch.float32


@functools.cache
def bfloat16_is_faster(n_outputs: int, n_inputs: int) -> bool:
    """Measure whether products with a layer's weights take less time in bfloat16, by a sixth, than in float32.

    A processor may have the instructions and yet be slower. Small layers save less than the conversions take: they are
    not measured.
    """
    if n_outputs * n_inputs < LEAST_WEIGHTS:
        return False
    best_s: dict[torch.dtype, float] = {}
    pairs = [
        (torch.ones(PROBE_ROWS, n_inputs, dtype=dtype), torch.ones(n_outputs, n_inputs, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    ]
    for _ in range(PROBE_ROUNDS):  # in turns, as other processes disturb
        for rows, weight in pairs:
            start_s = time.perf_counter()
            F.linear(rows, weight)
            took_s = time.perf_counter() - start_s
            best_s[rows.dtype] = min(took_s, best_s.get(rows.dtype, math.inf))
    return best_s[torch.float32] > LEAST_GAIN * best_s[torch.bfloat16]


def compiled(function: Callable[Arguments, Result], mode: str | None = None) -> Callable[Arguments, Result]:
    """Compile a function as a single graph. If that fails, as without a C++ compiler, warn once and run it.

    Args:
        function: works on tensors; changes to anything else that it reads recompile it.
        mode: for `torch.compile`; "reduce-overhead" records CUDA graphs, whose results the next call overwrites.
    """
    works = True

    @functools.cache
    def graph() -> Callable[Arguments, Result]:  # takes half a second, in which collectors start
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        # Compiled code runs, so the cache is not in the shared temporary folder, torch's default, which importing
        # tensordict sets.
        if os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()) == default_cache_dir():
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(user_folder("torch_compile"))
        _give_tqdm_a_lock()
        return torch.compile(function, fullgraph=True, mode=mode)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        nonlocal works
        if works:
            _configure_dynamo()
            try:
                return graph()(*args, **kwargs)
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:  # the second is not one of the first
                works = False
                warn_once(f"use_torch_compile: it runs without, since: {str(error).splitlines()[0]}", log)
        return function(*args, **kwargs)

    return call


def _configure_dynamo() -> None:
    """Set torch's compiler up in this thread: settings are per thread."""
    config = torch._dynamo.config
    if not config.trace_autograd_ops:
        config.trace_autograd_ops = True  # lets a graph hold gradients
        config.recompile_limit = MOST_COMPILATIONS


def _give_tqdm_a_lock() -> None:
    """Keep tqdm, which torch's compiler calls, from making a semaphore: a killed one remains in /dev/shm."""
    if importlib.util.find_spec("tqdm") is not None:
        import tqdm

        tqdm.tqdm.set_lock(threading.RLock())


def keep_freed_memory() -> None:
    """Keep freed memory for the next update, with the GNU C library.

    By default it returns large tensors to the system and gets them back zeroed, which takes a seventh of a
    full-size update on a processor.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, KEPT_BYTES), (M_TOP_PAD, GROWS_BY_BYTES)):
            library.mallopt(parameter, value)


def usable_cores() -> int:
    """Count the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pick_learner_threads(settings: Settings, spaces: Spaces) -> int:
    """Return the setting `learner_threads`. "auto" is every core without a collector for convolutions, and else 1.

    Threads synchronize at each operation, which slows small ones. Their number changes the sums' last bits, so
    synchronous runs have one.
    """
    if settings.run.learner_threads != "auto":
        return settings.run.learner_threads
    on_processor = pick_device(settings.run.torch_device).type == "cpu"
    if settings.sync.is_synchronous or not spaces.has_image or not on_processor:
        return 1
    return max(1, usable_cores() - settings.game.n_collectors)
