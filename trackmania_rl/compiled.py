"""How inner loops are compiled by numba, so that a change in any file that they depend on is noticed.

`simulator.compiled` is the simulator's own decorator, made here.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

import numba

_numba_config: Any = numba.config  # its settings are read from the environment, which type checkers cannot see


class Compiler(Protocol):
    """A decorator, with or without brackets."""

    def __call__(
        self, function: Callable[..., Any] | None = None, *, inline: Literal["never", "always"] = "never"
    ) -> Any:
        """Compile a function.

        Args:
            function: the function, where the decorator is used without brackets.
            inline: numba's option of that name: "always" where a call would cost more than the function does.
        """
        ...


def compiler_for(name: str, sources: Iterable[Path]) -> Compiler:
    """Make a decorator for functions that compile together: the same inputs give the same bytes, cached on disk.

    No fast-math. Divisions do not check for zero, which doubles the speed; where a divisor can vanish the code says so.

    Numba recompiles a cached function when its own file changes, but not when a function or a constant that it imports
    does: a car would go on driving by the old law. So every version of the sources has its own cache folder, and a
    function that uses compiled functions or constants of other files takes a decorator that knows all these files.

    Args:
        name: begins the name of the cache folder.
        sources: the files of the functions, and of the compiled functions and constants that they use.
    """
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.read_bytes())
    parent = Path(_numba_config.CACHE_DIR or Path(__file__).parent / "__pycache__")
    cache_folder = str(parent / f"{name}-{digest.hexdigest()[:16]}")

    def compiler(function: Callable[..., Any] | None = None, *, inline: Literal["never", "always"] = "never") -> Any:
        if function is None:
            return functools.partial(compiler, inline=inline)
        folder_before = _numba_config.CACHE_DIR
        _numba_config.CACHE_DIR = cache_folder
        try:
            return numba.njit(cache=True, error_model="numpy", inline=inline)(function)
        finally:
            _numba_config.CACHE_DIR = folder_before

    return compiler
