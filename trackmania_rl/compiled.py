"""Compilation of inner loops by numba, with a cache that depends on all source files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numba

from trackmania_rl.errors import UserError
from trackmania_rl.places import user_folder

log = logging.getLogger(__name__)
_numba_config: Any = numba.config  # settings from the environment, invisible to type checkers

VERSION_DIGITS: Final = 16
"""Digits of the sources' digest in cache folder names."""
KEPT_FOR_S: Final = 86_400.0
"""Age at which another version's cache folder is deleted; branches may alternate."""


def compiler_for(name: str, sources: Iterable[Path]) -> Callable[..., Any]:
    """Make a decorator for functions that compile together, cached on disk.

    It takes numba's option `inline`. With `is_inner=True` only compiled functions may call the function: it compiles in
    three quarters of the time, without the wrapper for calls from Python, which crash.

    The same inputs give the same bytes: no fast-math. Divisions do not check for zero, which doubles the speed. Numba
    recompiles a cached function if its own file changes, but not its imports: each version of the sources has its own
    cache.

    Args:
        name: first part of the cache folder's name.
        sources: files of the functions, and of the compiled functions and constants that they use.
    """
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.read_bytes())
    parent = _cache_parent()
    folder = None if parent is None else parent / f"{name}-{digest.hexdigest()[:VERSION_DIGITS]}"
    if folder is not None and not folder.exists():
        _remove_old_versions(name, folder.parent)

    def compiler(function: Callable[..., Any] | None = None, *, inline: Any = "never", is_inner: bool = False) -> Any:
        if function is None:
            return functools.partial(compiler, inline=inline, is_inner=is_inner)
        wrappers: Any = {"no_cfunc_wrapper": True, "no_cpython_wrapper": is_inner}  # unknown to type checkers
        compile_function = numba.njit(cache=folder is not None, error_model="numpy", inline=inline, **wrappers)
        folder_before = _numba_config.CACHE_DIR
        _numba_config.CACHE_DIR = str(folder or folder_before)
        try:
            return compile_function(function)
        finally:
            _numba_config.CACHE_DIR = folder_before

    return compiler


@functools.cache
def _cache_parent() -> Path | None:
    """Return NUMBA_CACHE_DIR or the user's cache folder; None without."""
    try:
        return Path(_numba_config.CACHE_DIR) if _numba_config.CACHE_DIR else user_folder("compiled")
    except UserError as error:
        if multiprocessing.parent_process() is None:  # child processes would repeat it
            log.warning("each process compiles its functions for a minute: %s", error)
        return None


def _remove_old_versions(name: str, parent: Path) -> None:
    with contextlib.suppress(OSError):  # another process may also remove them
        for folder in parent.glob(f"{name}-{'[0-9a-f]' * VERSION_DIGITS}"):
            if time.time() - folder.stat().st_mtime > KEPT_FOR_S:
                shutil.rmtree(folder, ignore_errors=True)
