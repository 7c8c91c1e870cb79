"""torch.compile where it works, and the eager form where it does not."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.utils._pytree import tree_map

from trackmania_rl.errors import warn_once
from trackmania_rl.places import user_folder

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MOST_COMPILATIONS: Final = 64
"""How often a function is compiled, each time for other settings or shapes, before it runs as it is. Torch's own limit
is 8, which edits of the configuration reach in a run of weeks."""


def compiled(function: Callable[Arguments, Result], mode: str | None = None) -> Callable[Arguments, Result]:
    """Return the function compiled as a single graph. Where compiling it fails, it runs as it is, with one warning.

    It fails above all without a compiler: on a processor torch needs one for C++.

    Args:
        function: works on tensors; what else it reads should seldom change, as it is compiled again then.
        mode: of `torch.compile`; "reduce-overhead" records CUDA graphs, whose results are copied.
    """
    # What torch compiles is code. Its own place for it is in the temporary folder, where others might put theirs.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_folder("torch_compile")))
    torch._dynamo.config.trace_autograd_ops = True  # lets a graph hold gradients
    torch._dynamo.config.recompile_limit = MOST_COMPILATIONS
    graph = torch.compile(function, fullgraph=True, mode=mode)
    works = True

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        nonlocal works
        if works:
            try:
                results = graph(*args, **kwargs)
                return results if mode is None else tree_map(Tensor.clone, results)
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:  # the second is not one of the first
                works = False
                warn_once(f"use_torch_compile: it runs without, since: {_reason(error)}", log)
        return function(*args, **kwargs)

    return call


def _reason(error: Exception) -> str:
    """What to say of a failure, in one line."""
    if isinstance(error, FailOnRecompileLimitHit):  # its own text speaks of torch's options only
        return f"it was compiled {MOST_COMPILATIONS} times, for edited settings; the next start compiles it again"
    return str(error).splitlines()[0]
