"""Reading a map's own checkpoints from its `.Challenge.Gbx` file, through pygbx.

Facts (reference/observation.md): a block is 32 x 8 x 32 m; start, finish and checkpoint blocks have "Line" or
"Checkpoint" in their name; "High" ones carry their road 7 m up.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from pygbx import Gbx, GbxType
from pygbx.headers import CGameChallenge, MapBlock

from trackmania_rl.errors import UserError

BLOCK_SIZE_M: Final = (32.0, 8.0, 32.0)
BLOCK_CENTER_M: Final = (16.0, 0.0, 16.0)
"""The middle of a block's floor, from its corner."""

HIGH_BLOCK_RAISE_M: Final = 7.0
CHECKPOINT_NAME_PARTS: Final = ("Checkpoint", "Line")
CHALLENGE_SUFFIX: Final = ".challenge.gbx"
MAX_FILE_BYTES: Final = 64 << 20


class ChallengeError(UserError):
    """A `.Challenge.Gbx` file is missing, is none, or can't be read."""


def is_challenge_file(path: Path) -> bool:
    """Whether a map's path names a `.Challenge.Gbx` file."""
    return path.name.lower().endswith(CHALLENGE_SUFFIX)


def read_checkpoint_positions(path: Path) -> npt.NDArray[np.float64]:
    """Positions of a map's checkpoints, its start and finish lines included.

    Args:
        path: the `.Challenge.Gbx` file.

    Returns:
        (C, 3) metres, world axes, in the file's order.

    Raises:
        ChallengeError: if the file is missing, damaged, or no map.
    """
    positions = []
    for block in _read_blocks(path):
        name = block.name or ""
        if any(part in name for part in CHECKPOINT_NAME_PARTS):
            raise_m = HIGH_BLOCK_RAISE_M if "High" in name else 0.0
            corner = np.array(block.position.as_array(), dtype=np.float64) * BLOCK_SIZE_M
            positions.append(corner + BLOCK_CENTER_M + (0.0, raise_m, 0.0))
    if not positions:
        raise ChallengeError(f"map {path}: none of its blocks is a start, finish or checkpoint")
    return np.array(positions)


def _read_blocks(path: Path) -> list[MapBlock]:
    if not path.is_file():
        raise ChallengeError(f"map {path}: no such file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ChallengeError(f"map {path}: larger than {MAX_FILE_BYTES >> 20} MiB, which no map is")
    # pygbx reports chunks that it does not know through the root logger; they say nothing about the checkpoints.
    previous_level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        challenge = Gbx(path.read_bytes()).get_class_by_id(GbxType.CHALLENGE)
    except Exception as error:  # pygbx checks nothing: a damaged file surfaces as whatever its misread bytes run into
        raise ChallengeError(
            f"map {path}: not a readable .Challenge.Gbx file ({type(error).__name__}: {error})"
        ) from error
    finally:
        logging.disable(previous_level)
    if not isinstance(challenge, CGameChallenge):
        raise ChallengeError(f"map {path}: a .Gbx file, but not of a map")
    return challenge.blocks
