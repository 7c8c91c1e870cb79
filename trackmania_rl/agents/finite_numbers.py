"""Finding numbers that are not finite: infinite, or NaN ("not a number")."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def not_finite_tensors(state: Any, name: str = "") -> list[str]:
    """Name the tensors of a state that hold numbers that are not finite.

    A GPU is waited for once, however many tensors there are.

    Args:
        state: nested dicts and lists of tensors and other values, which do not matter.
        name: what stands in front of each name.

    Returns:
        Their places, such as `target/A_head.0.weight`, in their order.
    """
    found = [(place, tensor) for place, tensor in _tensors(state, name) if tensor.is_floating_point()]
    if not found:
        return []
    device = found[0][1].device
    # No NaN or infinity leaves a sum finite, and to sum up is many times faster; but finite numbers may overflow.
    sums = torch.stack([tensor.sum().to(device, torch.float32) for _, tensor in found]).tolist()
    return [
        place
        for (place, tensor), total in zip(found, sums, strict=True)
        if not math.isfinite(total) and not torch.isfinite(tensor).all()
    ]


def in_few_words(names: list[str], most: int = 3) -> str:
    """Name the first of some tensors, and count the others."""
    others = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(names[:most]) + others


def _tensors(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _tensors(value, f"{name}/{key}" if name else str(key))
    elif isinstance(state, list | tuple):
        for number, value in enumerate(state):
            yield from _tensors(value, f"{name}/{number}" if name else str(number))
