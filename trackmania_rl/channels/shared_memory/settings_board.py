"""The settings in force in memory that all processes see, without a lock that a killed process could hold.

They stand there as JSON, twice in turns: the writer fills the buffer that nobody is to read, then says by the version
which one holds. A reader whose buffer was written again while it copied looks again.
"""

from __future__ import annotations

import ctypes
import zlib
from multiprocessing.context import BaseContext

from trackmania_rl.channels.protocols import ChannelError
from trackmania_rl.channels.settings_text import settings_as_json
from trackmania_rl.settings import Settings

LEAST_BYTES = 1 << 18
ROOM_TO_GROW = 8
"""The board holds settings of that many times the first ones' size."""
MOST_LOOKS = 100
"""A look takes well under a millisecond, and edits come seconds apart: more than two are never needed."""


class SettingsBoard:
    """One process writes, any number read. Hand the object to a process as an argument when it is spawned.

    Args:
        settings: what stands there at first, as version 1.
        context: of the processes that will share it.
    """

    def __init__(self, settings: Settings, context: BaseContext) -> None:
        self._size_bytes = max(LEAST_BYTES, ROOM_TO_GROW * len(settings_as_json(settings)))
        self._buffers = tuple(context.RawArray(ctypes.c_char, self._size_bytes) for _ in range(2))
        self._lengths = context.RawArray(ctypes.c_int64, 2)
        self._checksums = context.RawArray(ctypes.c_uint32, 2)
        self._version = context.RawValue(ctypes.c_int64, 0)
        self.write(settings)

    @property
    def version(self) -> int:
        """How often settings were written."""
        return int(self._version.value)

    def write(self, settings: Settings) -> None:
        """Make these the settings that others read.

        Raises:
            ChannelError: if they are larger than there is room for; what was written before still stands.
        """
        text = settings_as_json(settings)
        if len(text) > self._size_bytes:
            raise ChannelError(
                f"the edited settings are too long for collectors to be told of ({len(text)} bytes, at most "
                f"{self._size_bytes}): start the run again to use them"
            )
        version = self.version + 1
        ctypes.memmove(self._buffers[version % 2], text, len(text))
        self._lengths[version % 2] = len(text)
        self._checksums[version % 2] = zlib.crc32(text, version)
        self._version.value = version

    def read(self) -> tuple[int, Settings] | None:
        """Return the version and what stands there; None if each look met a writer, be it a killed one."""
        for _ in range(MOST_LOOKS):
            version = self.version
            length, checksum = self._lengths[version % 2], self._checksums[version % 2]
            text = ctypes.string_at(self._buffers[version % 2], min(max(length, 0), self._size_bytes))
            if version == self.version and zlib.crc32(text, version) == checksum:
                return version, Settings.model_validate_json(text)
        return None
