"""A stream of random numbers of one's own for code that draws from torch's global generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class OwnRandomState:
    """Lends its state to torch's global generators for as long as a context lasts.

    Args:
        seed: where it begins.
        device: whose global generator is lent to, beside the processor's.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        with self._restoring():
            torch.manual_seed(seed)
            self.state = self._read()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from this stream within the context."""
        with self._restoring():
            self._write(self.state)
            yield
            self.state = self._read()

    @contextlib.contextmanager
    def _restoring(self) -> Iterator[None]:
        before = self._read()
        try:
            yield
        finally:
            self._write(before)

    def _read(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else states

    def _write(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0].cpu())
        if self._device.type == "cuda" and len(states) > 1:
            torch.cuda.set_rng_state(states[1].cpu(), self._device)
