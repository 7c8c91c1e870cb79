"""Reader of checkpoints of format 3: `state.json`, a safetensors file for each network, raw columns of rows.

In `state.json` an object with one key that begins with `$` is a tensor, the rows, a tuple, a dict or a float.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch

from trackmania_rl.runs.manifest import DamagedError, RowsEntry

STATE_FILE: Final = "state.json"
FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def read_state(contents: Mapping[str, bytes], rows: Mapping[str, torch.Tensor]) -> Any:
    """Read the state from the files of a checkpoint, by name, and the columns of its rows."""
    tensors = {
        Path(name).stem: safetensors.torch.load(content)
        for name, content in contents.items()
        if name.endswith(".safetensors")
    }

    def value_of(tree: Any) -> Any:
        if isinstance(tree, list):
            return [value_of(entry) for entry in tree]
        if not isinstance(tree, dict):
            return tree
        match tree:
            case {"$tensor": [file, name]}:
                return tensors[file][name]
            case {"$rows": 0}:
                return dict(rows)
            case {"$tuple": [*entries]}:
                return tuple(value_of(entry) for entry in entries)
            case {"$float": name}:
                return FLOATS[name]
            case {"$dict": [*pairs]}:
                return {key: value_of(value) for key, value in pairs}
        return {name: value_of(entry) for name, entry in tree.items()}

    return value_of(json.loads(contents[STATE_FILE]))


def read_rows(folder: Path, entry: RowsEntry) -> dict[str, torch.Tensor]:
    """Read rows: each file holds column after column, without a header.

    Raises:
        DamagedError: if a file is damaged.
    """
    pieces = {
        name: [torch.empty((0, *column["shape"]), dtype=getattr(torch, column["dtype"]))]
        for name, column in entry.columns.items()
    }
    for segment in entry.segments:
        content = bytearray((folder / segment.file).read_bytes())
        if zlib.crc32(content) != segment.crc32:
            raise DamagedError(f"{segment.file} is damaged: its check sum is wrong")
        at, n_rows = 0, segment.end_row - segment.first_row
        for name, (empty, *_) in pieces.items():
            n_numbers = n_rows * math.prod(empty.shape[1:])
            if n_numbers > 0:
                piece = torch.frombuffer(content, dtype=empty.dtype, count=n_numbers, offset=at)
                pieces[name].append(piece.reshape(n_rows, *empty.shape[1:]))
                at += piece.nbytes
            else:
                pieces[name].append(empty.new_empty((n_rows, *empty.shape[1:])))
    n_skipped = entry.first_row - entry.segments[0].first_row if entry.segments else 0
    return {name: torch.cat(parts)[n_skipped:] for name, parts in pieces.items()}
