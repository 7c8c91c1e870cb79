"""Messages between collectors on other machines and their learner, over gRPC: encoding, checks, address. No pickle.

`workers.proto` has the calls. A race is a message in one zstandard frame with a checksum: its facts as JSON, which
pydantic validates, and its columns as bytes. `multiprocess.serving` is the learner's end, `remote` the collector's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import zstandard
from google.protobuf.message import DecodeError, Message
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import override

from trackmania_rl.channels import workers_pb2 as pb
from trackmania_rl.channels.rollouts import slot_bytes
from trackmania_rl.cli import TOKEN_VARIABLE, is_loopback
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import check_name, parse_json, read_bounded, without_whole_paths
from trackmania_rl.parts import make_part
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings
from trackmania_rl.settings.values import LAST_PORT
from trackmania_rl.telemetry.live.feed import LiveCar

if TYPE_CHECKING:
    from torch import nn

SERVICE: Final = "trackmania_rl.Workers"
TOKEN: Final = "authorization"
VERSION: Final = "trackmania-rl-version"
"""Metadata of each call."""
ID_LETTERS: Final = 32
KEEPALIVE_MS: Final = 10_000
WINDOW_BYTES: Final = 1 << 18
"""Bytes under way: they take 2 s at 1 Mbit/s, so that pings, which queue behind them, are answered in time."""
PIECE_BYTES: Final = 1 << 16
"""Piece of weights, between which other news are sent."""
OPTIONS: Final = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.max_send_message_length", -1),
)
"""Options of both ends."""
MOST_NEWS_BYTES: Final = 1 << 22
"""Size of the largest message of a learner."""
MOST_PEM_BYTES: Final = 1 << 20

OF_SOME_AGENTS: Final = frozenset({"q_values", "action_log_prob"})
"""Columns that are NaN from agents without values, or whose policies draw no actions."""
NEEDED_COLUMNS: Final = frozenset({"frames", "state_float", "actions", "action_was_greedy", *OF_SOME_AGENTS})
"""Columns that the learner reads of each race."""
PROGRESS: Final = ("meters_advanced_along_centerline", "rewards")
"""Column of a race, or of an episode of an own environment, that rewards are computed from."""
RESERVED_NAMES: Final = RaceFacts.model_fields.keys() | {"race_time"}
"""Names that columns of own parts cannot have, since `rollout_results` and data sets use them."""
LARGEST_NUMBER: Final = 1e30
MOST_DIMENSIONS: Final = 5
COLUMN_TYPES: Final = frozenset(np.dtype(letter).name for letter in "?bBhHiIqQefd")
"""Types of numbers that a race may have."""
MOST_CARS: Final = 1024
_CARS: Final = TypeAdapter(Annotated[list[LiveCar], Field(max_length=MOST_CARS)])
Arrays = dict[str, npt.NDArray[Any]]
COMPRESSION_LEVEL: Final = 1
"""Higher levels of zstandard save 2 % of a race's bytes and take several times as long."""


class MessageError(UserError):
    """Message that is damaged, too large, or does not fit the run."""


AMessage = TypeVar("AMessage", bound=Message)


def parse(kind: type[AMessage], data: bytes) -> AMessage:
    """Parse a message. Fields that its schema lacks are refused: a damaged tag would hide a field.

    Raises:
        MessageError: if it is damaged.
    """
    message = kind()
    try:
        message.ParseFromString(data)
        n_bytes = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != n_bytes:
            raise DecodeError
    except DecodeError:
        raise MessageError(f"a {kind.__name__} message is damaged") from None
    return message


def encode_race(race: Race, sequence: int, compress: Callable[[Arrays], Arrays]) -> bytes:
    """Encode a race under a number; `compress` maps the columns to those that are sent.

    Raises:
        MessageError: if a column holds no numbers.
    """
    position = race.facts.position
    if position is not None:
        position = position.model_copy(update={"streams": {}})
    facts = race.facts.with_changes(sequence=sequence, position=position)
    message = pb.Race(facts=json.dumps(facts.model_dump(exclude_unset=True)))
    for name, column in compress(race.columns).items():
        if column.dtype.kind not in "biuf":
            raise MessageError(f"a race cannot be sent, as its column {name} has the type {column.dtype}")
        little = column.astype(column.dtype.newbyteorder("<"), copy=False)
        message.columns.add(name=name, dtype=column.dtype.name, shape=column.shape, data=little.tobytes())
    compressor = zstandard.ZstdCompressor(COMPRESSION_LEVEL, write_checksum=True)
    return compressor.compress(message.SerializeToString())


def decode_race(data: bytes, max_actions: int, spaces: Spaces, decompress: Callable[[Arrays], Arrays]) -> Race:
    """Decode a race; `decompress` maps the columns that were sent to those of the race.

    Raises:
        MessageError: if it is damaged, longer than `max_actions`, or its facts or columns do not fit the run.
    """
    try:
        most_bytes = slot_bytes(max_actions, spaces)
        if not 0 <= zstandard.frame_content_size(data) <= most_bytes:
            raise ValueError(f"its content is not of 0 to {most_bytes:,} bytes")
        content = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        message = parse(pb.Race, content)
        facts = RaceFacts.model_validate(parse_json(message.facts, allow_infinity=True))
        race = Race(decompress({column.name: _array_of(column) for column in message.columns}), facts)
        _require_sound_columns(race, max_actions, spaces)
        _require_sound_facts(facts)
    except ValidationError as error:
        first = error.errors()[0]
        text = one_line(ValueError(f"{first['loc']!r:.80}: {first['msg']}"), 200)
        raise MessageError(f"a race is refused: {text}") from None
    except Exception as error:  # decompress gets columns that were not checked
        raise MessageError(f"a race is refused: {one_line(error, 200)}") from None
    return race


def encode_cars(cars: Sequence[LiveCar]) -> str:
    """Encode the newest places of a machine's cars."""
    return json.dumps([vars(car) for car in cars])


def decode_cars(text: str) -> list[LiveCar]:
    """Decode the newest places of a machine's cars.

    Raises:
        MessageError: if they are damaged.
    """
    try:
        return _CARS.validate_json(text, strict=True)
    except ValidationError as error:
        raise MessageError(f"the cars are damaged: {printable(error.errors()[0]['msg'])}") from None


def _array_of(column: pb.Column) -> npt.NDArray[Any]:
    """Return the array of a column, as a view of its bytes.

    Raises:
        ValueError: if its shape and bytes do not fit, or it holds no numbers.
    """
    if column.dtype not in COLUMN_TYPES or len(column.shape) > MOST_DIMENSIONS:
        raise ValueError(f"its {column.name!r:.80} have the type {column.dtype!r:.20}")
    array = np.frombuffer(column.data, np.dtype(column.dtype).newbyteorder("<")).reshape(tuple(column.shape))
    return array.astype(column.dtype, copy=False)


def _require_sound_columns(race: Race, max_actions: int, spaces: Spaces) -> None:
    """Raise `ValueError` if a column of a worker's race is missing, of another form, or not finite."""
    columns, n_actions = race.columns, len(race.columns.get("actions", ()))
    if missing := NEEDED_COLUMNS - columns.keys():
        raise ValueError(f"it has no {min(missing)}")
    if columns.keys().isdisjoint(PROGRESS):
        raise ValueError("it has neither meters nor rewards")
    if not 0 < n_actions == race.facts.n_actions <= max_actions:
        raise ValueError(f"it has {n_actions} actions")
    n_states = n_actions + 1
    forms: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
        "frames": ((n_states, 1, *spaces.image_size_px), np.uint8),
        "state_float": ((n_states, spaces.n_row_floats), np.float32),
        "actions": ((n_actions, *spaces.action_shape), spaces.action_dtype),
        "action_was_greedy": ((n_actions,), np.bool_),
        "q_values": ((n_actions, spaces.n_values), np.float32),
        "action_log_prob": ((n_actions,), np.float32),
        "input_w": ((n_actions,), np.bool_),
        "car_gear_and_wheels": ((n_states, len(CAR_COLUMNS)), np.float32),
        "current_zone_idx": ((n_states,), np.int64),
        "meters_advanced_along_centerline": ((n_states,), np.float64),
        "position_m": ((n_states, 3), np.float32),
        "speed_m_s": ((n_states,), np.float64),
        "rewards": ((n_actions,), np.float32),
    }
    for name, column in columns.items():
        check_name(name)
        if name in forms:
            is_sound = (column.shape, column.dtype) == forms[name]
        else:  # columns of own parts
            is_sound = bool(column.ndim) and len(column) in (n_actions, n_states) and column.dtype.kind in "biuf"
            is_sound &= name not in RESERVED_NAMES
        if not is_sound:
            raise ValueError(f"its {name!r:.80} have the form {column.dtype} {column.shape}")
        if name not in OF_SOME_AGENTS and not np.isfinite(column).all():
            raise ValueError(f"its {name!r:.80} hold numbers that are not finite")
    actions = columns["actions"]
    if spaces.action_shape == () and not ((actions >= 0) & (actions < spaces.n_values)).all():
        raise ValueError("its actions are none of this run's")


def _require_sound_facts(facts: RaceFacts) -> None:
    """Raise `ValueError` if the facts of a worker's race contradict each other, or hold numbers that are not finite."""
    new = facts.new
    if facts.sequence == 0:
        raise ValueError("it has no number")
    if not max(new.n_actions_before, new.first_row, new.end_transition) <= facts.n_actions + 1:
        raise ValueError(f"its fragment has the rows {tuple(new)}")
    if not facts.inputs.isascii():
        raise ValueError("its input script is no plain text")
    times = (facts.meters, facts.mean_speed_m_s, facts.fraction_greedy, facts.weights_age_s)
    numbers = (*times, facts.waited_s, facts.elapsed_s, *facts.timings_ms.values(), *facts.figures.values())
    if not all(number is None or abs(number) <= LARGEST_NUMBER for number in numbers):
        raise ValueError("its facts hold numbers that are not finite")


class SampleCompressor:
    """Part `sample_compressor`: the columns of a race on the way from a worker to its learner.

    This one sends them as they are. Derived classes may drop what `decompress` rebuilds.

    Args:
        settings: of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def compress(self, columns: Arrays) -> Arrays:
        """Return the columns that the worker sends, by any names. `columns` stay unchanged."""
        return columns

    def decompress(self, columns: Arrays) -> Arrays:
        """Return the race's columns from those sent, which are read-only. The learner then checks their forms."""
        return columns


class HalfFloats(SampleCompressor):
    """Sends float32 as float16."""

    @override
    def compress(self, columns: Arrays) -> Arrays:
        return _with_type(columns, np.dtype(np.float32), np.dtype(np.float16))

    @override
    def decompress(self, columns: Arrays) -> Arrays:
        return _with_type(columns, np.dtype(np.float16), np.dtype(np.float32))


def _with_type(columns: Arrays, old: np.dtype[Any], new: np.dtype[Any]) -> Arrays:
    return {name: column.astype(new) if column.dtype == old else column for name, column in columns.items()}


def make_sample_compressor(settings: Settings) -> SampleCompressor:
    """Make the part `sample_compressor`."""
    made: SampleCompressor = make_part(
        settings.sync.sample_compressor, "sample_compressor", settings, takes="settings", kinds=(SampleCompressor,)
    )
    return made


def settings_for_workers(settings: Settings, seed: int) -> dict[str, Any]:
    """Return settings as JSON with a worker's own seed, without those of this machine and its user.

    Of a whole path the last part stays.
    """
    values = settings.model_dump(mode="json", warnings=False, exclude={"user"})
    values["run"]["seed"] = seed
    return without_whole_paths(values)  # type: ignore[no-any-return]


def fingerprint(settings: Settings, spaces: Spaces, network: nn.Module, maps_folder: Path) -> dict[str, str]:
    """Return the facts that learner and worker must share, as texts; none of a map whose file is missing."""
    shapes = sorted((name, tuple(tensor.shape)) for name, tensor in network.state_dict().items())
    layout = hashlib.sha256(repr((spaces.float_mean, spaces.float_std, spaces.waves, spaces.views)).encode())
    facts = {
        "observation": f"{spaces.n_floats} floats, image {spaces.image_shape}, layout {layout.hexdigest()[:16]}",
        "actions": f"{spaces.action}",
        "network": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
    }
    return facts | map_facts(settings, maps_folder)


def map_facts(settings: Settings, maps_folder: Path) -> dict[str, str]:
    """Return the facts about the files of the map cycle."""
    facts = {}
    for entry in settings.game.map_cycle:
        for name in filter(None, (entry.map_path, entry.reference_line)):
            if (file := maps_folder / name).is_file():
                with file.open("rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                facts[f"map {without_whole_paths(name)}"] = digest[:16]
    return facts


def printable(text: object) -> str:
    """Return the beginning of another machine's text in one line without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in one_line(text))


NEEDED_FACTS: Final = ("observation", "actions", "network")


def require_same(facts: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raise `UserError` if a learner's facts differ from those of this machine."""
    for name in (*NEEDED_FACTS, *facts):
        fact = facts.get(name, "missing")
        if (other := own.get(name, "missing")) != fact:
            remedy = "copy the file from there" if name.startswith("map ") else "install the same parts and version"
            text = f"the learner's run cannot be played here: {name} is {fact} there, {other} here: {remedy}"
            raise UserError(printable(text))


def read_pem(file: Path) -> bytes:
    """Read a certificate or key, or raise `UserError`."""
    return bytes(read_bounded(file, MOST_PEM_BYTES))


@dataclass(frozen=True)
class WorkerAccess:
    """Address at which workers connect, and their admission."""

    host: str  # "0.0.0.0" or "[::]" for all addresses of this machine
    port: int  # 0 for any free one
    token: str | None = field(default=None, repr=False)  # that workers send; None without one
    certificate: bytes | None = field(default=None, repr=False)  # PEM chain of the server; None without TLS
    key: bytes | None = field(default=None, repr=False)  # its PEM key
    weights_bytes_per_s: int = 1 << 20  # most weights of each kind that are sent to a worker

    @classmethod
    def of_command(
        cls, address: str, token: str, certificate_and_key: Sequence[Path] | None, is_insecure: bool
    ) -> WorkerAccess:
        """Return the access by the options of `train.py`.

        Raises:
            UserError: if a file cannot be read, or the address is beyond loopback, without token and TLS.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > LAST_PORT:
            raise UserError(f"--workers {address}: write HOST:PORT, such as 0.0.0.0:8470")
        if not (is_insecure or is_loopback(host) or (token and certificate_and_key)):
            raise UserError(
                f"--workers {address} is reached from other machines: give a token ({TOKEN_VARIABLE} or "
                "--worker-token-file) and --worker-certificate, or ask for --insecure-workers"
            )
        access = cls(host, int(port), token or None)
        if certificate_and_key is None:
            return access
        certificate, key = map(read_pem, certificate_and_key)
        return replace(access, certificate=certificate, key=key)
