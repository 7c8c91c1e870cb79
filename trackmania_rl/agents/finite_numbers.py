"""Search for tensors with NaN or infinite numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path


def not_finite_tensors(state: Any) -> list[str]:
    """Return the names of the tensors with numbers that are not finite, such as `target/A_head.0.weight`.

    Synchronizes with a GPU once.

    Args:
        state: nested dicts and lists of tensors and other values.
    """
    found = [
        ("/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path), leaf)
        for path, leaf in tree_flatten_with_path(state)[0]
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    if not found:
        return []
    device = found[0][1].device
    # A sum with NaN or infinity is not finite, and is much faster than isfinite; but finite numbers may overflow.
    sums = torch.stack([tensor.sum().to(device, torch.float32) for _, tensor in found]).tolist()
    return [
        name
        for (name, tensor), total in zip(found, sums, strict=True)
        if not math.isfinite(total) and not torch.isfinite(tensor).all()
    ]


def in_few_words(names: list[str], most: int = 3) -> str:
    """Name the first of some tensors, and count the others."""
    others = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(names[:most]) + others
