"""How the physics is compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


def _digest_of_sources() -> str:
    """A name for this version of the simulator."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_numba_config: Any = numba.config  # its settings are read from the environment, which type checkers cannot see
_CACHE_FOLDER = (
    Path(_numba_config.CACHE_DIR or Path(__file__).parent / "__pycache__") / f"physics-{_digest_of_sources()}"
)


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator of every physics function: numba, cached on disk, the same inputs give the same bytes.

    No fast-math. Divisions do not check for zero, which doubles the speed; where a divisor can vanish the code says so.

    Numba recompiles a cached function when its own file changes, but not when a function it calls does: a car would go
    on driving by the old law. So every version of the simulator has its own cache folder, and every function that calls
    a physics function needs this decorator as well.
    """
    folder_before = _numba_config.CACHE_DIR
    _numba_config.CACHE_DIR = str(_CACHE_FOLDER)
    try:
        return numba.njit(cache=True, error_model="numpy")(function)
    finally:
        _numba_config.CACHE_DIR = folder_before
