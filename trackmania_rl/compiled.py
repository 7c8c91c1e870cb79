"""Compilation of inner loops by numba, with a cache that depends on all of their source files."""

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
"""Digits of the sources' digest in the names of cache folders."""
KEPT_FOR_S: Final = 86_400.0
"""Age at which the cache folder of another version is deleted; checkouts and branches may alternate."""


class Compiler(Protocol):
    """Decorator, with or without arguments."""

    def __call__(
        self, function: Callable[..., Any] | None = None, *, inline: Literal["never", "always"] = "never"
    ) -> Any:
        """Compile a function; `inline` is numba's option."""


def compiler_for(name: str, sources: Iterable[Path]) -> Compiler:
    """Make a decorator for functions that compile together, cached on disk. The same inputs give the same bytes.

    No fast-math. Divisions do not check for zero, which doubles the speed.

    Numba recompiles a cached function if its own file changes, but not if a function or constant that it imports does.
    Therefore each version of the sources has a cache folder.

    Args:
        name: first part of the cache folder's name.
        sources: files of the functions, and of the compiled functions and constants that they use.
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
    """Return the folder of the cache folders, in a read-only installation the user's own; None if none is writable.

    Args:
        configured: NUMBA_CACHE_DIR; may be empty.
    """
    usual = Path(configured or Path(__file__).parent / "__pycache__")
    if _is_writable(usual):
        return usual
    try:
        parent = user_folder("compiled")
        os.environ["NUMBA_CACHE_DIR"] = str(parent)  # for child processes
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
    """Remove cache folders of a name that are older than `KEPT_FOR_S`, if a new one (10 MB) comes."""
    is_of_name = re.compile(rf"{re.escape(name)}-[0-9a-f]{{{VERSION_DIGITS}}}").fullmatch
    with contextlib.suppress(OSError):  # another process may remove them, too
        if cache_folder.exists():
            return
        for folder in cache_folder.parent.iterdir():
            if is_of_name(folder.name) and time.time() - folder.stat().st_mtime > KEPT_FOR_S:
                shutil.rmtree(folder, ignore_errors=True)
