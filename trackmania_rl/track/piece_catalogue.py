"""The catalogue of Stadium pieces: what each kind of block is made of, read from `pieces/*.toml`, one file a family.

A piece is cross-sections swept along ways, and polygons, in the block's own axes: z forwards, x to the left, y up,
metres from the corner of its lowest cell. Each file says where its numbers are from, and each piece what of it is
assumed.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.files import parse_toml
from trackmania_rl.gbx.challenge import Block
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.stadium_blocks import SHAPE_BITS

FOLDER: Final = "pieces"

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CrossSection:
    """What is swept along a way; K points.

    Attributes:
        points_m: (K, 2) to the left of the way and above it, from right to left.
        surface: what it is made of.
    """

    points_m: FloatArray
    surface: Surface


@dataclass(frozen=True)
class LaneSweep:
    """A cross-section along each lane of the block; a lane's heights are those of `stadium_blocks`."""

    cross_section: CrossSection
    facets: int


@dataclass(frozen=True)
class ProfileSweep:
    """A cross-section straight through the block, up and down.

    Attributes:
        cross_section: what is swept.
        profile_m: (N, 2) z and height of the way.
    """

    cross_section: CrossSection
    profile_m: FloatArray


@dataclass(frozen=True)
class ArcSweep:
    """A cross-section along an arc about an axis along x; it moves sideways evenly with the angle.

    Attributes:
        cross_section: what is swept; above the way is towards the axis.
        center_m: (2,) z and height of the axis.
        radius_m: of the way.
        angles_rad: (2,) where it begins and ends; 0 is straight down, a quarter turn on it points along z.
        across_m: (2,) x of the way there.
        facets: straight pieces in all.
    """

    cross_section: CrossSection
    center_m: FloatArray
    radius_m: float
    angles_rad: FloatArray
    across_m: FloatArray
    facets: int


@dataclass(frozen=True)
class Polygon:
    """A flat, convex piece of surface.

    Attributes:
        points_m: (K, 3) counter-clockwise as seen by who drives on it.
        surface: what it is made of.
    """

    points_m: FloatArray
    surface: Surface


@dataclass(frozen=True)
class Piece:
    """What is known of a kind of block.

    Attributes:
        family: the file that it is in.
        sweeps: what is swept along ways.
        polygons: what is flat.
        trigger_m: (2, 3) lowest and highest corner of a gate's trigger; None for what is no gate.
        spawn_m: (3,) where a car is put at a start, or by a respawn at a checkpoint.
        replaces_grass: whether the stadium's grass has a hole where the block stands on it.
        is_water: whether who falls into it is out until the respawn.
        is_scenery: whether it stands beside the roads: nothing of it is driven on, and its shape is not known.
        note: what of it is assumed.
    """

    family: str
    sweeps: tuple[LaneSweep | ProfileSweep | ArcSweep, ...] = ()
    polygons: tuple[Polygon, ...] = ()
    trigger_m: FloatArray | None = None
    spawn_m: FloatArray | None = None
    replaces_grass: bool = False
    is_water: bool = False
    is_scenery: bool = False
    note: str = ""


@dataclass(frozen=True)
class Catalogue:
    """All pieces.

    Attributes:
        by_name: pieces by name and shape; the shape is None where all shapes are the same.
        patterns: (pattern, piece) of names with a `*`.
        sources: by family, where its numbers are from.
    """

    by_name: dict[tuple[str, int | None], Piece]
    patterns: tuple[tuple[str, Piece], ...]
    sources: dict[str, str]

    def find(self, block: Block) -> Piece | None:
        """The piece that a block is, or None."""
        for shape in (None, block.flags & SHAPE_BITS):
            piece = self.by_name.get((block.name, shape))
            if piece is not None:
                return piece
        return next((piece for pattern, piece in self.patterns if fnmatch.fnmatchcase(block.name, pattern)), None)


@cache
def stadium_pieces() -> Catalogue:
    """The catalogue that ships."""
    files = sorted(
        (entry for entry in resources.files(__package__).joinpath(FOLDER).iterdir() if entry.name.endswith(".toml")),
        key=lambda entry: entry.name,
    )
    return catalogue_of({entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8") for entry in files})


def catalogue_of(texts: dict[str, str]) -> Catalogue:
    """Read a catalogue from its files' texts, by family.

    Cross-sections are shared by all files.

    Raises:
        ValueError: if a file is no TOML, names what does not exist, or has a piece twice.
    """
    families = {family: parse_toml(text) for family, text in texts.items()}
    sections: dict[str, CrossSection] = {}
    for family, tables in families.items():
        for name, section in tables.get("cross_sections", {}).items():
            if name in sections:
                raise ValueError(f"{family}: cross-section {name!r} stands in two files")
            sections[name] = _cross_section(section)
    by_name: dict[tuple[str, int | None], Piece] = {}
    patterns: list[tuple[str, Piece]] = []
    for family, tables in families.items():
        for entry in tables["pieces"]:
            piece = _piece(family, entry, sections)
            for name in entry["names"]:
                if "*" in name:
                    patterns.append((name, piece))
                    continue
                for shape in entry.get("shapes", [None]):
                    if (name, shape) in by_name:
                        raise ValueError(f"{family}: {name} stands in the catalogue twice")
                    by_name[name, shape] = piece
    return Catalogue(by_name, tuple(patterns), {family: tables["source"] for family, tables in families.items()})


def _cross_section(table: dict[str, Any]) -> CrossSection:
    half_m = np.array(table["mirrored_m"], dtype=np.float64)
    if half_m[0, 0] != 0.0:
        raise ValueError(f"a mirrored cross-section begins in the middle of the way, not at {half_m[0, 0]} m")
    right_m = half_m[:0:-1] * (-1.0, 1.0)
    flat = 1 if half_m[0, 1] == half_m[1, 1] else 0  # one piece over the middle
    return CrossSection(np.concatenate((right_m, half_m[flat:])), Surface[table["surface"].upper()])


def _piece(family: str, entry: dict[str, Any], sections: dict[str, CrossSection]) -> Piece:
    trigger_m, spawn_m = entry.get("trigger_m"), entry.get("spawn_m")
    return Piece(
        family,
        tuple(_sweep(sweep, sections) for sweep in entry.get("sweeps", ())),
        tuple(
            Polygon(np.array(polygon["points_m"], dtype=np.float64), Surface[polygon["surface"].upper()])
            for polygon in entry.get("polygons", ())
        ),
        None if trigger_m is None else np.array(trigger_m, dtype=np.float64),
        None if spawn_m is None else np.array(spawn_m, dtype=np.float64),
        entry.get("replaces_grass", False),
        entry.get("is_water", False),
        entry.get("is_scenery", False),
        entry.get("note", "").strip(),
    )


def _sweep(table: dict[str, Any], sections: dict[str, CrossSection]) -> LaneSweep | ProfileSweep | ArcSweep:
    section = sections.get(table["cross_section"])
    if section is None:
        raise ValueError(f"no file has a cross-section {table['cross_section']!r}")
    if "surface" in table:
        section = CrossSection(section.points_m, Surface[table["surface"].upper()])
    match table["way"]:
        case "lanes":
            return LaneSweep(section, table.get("facets", 1))
        case "profile":
            profile_m = np.array(table["profile_m"], dtype=np.float64)
            if "slopes" in table:
                profile_m = _smooth(profile_m, table["slopes"], table["facets"])
            return ProfileSweep(section, profile_m)
        case "arc":
            return ArcSweep(
                section,
                np.array(table["center_m"], dtype=np.float64),
                float(table["radius_m"]),
                np.radians((table["from_deg"], table["to_deg"])),
                np.array(table["across_m"], dtype=np.float64),
                table["facets"],
            )
    raise ValueError(f"{table['way']!r} is no way that a cross-section can be swept along: lanes, profile, arc")


def _smooth(ends_m: FloatArray, slopes: list[float], facets: int) -> FloatArray:
    """(facets + 1, 2) a profile between two points as the cubic with these slopes at its ends."""
    u = np.linspace(0.0, 1.0, facets + 1)
    length_m = ends_m[1, 0] - ends_m[0, 0]
    height_m = (
        (1 + 2 * u) * (1 - u) ** 2 * ends_m[0, 1]
        + u * (1 - u) ** 2 * length_m * slopes[0]
        + u**2 * (3 - 2 * u) * ends_m[1, 1]
        + u**2 * (u - 1) * length_m * slopes[1]
    )
    return np.stack((ends_m[0, 0] + u * length_m, height_m), axis=1)
