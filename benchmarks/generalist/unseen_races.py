"""Races of one driver on generated tracks: driven many at a time, kept line by line, and what lay where they ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.games.race_games import make_race_games
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.simulator.tracks.world import Edge, Surface
from trackmania_rl.telemetry.race_record import cut_off_torn_line
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.evaluation import TrainedDriver

AT_A_TIME: Final = 16
LOOK_BACK_M: Final = 100.0
"""What lay on this way to where a race ended is told: a car that leaves the road ends later."""


@dataclass(frozen=True)
class UnseenRace:
    """The greedy race on one generated track.

    Attributes:
        difficulty: of the track.
        seed: of the track.
        is_finished: whether it reached the finish.
        time_ms: when it ended.
        meters: how far it came.
        reason: why it was cut off; None of a finished race.
        road: what was special about the last metres before the end, such as "grass beside, dirt"; "" of a finished
            race.
    """

    difficulty: float
    seed: int
    is_finished: bool
    time_ms: int
    meters: float
    reason: str | None
    road: str

    @property
    def recipe(self) -> TrackRecipe:
        """What its track is made from."""
        return TrackRecipe(self.seed, self.difficulty)


def kept_races(file: Path, driver: str) -> dict[TrackRecipe, UnseenRace]:
    """Read the races that were driven before; a last line that was cut short, as by a kill, is taken off the file.

    Args:
        file: JSON lines, the first one the driver's.
        driver: check sum of the driver that drives now.

    Raises:
        UserError: if the file is another driver's.
    """
    if not file.is_file():
        return {}
    cut_off_torn_line(file)
    if file.stat().st_size == 0:  # not even the driver's was written
        file.unlink()
        return {}
    first, *lines = file.read_text(encoding="utf-8").splitlines()
    if json.loads(first) != {"driver": driver}:
        raise UserError(f"{file} holds the races of another driver; give another folder (--output)")
    races = [UnseenRace(**json.loads(line)) for line in lines]
    return {race.recipe: race for race in races}


def drive(
    driver: TrainedDriver, recipes: Sequence[TrackRecipe], folder: Path, maps_folder: Path
) -> Iterator[UnseenRace]:
    """Drive tracks that were not driven yet, in any order.

    Args:
        driver: who drives.
        recipes: of the tracks.
        folder: where tracks are written.
        maps_folder: the project's.
    """

    def entries() -> Iterable[MapEntry]:
        for recipe in recipes:  # made as they are driven, which takes some 20 ms each
            name = f"generated:{recipe.difficulty}:{recipe.seed}"
            (entry,) = map_entries(driver.settings, maps_folder, [name], folder / "tracks")
            yield entry

    for entry, stats in first_races(driver, maps_folder, entries(), AT_A_TIME):
        recipe = TrackRecipe.from_name(entry.map_name)
        assert recipe is not None
        road = "" if stats["race_finished"] else road_before(maps_folder / entry.map_path, stats["meters"])
        yield UnseenRace(
            recipe.difficulty,
            recipe.seed,
            stats["race_finished"],
            stats["race_time_ms"],
            stats["meters"],
            stats["cutoff_reason"],
            road,
        )


def first_races(
    driver: TrainedDriver, maps_folder: Path, map_entries: Iterable[MapEntry], n_at_a_time: int
) -> Iterator[tuple[MapEntry, dict[str, Any]]]:
    """Drive simulated maps greedily, one race on each, `n_at_a_time` together in this process.

    Yields:
        Each map with its race's `end_race_stats`, as races end.

    Raises:
        UserError: if a map can't be used.
    """
    games = make_race_games(driver.settings).in_process(n_at_a_time, maps_folder)
    waiting, under_way = iter(map_entries), {}

    def begin(game: int) -> None:
        if (entry := next(waiting, None)) is not None:
            under_way[game] = entry
            games.begin(game, entry)

    for game in range(n_at_a_time):
        begin(game)
    while under_way:
        received = games.recv()
        if len(received.ids) > 0:
            games.send(received.ids, driver.actor.act_batch(received.images, received.floats))
        for game, race in received.ended.items():
            yield under_way.pop(game), race.end_race_stats
            begin(game)


def keep(file: Path, driver: str, race: UnseenRace) -> None:
    """Add a race to the file, which is begun with the driver."""
    lines = [] if file.is_file() else [json.dumps({"driver": driver})]
    lines.append(json.dumps(asdict(race)))
    with file.open("a", encoding="utf-8") as opened:
        opened.write("".join(f"{line}\n" for line in lines))


def road_before(track_file: Path, meters: float) -> str:
    """Say what is special about the road just before a place: edges but walls, surfaces but asphalt, gaps."""
    ribbon = load_track(track_file).ribbon
    is_near = (ribbon.station_m <= meters + 1.0) & (ribbon.station_m >= meters - LOOK_BACK_M)
    edges = {int(edge) for edge in ribbon.edge[is_near]} - {int(Edge.WALL)}
    surfaces = {int(surface) for surface in ribbon.surface[is_near]} - {int(Surface.ASPHALT)}
    words: list[Any] = [{Edge.GRASS: "grass beside", Edge.DROP: "drop beside"}[Edge(edge)] for edge in sorted(edges)]
    words += [Surface(surface).name.lower() for surface in sorted(surfaces)]
    if not np.all(ribbon.has_road[is_near]):
        words.append("gap")
    return ", ".join(words) or "plain road"
