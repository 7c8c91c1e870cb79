"""Files in a Linesight run. No code in them is run.

    weights1.torch             state dict of the online network
    weights2.torch             state dict of the target network
    optimizer1.torch           state dict of torch.optim.RAdam
    scaler.torch               state dict of torch's GradScaler
    accumulated_stats.joblib   counters and best times: a pickled dictionary

The prefix `_orig_mod.` that `torch.compile` puts before parameter names is removed.

`require_bounded` limits time and memory: a pickle of 1 kB can hold a key whose hash takes years, and ten lines of
Python a tuple that fills the memory.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import torch
from torch import Tensor

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded
from trackmania_rl.processes import PipeEnd, answering

ONLINE_WEIGHTS: Final = "weights1.torch"
TARGET_WEIGHTS: Final = "weights2.torch"
OPTIMIZER: Final = "optimizer1.torch"
SCALER: Final = "scaler.torch"
STATISTICS: Final = "accumulated_stats.joblib"

SCALER_STATE: Final[Mapping[str, type[float] | type[int]]] = {"scale": float, "_growth_tracker": int}
"""Entries in the gradient scaler's state dict to convert."""
COMPILED_PREFIX: Final = "_orig_mod."
LARGEST_STATISTICS_BYTES: Final = 1 << 16
LARGEST_WEIGHTS_BYTES: Final = 128 << 20
LARGEST_NUMBER: Final = 1 << 63

IMPORT_LIMIT_S: Final = 120.0
READ_LIMIT_S: Final = 20.0
MEMORY_LIMIT_BYTES: Final = 2 << 30
TOO_LARGE: Final = f"fills more than {MEMORY_LIMIT_BYTES >> 30} GiB of memory"

Reading = tuple[Callable[[Path], object], Path]
"""A function and the file that it reads."""


class LinesightFileError(UserError):
    """A Linesight run file that cannot be used."""


@dataclass(frozen=True)
class Moments:
    """Running means over each parameter's gradient and squared gradient, and optimizer step count."""

    mean: tuple[Tensor, ...]
    mean_square: tuple[Tensor, ...]
    steps: int


@dataclass(frozen=True)
class LinesightStatistics:
    """A run's counters; 0 where the file has none.

    Linesight's schedules follow `frames`; before its commit 098cbf8 (2024-12-05) they followed `transitions`.
    """

    frames: int = 0
    transitions: int = 0
    batches: int = 0
    training_hours: float = 0.0
    best_times_ms: Mapping[str, int] = field(default_factory=dict)


# Reading. All functions raise `LinesightFileError` if the file is missing, damaged, or another kind.


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return a network's weights by name, float32, on the CPU."""
    content = _load_torch(file)
    if not isinstance(content, Mapping) or not content:
        raise LinesightFileError(f"{file} holds no weights")
    weights = {}
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise LinesightFileError(f"{file} holds something that is no weight by a name")
        weights[name.replace(COMPILED_PREFIX, "")] = tensor.float()
    return weights


def read_moments(file: Path) -> Moments | None:
    """Return the optimizer's state; None before the first step."""
    content = _load_torch(file)
    try:
        states = [content["state"][index] for index in sorted(content["state"])]
        if not states:
            return None
        return Moments(
            mean=tuple(state["exp_avg"].float() for state in states),
            mean_square=tuple(state["exp_avg_sq"].float() for state in states),
            steps=max(int(state["step"]) for state in states),
        )
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise LinesightFileError(f"{file} is no state of RAdam: {error!r}") from error


def read_loss_scale(file: Path) -> dict[str, float]:
    """Return the gradient scaler's scale and updates since it grew, by key; nothing for a disabled scaler."""
    content = _load_torch(file)
    try:
        state = {name: kind(content[name]) for name, kind in SCALER_STATE.items() if content.get(name) is not None}
    except (AttributeError, TypeError, ValueError) as error:
        raise LinesightFileError(f"{file} is no state of a gradient scaler: {error!r}") from error
    if not 0 < state.get("scale", 1.0) < float("inf"):
        raise LinesightFileError(f"{file} holds a scale of {state['scale']}; it must be above 0 and finite")
    return state


def read_statistics(file: Path) -> LinesightStatistics:
    """Return counters and best times, read by an unpickler for only numbers, texts and containers."""
    packed = bytes(read_bounded(file, LARGEST_STATISTICS_BYTES, LinesightFileError))
    try:
        content = _PlainUnpickler(io.BytesIO(packed)).load()
    except Exception as error:  # damaged bytes make an unpickler fail in any way
        raise LinesightFileError(f"{file} cannot be read as plain numbers: {error}") from error
    if not isinstance(content, Mapping):
        raise LinesightFileError(f"{file} holds no statistics")

    def number(name: str) -> float:
        value = content.get(name, 0)
        return value if isinstance(value, int | float) and 0 <= value < LARGEST_NUMBER else 0.0

    best = content.get("alltime_min_ms", {})
    return LinesightStatistics(
        frames=int(number("cumul_number_frames_played")),
        transitions=int(number("cumul_number_memories_generated")),
        batches=int(number("cumul_number_batches_done")),
        training_hours=number("cumul_training_hours"),
        best_times_ms={
            name: int(time_ms)
            for name, time_ms in (best.items() if isinstance(best, Mapping) else ())
            if isinstance(name, str) and isinstance(time_ms, int | float) and 0 < time_ms < LARGEST_NUMBER
        },
    )


def _load_torch(file: Path) -> Any:
    content = bytes(read_bounded(file, LARGEST_WEIGHTS_BYTES, LinesightFileError))
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes, or code where only tensors are allowed
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise LinesightFileError(f"{file} cannot be read as plain tensors: {reason}") from error


class _NumberType:
    """A numpy dtype for one number in a pickle."""

    def __init__(self, name: str, *_: object) -> None:
        self.dtype = np.dtype(name)
        if self.dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"numpy's type {name!r} is none of a plain number")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])  # the second entry in numpy's state

    def number(self, data: bytes) -> float | int | bool:
        return np.frombuffer(data, self.dtype, count=1)[0].item()


class _PlainUnpickler(pickle._Unpickler):  # Python's: the C one fills memory up to the largest memo index
    """Unpickler for plain containers and numbers."""

    KNOWN: Final[Mapping[tuple[str, str], Any]] = {
        ("collections", "defaultdict"): defaultdict,
        ("collections", "OrderedDict"): dict,
        ("builtins", "int"): int,
        ("builtins", "float"): float,
        ("_codecs", "encode"): lambda text, _encoding: text.encode("latin1"),  # bytes, in old protocols
        ("numpy", "dtype"): _NumberType,
        ("numpy.core.multiarray", "scalar"): _NumberType.number,
        ("numpy._core.multiarray", "scalar"): _NumberType.number,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return a known class.

        Raises:
            pickle.UnpicklingError: for all others.
        """
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; only plain numbers and containers are made")
        return self.KNOWN[module, name]


# Writing. All functions raise `LinesightFileError` if the file cannot be written.


def write_weights(file: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights under their plain names."""
    _save_torch(file, {name: tensor.detach().cpu().clone() for name, tensor in weights.items()})


def write_moments(
    file: Path, moments: Moments, *, learning_rate: float, betas: tuple[float, float], eps: float
) -> None:
    """Write the optimizer's state as torch's RAdam does."""
    parameters = [torch.nn.Parameter(torch.empty_like(mean)) for mean in moments.mean]
    optimizer = torch.optim.RAdam(parameters, lr=learning_rate, betas=betas, eps=eps)
    for parameter, mean, mean_square in zip(parameters, moments.mean, moments.mean_square, strict=True):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(moments.steps)),
            "exp_avg": mean.clone(),
            "exp_avg_sq": mean_square.clone(),
        }
    _save_torch(file, optimizer.state_dict())


def write_loss_scale(file: Path, state: Mapping[str, Any]) -> None:
    """Write a gradient scaler's state dict; an empty one, from a run without float16, as a new scaler's."""
    _save_torch(file, dict(state) or torch.amp.GradScaler("cpu").state_dict())


def write_statistics(file: Path, statistics: LinesightStatistics, batch_size: int, target_updates_every: int) -> None:
    """Write counters as a plain pickle, which joblib also reads.

    Every `target_updates_every` transitions trained on, Linesight updates the target network.
    """
    used = statistics.batches * batch_size
    content: dict[str, Any] = defaultdict(int)
    content |= {
        "alltime_min_ms": dict(statistics.best_times_ms),
        "rolling_mean_ms": {},
        "cumul_number_frames_played": statistics.frames,
        "cumul_number_memories_generated": statistics.transitions,
        "cumul_number_batches_done": statistics.batches,
        "cumul_training_hours": statistics.training_hours,
        "cumul_number_single_memories_used": used,
        "cumul_number_single_memories_should_have_been_used": used,
        "cumul_number_target_network_updates": used // target_updates_every,
        "cumul_number_single_memories_used_next_target_network_update": used + target_updates_every,
    }
    try:
        file.write_bytes(pickle.dumps(content))
    except OSError as error:
        raise LinesightFileError(f"cannot write {file}: {error.strerror}") from error


def _save_torch(file: Path, content: Any) -> None:
    try:
        torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
        raise LinesightFileError(f"cannot write {file}: {error}") from error


def require_bounded(readings: Sequence[Reading]) -> None:
    """Read files in a separate process, to check that this process can, too.

    Errors in the functions are ignored: they recur here.

    Raises:
        UserError: if reading takes longer than `READ_LIMIT_S`, fills the memory, or kills the process.
    """
    with answering(_read, readings) as answers:
        _next_answer(answers, IMPORT_LIMIT_S)
        for _, file in readings:
            if reason := _next_answer(answers, READ_LIMIT_S):
                raise UserError(f"{file} {reason}: it is damaged, or made for that; it is not read")


def _next_answer(answers: PipeEnd, limit_s: float) -> str:
    if not answers.poll(limit_s):
        return f"takes longer than {limit_s:g} s to read"
    try:
        return str(answers.recv())
    except EOFError:
        return "ends the process that reads it"


def _read(answers: PipeEnd, readings: Sequence[Reading]) -> None:
    if sys.platform != "win32":
        import resource

        most = psutil.Process().memory_info().vms + MEMORY_LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    answers.send("")  # all is imported
    for read, file in readings:
        try:
            read(file)
            answer = ""
        except MemoryError:
            answer = TOO_LARGE
        except Exception:  # it comes again in the process that asks, see `require_bounded`
            answer = ""
        answers.send(answer)
