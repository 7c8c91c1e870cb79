"""Inner loop compilation by numba, with a cache that depends on all source files."""

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
from numba.core.caching import FunctionCache
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line, warn_once
from trackmania_rl.paths import user_folder

log = logging.getLogger(__name__)
_numba_config: Any = numba.config  # settings from the environment, invisible to type checkers

VERSION_DIGITS: Final = 16
"""Digits from the sources' digest in cache folder names."""
KEPT_FOR_S: Final = 86_400.0
"""Age at which another version's cache folder is deleted; branches may alternate."""


def compiler_for(name: str, sources: Iterable[Path]) -> Callable[..., Any]:
    """Make a decorator for functions that compile together, cached on disk.

    With `is_inner=True` only compiled functions may call the function: it compiles in
    three quarters of the time, without the wrapper for calls from Python, which crash.

    Equal inputs give equal bytes: no fast-math. Divisions do not check for zero, which doubles the speed. Numba
    recompiles a cached function if the file changes, but not if imports change: each source version has a separate
    cache.

    Args:
        name: first part of the cache folder's name.
        sources: files with the functions, and with the compiled functions and constants used.
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
        if _numba_config.DISABLE_JIT:
            return _refused(function)
        compiled: Any = numba.njit(error_model="numpy", inline=inline, **wrappers)(function)
        if folder is not None:
            _keep_in(folder, compiled)
        return compiled

    return compiler


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def refuse(*_: Any, **__: Any) -> Any:
        raise UserError("NUMBA_DISABLE_JIT is set, but the trainer needs compiled functions: unset it")

    return refuse


class _Cache(FunctionCache):
    """Function cache that replaces damaged files, and that a full disk turns off."""

    @override
    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # damaged pickles raise any error
            _warn(error)
            with contextlib.suppress(OSError):  # logged by `save_overload`
                self.flush()
            return None

    @override
    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _warn(error)
            self.disable()


def _keep_in(folder: Path, compiled: Any) -> None:
    """Give a function a cache, as numba's option `cache` does; none if the folder cannot be written."""
    folder_before = _numba_config.CACHE_DIR
    _numba_config.CACHE_DIR = str(folder)
    try:
        compiled._cache = _Cache(compiled.py_func)
    except (OSError, RuntimeError) as error:
        _warn(error)
    finally:
        _numba_config.CACHE_DIR = folder_before


def _warn(error: Exception) -> None:
    reason = error.strerror if isinstance(error, OSError) else one_line(error)
    warn_once(f"the cache of compiled functions, {_cache_parent()}, fails: {reason}; they compile without it", log)


@functools.cache
def _cache_parent() -> Path | None:
    try:
        return Path(_numba_config.CACHE_DIR) if _numba_config.CACHE_DIR else user_folder("compiled")
    except UserError as error:
        if multiprocessing.parent_process() is None:  # child processes would repeat it
            log.warning("each process compiles its functions for some 30 s: %s", error)
        return None


def _remove_old_versions(name: str, parent: Path) -> None:
    with contextlib.suppress(OSError):  # another process may also remove them
        for folder in parent.glob(f"{name}-{'[0-9a-f]' * VERSION_DIGITS}"):
            if time.time() - folder.stat().st_mtime > KEPT_FOR_S:
                shutil.rmtree(folder, ignore_errors=True)
