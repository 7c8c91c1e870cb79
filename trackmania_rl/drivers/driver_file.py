"""Driver files, NAME.driver: weights, the meaning of inputs and outputs, and tracks. No code.

A safetensors file whose metadata has one entry, JSON: the driver's card and the SHA-256 over card and weights, which
detects corruption, not tampering.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from gymnasium.spaces import Discrete
from pydantic import Field, ValidationError, field_validator
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of_bytes
from safetensors.torch import save as bytes_of_tensors
from torch import Tensor

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import parse_json, portable, read_bounded, write_durably
from trackmania_rl.paths import SHIPPED_FOLDER, program_version
from trackmania_rl.race.actions import ANALOG_PARTS
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.store import require_disk
from trackmania_rl.settings import DRIVER_SETTINGS, Generator, MapEntry, Settings, SettingsError
from trackmania_rl.settings.game import RACES
from trackmania_rl.settings.values import FileName, Group, NonNegativeFloat, NonNegativeInt, PositiveInt

ENDING: Final = ".driver"
FORMAT_VERSION: Final = 1
ENTRY: Final = "trackmania_rl"
"""The metadata's entry."""
LARGEST_FILE_BYTES: Final = 128 << 20
LARGEST_HEADER_BYTES: Final = 1 << 20
LARGEST_NUMBER: Final = 10**6
"""Upper bound for each size, length and duration in a driver."""
DTYPES: Final = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool}
)
"""Types for weights and for counters beside them."""

Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=4096)]


class DriverFileError(UserError):
    """A driver file that cannot be read or written."""


class DriverTrack(Group):
    """Track that a driver was trained on, as in a map cycle but without this machine's folders, and the best time."""

    map_name: FileName
    map_path: Line = ""
    reference_line: Line = ""
    generator: Generator | None = None
    best_time_ms: PositiveInt | None = None

    @field_validator("map_path", "reference_line")
    @classmethod
    def _leads_nowhere_else(cls, path: str) -> str:
        if path != portable(path):
            raise ValueError("a track's files lie in the maps folder")
        return path

    @classmethod
    def of_entry(cls, entry: MapEntry, best_time_ms: int | None) -> DriverTrack:
        """Describe a map cycle entry."""
        return cls(
            map_name=entry.map_name,
            map_path=portable(entry.map_path),
            reference_line=portable(entry.reference_line),
            generator=entry.generator,
            best_time_ms=best_time_ms,
        )

    def entry(self) -> MapEntry:
        """Return the track's map cycle entry for evaluation."""
        files = self.model_dump(exclude={"best_time_ms", "generator"})
        return MapEntry(**files, generator=self.generator, is_explo=False, fill_buffer=False)


class Interface(Group):
    """A network's inputs and outputs, as this program version derives them from the driver's settings.

    Attributes:
        blocks: (name, float count) for the observation's blocks; none for a user's games.
        image_shape: (S, H, W); H and W are 0 without an image.
        actions: meaning of each action or number.
    """

    blocks: tuple[tuple[Line, NonNegativeInt], ...]
    n_floats: PositiveInt
    image_shape: tuple[PositiveInt, NonNegativeInt, NonNegativeInt]
    actions: tuple[Line, ...]

    @classmethod
    def of(cls, settings: Settings, spaces: Spaces) -> Interface:
        """Describe the interface for a run with these settings and spaces."""
        blocks: tuple[tuple[str, int], ...] = ()
        actions: tuple[str, ...] = (str(spaces.action),)
        if settings.game.games == RACES:
            layout = ObservationLayout(settings.observation, settings.game.actions)
            blocks = tuple((block.name, block.stop - block.start) for block in layout.blocks)
            actions = ANALOG_PARTS
            if isinstance(spaces.action, Discrete):
                pressed = [[key for key, is_down in keys if is_down] for keys in settings.game.inputs]
                actions = tuple(" + ".join(keys) or "nothing" for keys in pressed)
        return cls(blocks=blocks, n_floats=spaces.n_floats, image_shape=spaces.image_shape, actions=actions)

    def difference(self, other: Interface) -> str:
        """Describe how another one differs; empty if it does not."""
        if self.blocks != other.blocks:
            ours, theirs = dict(self.blocks), dict(other.blocks)
            names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
            return f"another observation ({', '.join(names) or 'its blocks in another order'})"
        if (self.n_floats, self.image_shape) != (other.n_floats, other.image_shape):
            mine, its = (f"{one.n_floats} floats, image {one.image_shape}" for one in (self, other))
            return f"another observation ({mine}; {its})"
        if self.actions != other.actions:
            return f"other actions ({len(self.actions)} and {len(other.actions)}, or in another order)"
        return ""


class DriverCard(Group):
    """A driver's card: everything but the weights. The settings are `DRIVER_SETTINGS`, as JSON."""

    format_version: Literal[1] = FORMAT_VERSION
    name: FileName
    program: Line
    settings: dict[str, Any]
    interface: Interface
    tracks: Annotated[tuple[DriverTrack, ...], Field(min_length=1, max_length=1000)]
    frames_total: NonNegativeInt
    training_s: NonNegativeFloat


@dataclass(frozen=True)
class DriverFile:
    """A driver file's content: card, and the network's `state_dict()`."""

    card: DriverCard
    weights: Mapping[str, Tensor]

    @classmethod
    def of_network(
        cls,
        name: str,
        settings: Settings,
        spaces: Spaces,
        weights: Mapping[str, Tensor],
        tracks: Sequence[DriverTrack],
        *,
        frames_total: int,
        training_s: float,
    ) -> DriverFile:
        """Make a driver file's content. Raise `UserError` if a setting cannot be written."""
        card = DriverCard(
            name=name,
            program=program_version(),
            settings=driver_values(settings),
            interface=Interface.of(settings, spaces),
            tracks=tuple(tracks),
            frames_total=frames_total,
            training_s=training_s,
        )
        # Copies, as weights may be views of a larger tensor.
        return cls(card, {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()})

    @property
    def n_parameters(self) -> int:
        """Weight count."""
        return sum(tensor.numel() for tensor in self.weights.values())


def driver_values(settings: Settings) -> dict[str, Any]:
    """Return a driver's settings by name, as JSON types.

    Raises:
        SettingsError: if an argument to a part cannot be written.
    """
    try:
        groups = [group.model_dump(mode="json", include=set(DRIVER_SETTINGS), warnings=False) for _, group in settings]
    except ValueError as error:  # pydantic's PydanticSerializationError
        raise SettingsError(f"a driver's settings are written as JSON: {error}") from None
    return {name: value for group in groups for name, value in group.items()}


def is_driver_file(path: Path) -> bool:
    """Return whether a path names a driver file."""
    return path.suffix == ENDING and not path.is_dir()


def write_driver(file: Path, driver: DriverFile, minimum_free_disk_mb: int = 0) -> Path:
    """Write or replace a driver file, complete or not at all, and return it. Makes the folder.

    Raises:
        UserError: if less than the minimum would be free, the disk fails, or the driver is too large.
    """
    card = driver.card.model_dump(mode="json")
    entry = json.dumps({"sha256": _digest(card, driver.weights), "card": card}, allow_nan=False)
    content = bytes_of_tensors(dict(driver.weights), metadata={ENTRY: entry})
    if len(content) > LARGEST_FILE_BYTES or _header_bytes(content) > LARGEST_HEADER_BYTES:
        raise DriverFileError(
            f"cannot write {file}: a driver is {LARGEST_FILE_BYTES >> 20} MB large at most, and its settings "
            f"{LARGEST_HEADER_BYTES >> 20} MB; this one's take {len(content) >> 20} and {_header_bytes(content) >> 20}"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        require_disk(file.parent, len(content), minimum_free_disk_mb)
        write_durably(file, content)
    except OSError as error:
        raise DriverFileError(f"cannot write {file}: {error.strerror}") from error
    return file


def read_driver(file: Path) -> DriverFile:
    """Read an untrusted driver file; if it does not exist, the one that ships under this path (drivers/ring.driver).

    Sizes are bounded, and no code is run. `drivers.loading` validates the settings.

    Raises:
        DriverFileError: if missing, damaged, too large, from another version, or no driver.
    """
    shipped = SHIPPED_FOLDER / file
    file_to_read = shipped if shipped.is_file() and not file.exists() else file
    content = bytes(read_bounded(file_to_read, LARGEST_FILE_BYTES, DriverFileError))
    if len(content) < 8 or _header_bytes(content) > min(LARGEST_HEADER_BYTES, len(content) - 8):
        raise DriverFileError(f"{file_to_read} is damaged, or no driver: it does not begin as one")
    try:
        metadata = parse_json(content[8 : 8 + _header_bytes(content)]).get("__metadata__", {})
        weights = tensors_of_bytes(content)
        other = [name[:100] for name, tensor in weights.items() if tensor.dtype not in DTYPES]
        if other:
            raise ValueError(f"{other[0]!r} is of no kind that a driver holds")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise DriverFileError(f"{file} is damaged, or no driver: {one_line(error)}") from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get(ENTRY), str):
        raise DriverFileError(
            f"{file} is no driver, though it holds weights: scripts/tools/driver.py pack RUN makes one of a run"
        )
    card = _card_in(metadata[ENTRY], weights, file)
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DriverFileError(f"{file}: its weights {name!r} are not finite numbers, so it cannot drive")
    return DriverFile(card, weights)


def _header_bytes(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


def _card_in(entry: str, weights: Mapping[str, Tensor], file: Path) -> DriverCard:
    try:
        known = parse_json(entry)
        written, digest = known["card"], known["sha256"]
        version = written.get("format_version")
        if version == FORMAT_VERSION:
            _require_bounded(written)
            card = DriverCard.model_validate(written)
    except ValidationError as error:
        first = error.errors()[0]
        raise DriverFileError(
            f"{file} is damaged, or no driver: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DriverFileError(f"{file} is damaged, or no driver: {one_line(error)}") from None
    if version != FORMAT_VERSION:
        raise DriverFileError(
            f"{file}: its format is {version!r:.20}, this program reads format {FORMAT_VERSION}: update the older one"
        )
    if _digest(written, weights) != digest:
        raise DriverFileError(f"{file} is damaged: its check sum is wrong; get it anew")
    return card


def _digest(card: Mapping[str, Any], weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode())
    for name in sorted(weights):
        tensor = weights[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _require_bounded(value: Any) -> None:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            if name not in ("frames_total", "best_time_ms", "generator"):
                _require_bounded(entry)
    elif isinstance(value, list):
        for entry in value:
            _require_bounded(entry)
    elif isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"{value:.3g} is larger than any number of a driver ({LARGEST_NUMBER:,})")
