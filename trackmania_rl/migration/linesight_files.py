"""The files of a Linesight run, read without running any code that they may hold, and written.

    weights1.torch             state dict of the online network
    weights2.torch             state dict of the target network
    optimizer1.torch           state dict of torch.optim.RAdam
    scaler.torch               state dict of torch's GradScaler
    accumulated_stats.joblib   counters and best times: a pickled dictionary

Networks that were compiled with `torch.compile` have `_orig_mod.` before each name; it is taken off.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded

ONLINE_WEIGHTS: Final = "weights1.torch"
TARGET_WEIGHTS: Final = "weights2.torch"
OPTIMIZER: Final = "optimizer1.torch"
SCALER: Final = "scaler.torch"
STATISTICS: Final = "accumulated_stats.joblib"

COMPILED_PREFIX: Final = "_orig_mod."
FIRST_LOSS_SCALE: Final = 2.0**16
LARGEST_STATISTICS_BYTES: Final = 1 << 16
LARGEST_WEIGHTS_BYTES: Final = 128 << 20
LARGEST_PICKLE_BYTES: Final = 1 << 16
"""Of the names and shapes in a file of torch's. Hashing recurses as deep as tuples are nested, without a check of its
own, and keys of one hash value take time with the square of their number."""
LARGEST_NUMBER: Final = 1 << 63
"""Of statistics; Python writes no whole number of more than 4,300 digits."""
MOST_SHARED_VALUES: Final = 16
"""References to values that may be nested tuples, in one pickle; hashing follows each of them anew."""
MAY_BE_SHARED: Final = frozenset(
    [
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "LONG1",
        "EMPTY_DICT",
        "EMPTY_LIST",
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
    ]
)
"""Instructions whose results are no tuples, and may be referred to any number of times."""
MAKES_TENSORS: Final = frozenset(
    (
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        *(f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Double", "Long", "Int")),
    )
)
"""All that a state dict's pickle has to ask for by name."""


class LinesightFileError(UserError):
    """A file of a Linesight run that cannot be used; the text says which and why."""


@dataclass(frozen=True)
class Moments:
    """What the optimizer remembers.

    Attributes:
        mean: running mean of each parameter's gradient, in the order of the network's parameters.
        mean_square: the same of its square.
        steps: how many steps went in.
    """

    mean: tuple[Tensor, ...]
    mean_square: tuple[Tensor, ...]
    steps: int


@dataclass(frozen=True)
class LossScaleState:
    """The gradient scaler's factor, and the steps since it grew."""

    factor: float = FIRST_LOSS_SCALE
    updates_since_growth: int = 0


@dataclass(frozen=True)
class LinesightStatistics:
    """Counters of a run; 0 where the file does not tell.

    Attributes:
        frames: actions played, which Linesight's schedules follow.
        transitions: transitions stored, which they followed before Linesight's commit 098cbf8 (2024-12-05).
        batches: updates made.
        training_hours: wall-clock time.
        best_times_ms: best race time by map name.
    """

    frames: int = 0
    transitions: int = 0
    batches: int = 0
    training_hours: float = 0.0
    best_times_ms: Mapping[str, int] = field(default_factory=dict)


def read_weights(file: Path) -> dict[str, Tensor]:
    """A network's weights by name, float32, on the CPU.

    Raises:
        LinesightFileError: if the file is missing, damaged, or no state dict.
    """
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
    """What the optimizer remembers; None if it has made no step.

    Raises:
        LinesightFileError: if the file is missing, damaged, or not of an Adam.
    """
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


def read_loss_scale(file: Path) -> LossScaleState:
    """The gradient scaler's state.

    Raises:
        LinesightFileError: if the file is missing or damaged.
    """
    content = _load_torch(file)
    try:
        factor, updates = float(content.get("scale", FIRST_LOSS_SCALE)), int(content.get("_growth_tracker", 0))
    except (AttributeError, TypeError, ValueError) as error:
        raise LinesightFileError(f"{file} is no state of a gradient scaler: {error!r}") from error
    if not 0 < factor < float("inf"):
        raise LinesightFileError(f"{file} holds a scale of {factor}; it must be above 0 and finite")
    return LossScaleState(factor, updates)


def read_statistics(file: Path) -> LinesightStatistics:
    """Counters and best times, through an unpickler that makes nothing but numbers, texts and containers.

    Raises:
        LinesightFileError: if the file is missing, compressed, damaged, or wants anything else to be made.
    """
    try:
        packed = bytes(read_bounded(file, LARGEST_STATISTICS_BYTES, LinesightFileError))
        _require_bounded_pickle(packed)
        content = _PlainUnpickler(io.BytesIO(packed)).load()
    except LinesightFileError:
        raise
    except Exception as error:  # damaged bytes make an unpickler fail in any way
        raise LinesightFileError(f"{file} cannot be read as plain numbers: {error}") from error
    if not isinstance(content, Mapping):
        raise LinesightFileError(f"{file} holds no statistics")
    best = content.get("alltime_min_ms", {})
    return LinesightStatistics(
        frames=_count(content, "cumul_number_frames_played"),
        transitions=_count(content, "cumul_number_memories_generated"),
        batches=_count(content, "cumul_number_batches_done"),
        training_hours=_number(content, "cumul_training_hours"),
        best_times_ms={
            name: int(time_ms)
            for name, time_ms in (best.items() if isinstance(best, Mapping) else ())
            if isinstance(name, str) and isinstance(time_ms, int | float) and 0 < time_ms < LARGEST_NUMBER
        },
    )


def write_weights(file: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights under their plain names.

    Raises:
        LinesightFileError: if the file cannot be written.
    """
    _save_torch(file, {name: tensor.detach().cpu().clone() for name, tensor in weights.items()})


def write_moments(
    file: Path, moments: Moments, *, learning_rate: float, betas: tuple[float, float], eps: float
) -> None:
    """Write what the optimizer remembers as torch's RAdam does.

    Raises:
        LinesightFileError: if the file cannot be written.
    """
    parameters = [torch.nn.Parameter(torch.empty_like(mean)) for mean in moments.mean]
    optimizer = torch.optim.RAdam(parameters, lr=learning_rate, betas=betas, eps=eps)
    for parameter, mean, mean_square in zip(parameters, moments.mean, moments.mean_square, strict=True):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(moments.steps)),
            "exp_avg": mean.clone(),
            "exp_avg_sq": mean_square.clone(),
        }
    _save_torch(file, optimizer.state_dict())


def write_loss_scale(file: Path, state: LossScaleState) -> None:
    """Write a gradient scaler's state.

    Raises:
        LinesightFileError: if the file cannot be written.
    """
    content = {
        "scale": state.factor,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": state.updates_since_growth,
    }
    _save_torch(file, content)


def write_statistics(file: Path, statistics: LinesightStatistics, batch_size: int, target_updates_every: int) -> None:
    """Write counters as a plain pickle, which joblib reads as well.

    Args:
        file: where.
        statistics: of the run.
        batch_size: transitions in a batch.
        target_updates_every: transitions trained on between two updates of the target network.

    Raises:
        LinesightFileError: if the file cannot be written.
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


def _load_torch(file: Path) -> Any:
    content = bytes(read_bounded(file, LARGEST_WEIGHTS_BYTES, LinesightFileError))
    try:
        _require_plain_archive(content)
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        _require_dense(loaded, [len(content)])
        return loaded
    except Exception as error:  # damaged bytes, or code where only tensors are allowed
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise LinesightFileError(f"{file} cannot be read as plain tensors: {reason}") from error


def _require_plain_archive(content: bytes) -> None:
    """Raise `ValueError` for what torch would unpack to more than the file is, or make of other parts than tensors."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is packed, which torch's own files are not")
        if sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("its parts are larger than the file")
        pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
        if len(pickles) != 1 or pickles[0].file_size > LARGEST_PICKLE_BYTES:
            raise ValueError("it holds no names and shapes, or too many")
        packed = archive.read(pickles[0])
    for name in _require_bounded_pickle(packed):
        if name not in MAKES_TENSORS:
            raise ValueError(f"it asks for {name[:100]}, which no weights need")


def _require_bounded_pickle(packed: bytes) -> list[str]:
    """Return the names that a pickle asks for.

    Raises:
        ValueError: if loading it takes memory that it does not fill, or time that its length does not bound: in tuples
            that hold one tuple twice, nested 60 deep, a hash takes 2**60 steps.
    """
    names: list[str] = []
    made_by: dict[int, str] = {}
    n_shared, before = 0, ""
    for n_before, (code, argument, _) in enumerate(pickletools.genops(packed)):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(made_by) if code.name == "MEMOIZE" else int(argument or 0)
            if place > n_before:
                raise ValueError("it keeps something at a place that it never reached")
            made_by[place] = before
        elif code.name in ("GET", "BINGET", "LONG_BINGET"):
            n_shared += made_by.get(int(argument or 0), "") not in MAY_BE_SHARED
        elif code.name in ("GLOBAL", "INST"):
            names.append(str(argument))
        elif code.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            names.append(code.name)
        if n_shared > MOST_SHARED_VALUES or code.name == "DUP":
            raise ValueError("it holds the same values again and again")
        before = code.name
    return names


def _require_dense(value: Any, left_bytes: list[int]) -> None:
    """Raise `ValueError` for more numbers than there are in the file: views of some, or the same ones again."""
    left_bytes[0] -= value.numel() * value.element_size() if isinstance(value, Tensor) else 1
    if left_bytes[0] < 0 or (isinstance(value, Tensor) and value.layout is not torch.strided):
        raise ValueError("it holds tensors of more numbers than there are")
    for entry in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _require_dense(entry, left_bytes)


def _save_torch(file: Path, content: Any) -> None:
    try:
        torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
        raise LinesightFileError(f"cannot write {file}: {error}") from error


def _number(content: Mapping[Any, Any], name: str) -> float:
    value = content.get(name, 0)
    return value if isinstance(value, int | float) and 0 <= value < LARGEST_NUMBER else 0.0


def _count(content: Mapping[Any, Any], name: str) -> int:
    return int(_number(content, name))


class _NumberType:
    """A numpy dtype in a pickle: of a number, or refused."""

    FORMATS: Final = {
        **{"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"},
        **{"f2": "e", "f4": "f", "f8": "d", "b1": "?"},
    }

    def __init__(self, name: str, *_: object) -> None:
        if name not in self.FORMATS:
            raise pickle.UnpicklingError(f"numpy's type {name!r} is none of a plain number")
        self.format = "<" + self.FORMATS[name]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take over the byte order, which is the second entry of numpy's own state."""
        if state[1] == ">":
            self.format = ">" + self.format[1:]


def _number_of(number_type: _NumberType, data: bytes) -> float | int | bool:
    """A numpy scalar in a pickle, as a Python number."""
    return struct.unpack(number_type.format, data)[0]


def _bytes_of(text: str, _encoding: str) -> bytes:
    """Bytes in a pickle of an old protocol, which writes them as text."""
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows nothing that could run code."""

    KNOWN: Final[Mapping[tuple[str, str], Any]] = {
        ("collections", "defaultdict"): defaultdict,
        ("collections", "OrderedDict"): dict,
        ("builtins", "int"): int,
        ("builtins", "float"): float,
        ("_codecs", "encode"): _bytes_of,
        ("numpy", "dtype"): _NumberType,
        ("numpy.core.multiarray", "scalar"): _number_of,
        ("numpy._core.multiarray", "scalar"): _number_of,
    }

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle may ask for by name.

        Raises:
            pickle.UnpicklingError: for everything but plain containers and numbers.
        """
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; only plain numbers and containers are made")
        return self.KNOWN[module, name]
