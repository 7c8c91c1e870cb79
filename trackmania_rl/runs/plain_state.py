"""A run's state, taken apart into JSON and tensors, and put together again; nothing in it is ever run.

JSON has no tuples, no tensors, no keys but texts, and no infinity. An object with a single key that begins with `$`
stands for one of these:

===================================  ===================================================================================
``{"$tensor": [file, name]}``        a tensor of a safetensors file
``{"$rows": 0}``                     the columns of the replay memory's rows
``{"$tuple": [...]}``                a tuple
``{"$dict": [[key, value], ...]}``   a dictionary that an object cannot be
``{"$float": "nan"}``                a number that JSON does not have: nan, inf, -inf
===================================  ===================================================================================
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from trackmania_rl.experience_replay.ring_buffer import RingRows
from trackmania_rl.runs.errors import CheckpointError
from trackmania_rl.runs.manifest import DTYPES, MOST_JSON_BYTES, MOST_JSON_ENTRIES

NETWORKS: Final = ("online", "target", "averaged")
"""Entries of an agent's state that are files of their own."""
OTHERS: Final = "tensors"
MOST_NESTED: Final = 20
LARGEST_WHOLE_NUMBER: Final = 1 << 512
ENTRIES_OF_NUMBERS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass
class StateParts:
    """A state in parts.

    Attributes:
        tree: all but tensors and rows, as JSON has it.
        tensors: by file and name, on any device.
        rows: of the replay memory; None without it.
    """

    tree: Any = None
    tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    rows: RingRows | None = None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> StateParts:
        """Take a state apart.

        Args:
            state: nested dicts, lists and tuples of tensors, numbers, texts, booleans and None, and once `RingRows`.

        Raises:
            TypeError: if it holds something else, which could not be read back; the text says where.
        """
        parts = cls()
        parts.tree = parts._plain(state, ())
        return parts

    def json_bytes(self) -> bytes:
        """Write the tree.

        Raises:
            CheckpointError: if it is larger than what would be read.
        """
        content = json.dumps(self.tree, allow_nan=False, separators=(",", ":")).encode()
        n_entries = sum(map(content.count, (b",", b"[", b"{")))
        if len(content) > MOST_JSON_BYTES or n_entries > MOST_JSON_ENTRIES:
            raise CheckpointError(
                f"the numbers and texts of the state are {n_entries:,} entries in {len(content) >> 20} MB, and a "
                f"checkpoint holds {MOST_JSON_ENTRIES:,} and {MOST_JSON_BYTES >> 20} MB beside tensors: let the hook "
                "with the long lists put them into tensors (docs/own_parts.rst)"
            )
        return content

    @property
    def tensor_bytes(self) -> int:
        """What the tensors take, without the rows."""
        return sum(t.numel() * t.element_size() for tensors in self.tensors.values() for t in tensors.values())

    def _plain(self, value: Any, place: tuple[Any, ...]) -> Any:
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._keep(value, place)}
        if isinstance(value, RingRows):
            if self.rows is not None:
                raise TypeError(f"{_told(place)} are the rows of a second replay memory; a checkpoint holds one")
            self.rows = value
            return {"$rows": 0}
        if len(place) > MOST_NESTED:
            raise TypeError(f"{_told(place)} is nested more than {MOST_NESTED} deep")
        if type(value) in (dict, OrderedDict):
            return self._plain_dict(value, place)
        if type(value) in (list, tuple):
            entries = [self._plain(entry, (*place, index)) for index, entry in enumerate(value)]
            return entries if type(value) is list else {"$tuple": entries}
        if type(value) is float and not math.isfinite(value):
            return {"$float": str(value)}
        if type(value) is int and abs(value) >= LARGEST_WHOLE_NUMBER:
            raise TypeError(f"{_told(place)} is a whole number of more than 512 bits")
        if value is None or type(value) in (int, float, str, bool):
            return value
        raise TypeError(
            f"{_told(place)} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, "
            "numbers, texts, booleans, None, lists, tuples and dicts"
        )

    def _plain_dict(self, value: Mapping[Any, Any], place: tuple[Any, ...]) -> Any:
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{_told(place)} has the key {key!r}; a checkpoint's keys are texts or integers")
        plain = {key: self._plain(entry, (*place, key)) for key, entry in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in plain):
            return plain
        return {"$dict": [[key, entry] for key, entry in plain.items()]}

    def _keep(self, tensor: torch.Tensor, place: tuple[Any, ...]) -> tuple[str, str]:
        if tensor.layout is not torch.strided or tensor.dtype not in DTYPES.values():
            raise TypeError(f"{_told(place)} is a tensor of {tensor.dtype} ({tensor.layout}); a checkpoint holds none")
        is_of_network = len(place) > 2 and place[0] == "agent" and place[1] in NETWORKS
        file, of_file = (place[1], place[2:]) if is_of_network else (OTHERS, place)
        name = "/".join(map(str, of_file))
        tensors = self.tensors.setdefault(file, {})
        while name in tensors:  # keys may hold the very sign that joins them
            name += "_"
        tensors[name] = tensor.detach()
        return file, name


def put_together(tree: Any, tensors: Mapping[str, Mapping[str, torch.Tensor]], rows: Mapping[str, torch.Tensor]) -> Any:
    """Make a state of its parts.

    Args:
        tree: of `StateParts`; it may come from a stranger.
        tensors: by file and name.
        rows: columns of the replay memory, by name; empty if they are left out.

    Raises:
        ValueError: if the tree does not go with the tensors, or is none.
    """
    if isinstance(tree, list):
        return [put_together(entry, tensors, rows) for entry in tree]
    if not isinstance(tree, dict):
        return tree
    (key, value), *others = tree.items() or [("", None)]
    if not key.startswith("$"):
        return {name: put_together(entry, tensors, rows) for name, entry in tree.items()}
    if others:
        raise ValueError(f"{key!r:.40} stands beside others")
    match key, value:
        case "$tensor", [str(file), str(name)] if name in tensors.get(file, ()):
            return tensors[file][name]
        case "$rows", 0:
            return dict(rows)
        case "$tuple", list():
            return tuple(put_together(entry, tensors, rows) for entry in value)
        case "$float", "nan" | "inf" | "-inf":
            return ENTRIES_OF_NUMBERS[value]
        case "$dict", list():
            return dict(_pair(entry, tensors, rows) for entry in value)
    raise ValueError(f"{key!r:.40}: {value!r:.80} stands for nothing")


def without_memory(state: Mapping[str, Any]) -> None:
    """Let a state whose rows were left out be one without a replay memory, as `checkpoint_holds_replay` makes them."""
    of_hook = state.get("hooks", {}).get("StoreRaces") if isinstance(state.get("hooks"), dict) else None
    if isinstance(of_hook, dict) and "buffers" in of_hook:
        of_hook["buffers"] = None


def _pair(entry: Any, tensors: Mapping[str, Mapping[str, torch.Tensor]], rows: Mapping[str, torch.Tensor]) -> Any:
    match entry:
        case [str() | int() as key, value]:
            return key, put_together(value, tensors, rows)
    raise ValueError(f"{entry!r:.80} is no entry of a dictionary")


def _told(place: tuple[Any, ...]) -> str:
    return "state" + "".join(f"[{key!r}]" for key in place)
