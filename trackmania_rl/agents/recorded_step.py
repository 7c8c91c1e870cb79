"""The work of an update recorded once on a GPU and played back: one launch instead of hundreds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor

log = logging.getLogger(__name__)

WARM_UPS = 3
"""Calls of a shape that run as they are before one is recorded: in them libraries choose algorithms and take memory."""


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # where the graph reads
    outputs: Any  # where it writes


class RecordedStep:
    """A function of tensors, played back from a CUDA graph once it has been called a few times with the same shapes.

    The function may change tensors that stay where they are (weights, running means), but nothing else; it must not
    wait for the device, draw random numbers, or depend on anything but its arguments, these tensors, and the settings.

    A recording that fails says so in one warning, and the function runs as it is from then on.

    Args:
        function: of tensors, and tuples of tensors.
        settings: gives what else the function depends on; for a new object it is recorded again.
    """

    def __init__(self, function: Callable[..., Any], settings: Callable[[], object]) -> None:
        self._function = function
        self._settings = settings
        self._recorded_with: object = None
        self._recordings: dict[tuple[Any, ...], _Recording] = {}
        self._calls: dict[tuple[Any, ...], int] = {}
        self._works = True
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns, in new tensors."""
        inputs, structure = pytree.tree_flatten(arguments)
        key = (structure, *((tensor.shape, tensor.dtype) for tensor in inputs if isinstance(tensor, Tensor)))
        if not self._works:
            return self._function(*arguments)
        if self._settings() is not self._recorded_with:
            self._recorded_with = self._settings()
            self._recordings.clear()
            self._calls.clear()
        if self._calls.get(key, 0) < WARM_UPS:
            self._calls[key] = self._calls.get(key, 0) + 1
            return self._beside(self._function, arguments)
        if key not in self._recordings:
            stream = torch.cuda.current_stream()
            try:
                self._recordings[key] = self._record(inputs, structure)
            except RuntimeError as error:
                self._works = False
                torch.cuda.set_stream(stream)  # torch leaves its recording's own one set when ending it fails, too
                reason = error.__context__ or error  # the first error, not the one of ending a recording that failed
                log.warning("use_torch_compile: it runs without recording, since: %s", str(reason).splitlines()[0])
                return self._function(*arguments)
        return _play(self._recordings[key], inputs)

    def _beside(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call it on a stream of its own, as recording asks of calls before."""
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            results = function(*arguments)
        torch.cuda.current_stream().wait_stream(self._stream)
        return results

    def _record(self, inputs: list[Any], structure: pytree.TreeSpec) -> _Recording:
        """Recording computes nothing: weights stay as they are."""
        places = [value.clone() if isinstance(value, Tensor) else value for value in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            outputs = self._function(*pytree.tree_unflatten(places, structure))
        return _Recording(graph, places, outputs)


def _play(recording: _Recording, inputs: list[Any]) -> Any:
    for place, value in zip(recording.inputs, inputs, strict=True):
        if isinstance(value, Tensor):
            place.copy_(value)
    recording.graph.replay()
    return pytree.tree_map(lambda result: result.clone() if isinstance(result, Tensor) else result, recording.outputs)
