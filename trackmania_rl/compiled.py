"""How inner loops are compiled by numba, so that a change in any file that they depend on is noticed.

`simulator.compiled` is the simulator's own decorator, made here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numba

from trackmania_rl.errors import UserError
from trackmania_rl.places import user_folder

log = logging.getLogger(__name__)
_numba_config: Any = numba.config  # its settings are read from the environment, which type checkers cannot see

VERSION_DIGITS: Final = 16
"""Of the hexadecimal digest of the sources, in the names of cache folders."""
KEPT_FOR_S: Final = 86_400.0
"""A day. Versions may be in use by turns, as of two checkouts or branches, and one may just be compiling."""


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
    When a new folder comes, those of earlier versions go.

    Args:
        name: begins the name of the cache folder.
        sources: the files of the functions, and of the compiled functions and constants that they use.
    """
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.read_bytes())
    parent = _cache_parent(_numba_config.CACHE_DIR)
    folder = None if parent is None else parent / f"{name}-{digest.hexdigest()[:VERSION_DIGITS]}"
    if folder is not None:
        _remove_earlier_versions(name, folder)

    def compiler(function: Callable[..., Any] | None = None, *, inline: Literal["never", "always"] = "never") -> Any:
        if function is None:
            return functools.partial(compiler, inline=inline)
        compile_function = numba.njit(cache=folder is not None, error_model="numpy", inline=inline)
        folder_before = _numba_config.CACHE_DIR
        _numba_config.CACHE_DIR = str(folder or folder_before)
        try:
            return compile_function(function)
        finally:
            _numba_config.CACHE_DIR = folder_before

    return compiler


@functools.cache
def _cache_parent(configured: str) -> Path | None:
    """Return the folder that holds the cache folders; None if no folder can be written to.

    In a read-only installation it is a folder that only this user can write to, because cached functions are code.

    Args:
        configured: numba's setting NUMBA_CACHE_DIR; may be empty.
    """
    usual = Path(configured or Path(__file__).parent / "__pycache__")
    if _is_writable(usual):
        return usual
    try:
        parent = user_folder("compiled")
        os.environ["NUMBA_CACHE_DIR"] = str(parent)  # of child processes, which then neither search nor warn
        where = f"in {parent}"
    except UserError:
        parent, where = None, "nowhere, so that each process compiles for a minute"
    if multiprocessing.parent_process() is None:  # collectors and other children would repeat it
        log.warning("%s cannot be written to: compiled functions are cached %s (docs/package.rst)", usual, where)
    return parent


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _remove_earlier_versions(name: str, cache_folder: Path) -> None:
    """Remove the cache folders of a name that are older than `KEPT_FOR_S`, unless the one to use is there already.

    Each has some 10 MB. One that is in use loses nothing but time: numba makes again what it misses.
    """
    is_of_name = re.compile(rf"{re.escape(name)}-[0-9a-f]{{{VERSION_DIGITS}}}").fullmatch
    with contextlib.suppress(OSError):  # another process removes them, too, or they may not be looked at
        if cache_folder.exists():
            return
        for folder in cache_folder.parent.iterdir():
            if is_of_name(folder.name) and time.time() - folder.stat().st_mtime > KEPT_FOR_S:
                shutil.rmtree(folder, ignore_errors=True)
