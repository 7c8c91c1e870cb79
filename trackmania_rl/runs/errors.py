"""What can go wrong with a checkpoint."""

from __future__ import annotations

from trackmania_rl.errors import UserError


class CheckpointError(UserError):
    """A checkpoint that cannot be written or read; the text says which, why and what to do."""


class DamagedError(CheckpointError):
    """What is wrong within a checkpoint, without its name, which whoever reads it puts before that."""


class DiskTooFullError(CheckpointError):
    """A checkpoint that is larger than what the disk can spare; nothing was written."""
