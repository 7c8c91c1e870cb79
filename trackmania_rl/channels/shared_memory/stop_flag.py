"""A flag that is set once and seen by all processes."""

from __future__ import annotations

from multiprocessing.context import BaseContext


class StopFlag:
    """Has no lock, which a killed process could leave locked for all others.

    It is handed to a process when that is spawned. (`multiprocessing.Event` takes a lock also to be looked at.)
    """

    def __init__(self, context: BaseContext) -> None:
        self._value = context.Value("b", 0, lock=False)

    def set(self) -> None:
        """Set it, for good."""
        self._value.value = 1

    def is_set(self) -> bool:
        """Say whether it was set."""
        return bool(self._value.value)
