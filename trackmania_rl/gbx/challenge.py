"""Map in a `.Challenge.Gbx` file: author, blocks, gates, reference times.

In Stadium a block is 32 x 8 x 32 m; start, finish and checkpoint blocks have "Line" or "Checkpoint" in the name;
"High" ones carry the road 7 m up. Other environments have other block sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.reading import CGameChallenge, CGameHeader, GbxError, GbxFile, MapBlock, read_gbx

BLOCK_SIZE_M: Final = (32.0, 8.0, 32.0)
BLOCK_CENTER_M: Final = (16.0, 0.0, 16.0)  # middle of a block's floor, from the corner

HIGH_BLOCK_RAISE_M: Final = 7.0
CHALLENGE_SUFFIX: Final = ".challenge.gbx"
STADIUM: Final = "Stadium"
"""TrackMania Nations Forever's environment, the only one whose car is simulated."""

_HIGH: Final = re.compile("High(?![Ww]ay)")
_FORMAT_CODE: Final = re.compile(r"\$(?:\$|[0-9a-fA-F][0-9a-zA-Z]{0,2}|[lhpLHP](?:\[[^\]]*\])?|.)?")


class Gate(Enum):
    """A block's role in a race."""

    START = "start"
    CHECKPOINT = "checkpoint"
    FINISH = "finish"
    START_AND_FINISH = "start and finish"

    @classmethod
    def of_block(cls, block_name: str) -> Gate | None:
        """Return the role for a block with this name, or None."""
        if "StartFinishLine" in block_name or "multilap" in block_name.lower():
            return cls.START_AND_FINISH
        if "StartLine" in block_name:
            return cls.START
        if "FinishLine" in block_name:
            return cls.FINISH
        return cls.CHECKPOINT if "Checkpoint" in block_name else None


@dataclass(frozen=True, slots=True)
class Block:
    """Block in a map."""

    name: str  # such as "StadiumRoadMain"
    cell: tuple[int, int, int]  # (x, y, z) in the map's grid; y counts upwards
    # 0 to 3: 0 is along +z, each further one a right angle to the right (1: -x)
    quarter_turns: int
    flags: int

    @property
    def gate(self) -> Gate | None:
        """The block's role in a race."""
        return Gate.of_block(self.name)

    @property
    def floor_center_m(self) -> npt.NDArray[np.float64]:
        """(3,) middle of a Stadium block's road, or of the floor, in world axes."""
        raise_m = HIGH_BLOCK_RAISE_M if _HIGH.search(self.name) else 0.0
        return np.array(self.cell) * BLOCK_SIZE_M + BLOCK_CENTER_M + (0.0, raise_m, 0.0)


@dataclass(frozen=True, slots=True)
class MedalTimes:
    """A map's reference times in ms; None for missing ones."""

    author_ms: int | None
    gold_ms: int | None
    silver_ms: int | None
    bronze_ms: int | None

    @classmethod
    def of_author(cls, author_ms: int) -> MedalTimes:
        """Return the editor's medals for an author's time: 6, 20 and 50 % longer, rounded up to whole seconds."""
        gold, silver, bronze = (-(-author_ms * percent // 100_000) * 1000 for percent in (106, 120, 150))
        return cls(author_ms, gold, silver, bronze)

    def medal(self, race_time_ms: int) -> str | None:
        """Return the best medal ("author", "gold", "silver" or "bronze") that a race time reaches, or None."""
        for name in ("author", "gold", "silver", "bronze"):
            limit_ms = getattr(self, f"{name}_ms")
            if limit_ms is not None and race_time_ms <= limit_ms:
                return name
        return None


@dataclass(frozen=True)
class Challenge:
    """Map."""

    uid: str
    name: str  # with the game's colour codes
    author: str
    environment: str
    mood: str
    size_cells: tuple[int, int, int]
    n_laps: int  # 1 or more
    times: MedalTimes
    blocks: tuple[Block, ...]  # in the file's order

    @property
    def plain_name(self) -> str:
        """Name without colour codes."""
        return plain_text(self.name)

    @property
    def gates(self) -> list[Block]:
        """Start, checkpoints and finish, in the file's order (not the driving order)."""
        return [block for block in self.blocks if block.gate is not None]


def plain_text(text: str) -> str:
    """Remove the game's colour and type codes: "$fffESL$000-" is "ESL-"."""
    return _FORMAT_CODE.sub(lambda code: "$" if code.group() == "$$" else "", text).strip("\ufeff ")


def is_challenge_file(path: Path) -> bool:
    """Return whether a path names a `.Challenge.Gbx` file."""
    return path.name.lower().endswith(CHALLENGE_SUFFIX)


def read_challenge(path: Path) -> Challenge:
    """Read a map.

    Raises:
        GbxError: if the file is missing, damaged, or not a map.
    """
    return challenge_of(read_gbx(path))


def challenge_of(file: GbxFile) -> Challenge:
    """Return the map from a parsed `.Challenge.Gbx` file.

    Raises:
        GbxError: if it holds no TrackMania Nations Forever map.
    """
    nodes = file.nodes(CGameChallenge)
    if not nodes:
        raise GbxError(f"{file.path}: a .Gbx file, but not of a map; it is {file.kind}")
    node = nodes[0]
    if node.map_uid is None:
        raise GbxError(f"{file.path}: {file.kind} without blocks; supported are maps of TrackMania Nations Forever")
    description = None if file.header is None else file.header.find("desc")
    n_laps = "1" if description is None else description.get("nblaps", "1")
    return Challenge(
        uid=node.map_uid,
        name=node.map_name or "",
        author=node.map_author or "",
        environment=node.environment or "",
        mood=node.mood or "",
        size_cells=node.map_size,
        n_laps=max(1, int(n_laps)) if n_laps.isascii() and n_laps.isdigit() else 1,
        times=_medal_times(file.nodes(CGameHeader)),
        blocks=tuple(map(_block, node.blocks)),
    )


def read_checkpoint_positions(path: Path) -> npt.NDArray[np.float64]:
    """Return a map's gate positions (C, 3), start and finish included: metres, world axes, file order.

    Raises:
        GbxError: if the file is missing, damaged, not a map, without gates, or not in Stadium.
    """
    challenge = read_challenge(path)
    if challenge.environment != STADIUM:
        raise GbxError(
            f"map {path}: its environment is {challenge.environment!r}, and only the sizes of {STADIUM} blocks are "
            "known; remove the file to train without checking the map's own checkpoints"
        )
    gates = challenge.gates
    if not gates:
        raise GbxError(f"map {path}: none of its blocks is a start, finish or checkpoint")
    return np.array([gate.floor_center_m for gate in gates])


def _block(block: MapBlock) -> Block:
    x, y, z = block.position.as_array()
    return Block(name=block.name or "", cell=(x, y, z), quarter_turns=block.rotation % 4, flags=block.flags)


def _medal_times(nodes: list[CGameHeader]) -> MedalTimes:
    """Return the times; -1 and 0 mean none.

    Medals below the author's time mean none too: on platform maps they count respawns.
    """
    times: dict[str, int] = next((node.times for node in nodes if getattr(node, "times", None)), {})
    author_ms = times.get("author", -1)
    author, gold, silver, bronze = (
        times[medal] if times.get(medal, -1) >= max(author_ms, 1) else None
        for medal in ("author", "gold", "silver", "bronze")
    )
    return MedalTimes(author_ms=author, gold_ms=gold, silver_ms=silver, bronze_ms=bronze)
