"""A folder for the tracks that are generated for an environment."""

from __future__ import annotations

import tempfile
from typing import Any


class TemporaryFolder:
    """A folder that is made when its path is first asked for (`os.fspath`), and removed by `close`.

    A copy, made by `copy.deepcopy` or `pickle`, stands for no folder yet: closing it takes nothing from the original.
    """

    def __init__(self) -> None:
        self._made: tempfile.TemporaryDirectory[str] | None = None

    def __fspath__(self) -> str:
        if self._made is None:
            self._made = tempfile.TemporaryDirectory(prefix="trackmania_rl_tracks_")
        return self._made.name

    def __reduce__(self) -> tuple[Any, ...]:
        return TemporaryFolder, ()

    def close(self) -> None:
        """Remove the folder, if it was made."""
        if self._made is not None:
            self._made.cleanup()
            self._made = None
