"""Rebuild the tracks that ship in ``maps/`` from the road books below: one .toml and one .npy line each.

The author's time is the fastest race known (research/planner/README.rst), from which the medals follow.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.simulator.tracks.track_design import (
    CHECKPOINT,
    TrackDesign,
    close_lap,
    lay_out,
    left,
    line_name,
    right,
    straight,
    track_file_text,
    write_track,
)

__all__ = ["DESIGNS", "line_name", "track_file_text"]


def medals(author_ms: int) -> tuple[tuple[str, int], ...]:
    return tuple(asdict(MedalTimes.of_author(author_ms)).items())


VALLEY = TrackDesign(
    name="valley",
    description="The default: nine corners from wide bends to a hairpin over mild hills, walls on both sides.",
    times_ms=medals(20_320),
    pieces=(
        straight(70),
        left(90, radius_m=50),
        straight(30, climb_m=2),
        right(165, radius_m=15, easing_m=8, width_m=16),
        CHECKPOINT,
        straight(35, climb_m=3),
        left(120, radius_m=18, easing_m=8, width_m=18),
        straight(25, climb_m=-3),
        right(70, radius_m=50),
        CHECKPOINT,
        straight(90),
        left(110, radius_m=18, easing_m=8, width_m=18),
        straight(30, climb_m=-2),
        right(125, radius_m=15, easing_m=8, width_m=16),
        straight(30),
        CHECKPOINT,
        left(60, radius_m=55, climb_m=2),
        straight(75, climb_m=2),
        left(130, radius_m=15, easing_m=8, width_m=16),
        straight(30, climb_m=-3),
        right(110, radius_m=25, easing_m=10),
        straight(50),
    ),
)

SPEEDWAY = TrackDesign(
    name="speedway",
    description="Flat and fast: long bends of 80 to 150 m radius that want throttle control more than brakes.",
    times_ms=medals(20_590),
    width_m=26,
    pieces=(
        straight(180),
        left(80, radius_m=150, easing_m=40),
        straight(120),
        CHECKPOINT,
        left(110, radius_m=100, easing_m=30),
        straight(160),
        CHECKPOINT,
        right(60, radius_m=120, easing_m=30),
        straight(60),
        left(150, radius_m=80, easing_m=30),
        CHECKPOINT,
        straight(250),
    ),
)

HILLS = TrackDesign(
    name="hills",
    description="Crests that make the car light and dips that press it down, corners right behind them.",
    times_ms=medals(17_810),
    pieces=(
        straight(60),
        straight(60, climb_m=7),
        right(75, radius_m=45),
        straight(50, climb_m=-6),
        CHECKPOINT,
        left(100, radius_m=40, climb_m=-2),
        straight(70, climb_m=10),
        straight(50, climb_m=-8),
        left(60, radius_m=60),
        CHECKPOINT,
        straight(80, climb_m=9),
        right(130, radius_m=35, climb_m=3, banking_deg=-8),
        straight(90, climb_m=-12),
        right(50, radius_m=70),
        CHECKPOINT,
        straight(60, climb_m=4),
        left(90, radius_m=30, climb_m=-2),
        straight(80, climb_m=-3),
    ),
)

KART = TrackDesign(
    name="kart",
    description="Tight and technical: hairpins and chicanes on a narrow road.",
    times_ms=medals(17_210),
    width_m=14,
    pieces=(
        straight(45),
        right(90, radius_m=16, easing_m=8),
        straight(25),
        left(180, radius_m=15, easing_m=8),
        CHECKPOINT,
        straight(30),
        right(60, radius_m=18, easing_m=8),
        left(60, radius_m=18, easing_m=8),
        straight(25),
        right(175, radius_m=12, easing_m=8),
        CHECKPOINT,
        straight(45),
        left(45, radius_m=25, easing_m=10),
        right(90, radius_m=20, easing_m=8),
        left(45, radius_m=25, easing_m=10),
        straight(20),
        left(135, radius_m=14, easing_m=8),
        CHECKPOINT,
        straight(40),
        right(100, radius_m=14, easing_m=8),
        straight(15),
        left(90, radius_m=14, easing_m=8),
        straight(50),
    ),
)

RALLY = TrackDesign(
    name="rally",
    description="Asphalt, dirt, grass and turbo by turns; grass verges where the walls end.",
    times_ms=medals(18_660),
    width_m=22,
    pieces=(
        straight(80),
        right(60, radius_m=60),
        straight(40, surface="dirt", climb_m=2),
        left(90, radius_m=70, easing_m=20, surface="dirt", climb_m=3),
        straight(40, surface="dirt"),
        CHECKPOINT,
        straight(40, edge="grass"),
        left(75, radius_m=45, edge="grass"),
        straight(30, edge="grass"),
        straight(12, surface="turbo"),
        straight(90, climb_m=-3),
        right(100, radius_m=60, easing_m=20),
        CHECKPOINT,
        straight(50, climb_m=3),
        straight(40, surface="grass", width_m=28),
        right(40, radius_m=120, easing_m=20, surface="grass", width_m=28),
        straight(40),
        CHECKPOINT,
        left(120, radius_m=50, surface="dirt", width_m=28),
        straight(60, surface="dirt", climb_m=-3),
        straight(60),
    ),
)

JUMP = TrackDesign(
    name="jump",
    description="Two jumps over gaps: arrive too slowly and the car falls.",
    times_ms=medals(14_610),
    pieces=(
        straight(90),
        straight(35, climb_m=4, edge="drop"),
        straight(14, climb_m=-1, is_gap=True),
        straight(90, climb_m=-3, width_m=24),
        CHECKPOINT,
        left(100, radius_m=50),
        straight(70),
        right(80, radius_m=40),
        straight(80),
        CHECKPOINT,
        straight(35, climb_m=4, edge="drop"),
        straight(18, climb_m=-2, is_gap=True),
        straight(110, climb_m=-2, width_m=24),
        right(120, radius_m=45),
        straight(80),
    ),
)

RING = TrackDesign(
    name="ring",
    description="Three laps of a closed circuit.",
    times_ms=medals(41_120),
    laps=3,
    width_m=18,
    pieces=close_lap(
        (
            straight(80),
            left(90, radius_m=40),
            straight(60, climb_m=4),
            CHECKPOINT,
            left(60, radius_m=50),
            straight(40),
            right(50, radius_m=35),
            straight(50, climb_m=-4),
            CHECKPOINT,
            left(170, radius_m=30),
            straight(70),
            left(90, radius_m=45),
            straight(30),
        ),
        first_straight=5,
        second_straight=10,
    ),
)

DESIGNS = (VALLEY, SPEEDWAY, HILLS, KART, RALLY, JUMP, RING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_folder = Path(__file__).resolve().parents[2] / "maps"
    parser.add_argument("--maps-folder", type=Path, default=default_folder)
    maps_folder: Path = parser.parse_args().maps_folder
    for design in DESIGNS:
        laid_out = lay_out(design)
        write_track(design, laid_out, maps_folder / f"{design.name}.toml")
        print(f"{design.name}: {0.5 * (len(laid_out.line_m) - 1):.0f} m")


if __name__ == "__main__":
    main()
