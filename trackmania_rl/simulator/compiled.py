"""How the simulator's inner loops are compiled."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numba


def _digest_of_sources() -> str:
    """A name for this version of the simulator."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_numba_config: Any = numba.config  # its settings are read from the environment, which type checkers cannot see
_CACHE_FOLDER = (
    Path(_numba_config.CACHE_DIR or Path(__file__).parent / "__pycache__") / f"simulator-{_digest_of_sources()}"
)


def compiled(function: Callable[..., Any] | None = None, *, inline: Literal["never", "always"] = "never") -> Any:
    """Decorator of every compiled function of the simulator: the same inputs give the same bytes, cached on disk.

    No fast-math. Divisions do not check for zero, which doubles the speed; where a divisor can vanish the code says so.

    Numba recompiles a cached function when its own file changes, but not when a function it calls does: a car would go
    on driving by the old law. So every version of the simulator has its own cache folder, and every function here that
    numba compiles takes this decorator.

    Args:
        function: the function, where the decorator stands without brackets.
        inline: numba's option of that name: "always" where a call would cost more than the function does.
    """
    if function is None:
        return functools.partial(compiled, inline=inline)
    folder_before = _numba_config.CACHE_DIR
    _numba_config.CACHE_DIR = str(_CACHE_FOLDER)
    try:
        return numba.njit(cache=True, error_model="numpy", inline=inline)(function)
    finally:
        _numba_config.CACHE_DIR = folder_before
