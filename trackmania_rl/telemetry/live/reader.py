"""Looking at a running training, from a process of one's own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.live.feed_file import EVALUATED_STAGE, FILE_PATTERN, FOLDER, FeedMemory, is_whole
from trackmania_rl.telemetry.live.shown import LiveCar, LiveRace

log = logging.getLogger(__name__)

LOOK_FOR_FILES_EVERY_S: Final = 1.0
WATCHED_FOR_S: Final = 3.0
"""How long `LiveReader.watch` lasts."""
SILENT_AFTER_S: Final = 5.0
"""A collector that has said nothing for so long may be gone: then its process is looked for."""
SAME_BEGIN_S: Final = 30.0
"""The system tells when a process began by a clock that is set now and then."""
READ_TRIES: Final = 3


class LiveReader:
    """Shows the games of a run while it trains; where none does, there is nothing to see.

    The first call of `cars` or `watch` lets collectors begin to tell, and they go on for some seconds after the last
    one. Several readers may look at once, and each may watch a game of its own.

    Args:
        run_folder: `RunFolder.path`.
        clock: seconds.
    """

    def __init__(self, run_folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = run_folder / FOLDER
        self._clock = clock
        self._feeds: dict[Path, _Feed] = {}
        self._unusable: set[Path] = set()
        self._next_look_s = -np.inf
        self._watched: tuple[int, int] | None = None
        self._watched_until_s = -np.inf
        self._race: LiveRace | None = None

    def cars(self) -> list[LiveCar]:
        """Return the newest state of every game of every collector that plays; of a game not seen yet, none."""
        return [car for feed in self._open_feeds() for car in feed.cars()]

    def watch(self, collector: int, game: int) -> None:
        """Ask for races and pictures of one game, and of no other; holds for `WATCHED_FOR_S` seconds."""
        self._watched, self._watched_until_s = (collector, game), self._clock() + WATCHED_FOR_S
        for feed in self._open_feeds():
            if feed.collector == collector:
                feed.ask_for(game)

    def race(self) -> LiveRace | None:
        """Return the watched game's newest complete race; before there is one, the run's newest evaluated race.

        It is the same object until there is another race. It stays when the training ends.
        """
        found: LiveRace | None = None
        feeds = self._open_feeds()
        if (watched := self._is_watched()) is not None:
            own = [feed for feed in feeds if feed.collector == watched[0]]
            found = next((race for feed in own if (race := feed.race_of(watched[1])) is not None), None)
        if found is None:
            evaluated = [race for feed in feeds if (race := feed.evaluated_race()) is not None]
            found = max(evaluated, key=lambda race: race.told_s, default=None)
        self._race = found or self._race
        return self._race

    def picture(self) -> npt.NDArray[np.uint8] | None:
        """Return what the agent sees in the watched game now, (H, W) uint8; None where it sees no image."""
        if (watched := self._is_watched()) is None:
            return None
        own = [feed for feed in self._open_feeds() if feed.collector == watched[0]]
        return next((picture for feed in own if (picture := feed.picture_of(watched[1])) is not None), None)

    def close(self) -> None:
        """Let go of the files."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        self._next_look_s = -np.inf

    def _is_watched(self) -> tuple[int, int] | None:
        return self._watched if self._clock() < self._watched_until_s else None

    def _open_feeds(self) -> list[_Feed]:
        """Return the collectors that play, in their order, having told them that somebody looks."""
        if self._clock() >= self._next_look_s:
            self._next_look_s = self._clock() + LOOK_FOR_FILES_EVERY_S
            self._look_for_files()
        for path in [path for path, feed in self._feeds.items() if feed.is_over() or not path.exists()]:
            self._feeds.pop(path).close()
        for feed in self._feeds.values():
            feed.look()
        return sorted(self._feeds.values(), key=lambda feed: feed.collector)

    def _look_for_files(self) -> None:
        files = set(self._folder.glob(FILE_PATTERN))
        for path in [path for path, feed in self._feeds.items() if not feed.is_alive()]:
            self._feeds.pop(path).close()
        for path in files - self._feeds.keys() - self._unusable:
            try:
                feed = _Feed(FeedMemory(path))
            except FileNotFoundError:  # its collector has just ended
                continue
            except (UserError, OSError) as error:
                log.warning("%s", error)
                self._unusable.add(path)
                continue
            if feed.is_alive():
                self._feeds[path] = feed
            else:
                feed.close()


class _Feed:
    """One collector's file."""

    def __init__(self, memory: FeedMemory) -> None:
        self._memory = memory
        self._cars: list[LiveCar | None] = [None] * memory.layout.n_games
        self._races: dict[int, LiveRace] = {}
        self.collector = int(memory.header["collector"][0])

    def close(self) -> None:
        self._memory.close()

    def is_over(self) -> bool:
        """Whether the collector has said that it ends."""
        return bool(self._memory.header["is_over"][0])

    def is_alive(self) -> bool:
        """Whether the collector still plays: it was heard of lately, or its process is there."""
        if self.is_over():
            return False
        header = self._memory.header[0]
        if abs(time.time() - header["beat_s"]) < SILENT_AFTER_S:
            return True
        try:  # it may wait for the learner, or compile
            began_s = psutil.Process(int(header["pid"])).create_time()
        except psutil.Error:
            return False
        return abs(began_s - float(header["process_began_s"])) < SAME_BEGIN_S

    def look(self) -> None:
        """Tell the collector that somebody looks."""
        self._memory.header["looked"] += 1

    def ask_for(self, game: int) -> None:
        """Tell it that somebody watches a game; `look` comes next."""
        if game < self._memory.layout.n_games:
            self._memory.cars["asked"][game] += 1
            self.look()

    def cars(self) -> list[LiveCar]:
        """The games' newest states; where one could not be read untorn, the one before."""
        cars = self._memory.cars
        for _ in range(READ_TRIES):
            before, told, after = cars["sequence"].copy(), cars.copy(), cars["sequence"].copy()
            torn = False
            for game, record in enumerate(told):
                if is_whole(before[game], after[game]):
                    self._cars[game] = _car(self.collector, game, record)
                elif before[game] > 0:
                    torn = True
            if not torn:
                break
        return [car for car in self._cars if car is not None]

    def race_of(self, game: int) -> LiveRace | None:
        """The newest race of a watched game."""
        return next((self._race(stage) for stage in self._stages_of(game)), None)

    def evaluated_race(self) -> LiveRace | None:
        """The newest evaluated race."""
        return self._race(EVALUATED_STAGE)

    def picture_of(self, game: int) -> npt.NDArray[np.uint8] | None:
        """What the agent sees in a watched game."""
        memory = self._memory
        sequences = memory.stages["picture_sequence"]
        for stage in self._stages_of(game) if memory.layout.height_px > 0 else []:
            for _ in range(READ_TRIES):
                before, picture, after = int(sequences[stage]), memory.pictures[stage].copy(), int(sequences[stage])
                if is_whole(before, after):
                    return picture
        return None

    def _stages_of(self, game: int) -> list[int]:
        games = self._memory.stages["game"]
        return [stage for stage in range(len(games)) if games[stage] == game and stage != EVALUATED_STAGE]

    def _race(self, stage: int) -> LiveRace | None:
        """The race in a place; where it could not be read untorn, the one before."""
        memory, kept = self._memory, self._races.get(stage)
        about = memory.stages[stage]
        if about["number"] == 0:
            return None
        if kept is not None and kept.number == about["number"]:
            return kept
        for _ in range(READ_TRIES):
            before = int(about["sequence"])
            told = about.copy()
            rows = memory.rows[stage, : max(told["n_rows"], 0)].copy()
            frames = memory.frames[stage, : max(told["n_frames"], 0)].copy()
            if is_whole(before, int(about["sequence"])) and len(rows) > 0:
                self._races[stage] = _race(self.collector, told, rows, frames)
                break
        return self._races.get(stage)


def _text(field: bytes) -> str:
    return field.decode(errors="replace")


def _car(collector: int, game: int, record: Any) -> LiveCar:
    q_values = record["q_values"]
    x_m, y_m, z_m = record["position_m"].tolist()
    return LiveCar(
        collector=collector,
        game=game,
        map_name=_text(record["map_name"]),
        track=_text(record["track"]),
        race_time_ms=int(record["race_time_ms"]),
        position=(x_m, y_m, z_m),
        speed_mps=float(record["speed_m_s"]),
        steer=float(record["steer"]),
        gas=bool(record["gas"]),
        brake=bool(record["brake"]),
        gear=int(record["gear"]),
        zone=int(record["zone"]),
        meters_advanced=float(record["meters"]),
        is_explo=bool(record["is_explo"]),
        q_values=q_values.tolist() if np.isfinite(q_values).all() else None,
        age_s=max(time.time() - float(record["told_s"]), 0.0),
    )


def _race(collector: int, told: Any, rows: npt.NDArray[np.void], frames: npt.NDArray[np.uint8]) -> LiveRace:
    return LiveRace(
        collector=collector,
        game=int(told["game"]),
        number=int(told["number"]),
        map_name=_text(told["map_name"]),
        track=_text(told["track"]),
        is_explo=bool(told["is_explo"]),
        race_finished=bool(told["race_finished"]),
        race_time_ms=int(told["race_time_ms"]),
        told_s=float(told["told_s"]),
        map_file=_text(told["map_file"]),
        time_ms=rows["race_time_ms"],
        position=rows["position_m"],
        speed_mps=rows["speed_m_s"],
        steer=rows["steer"],
        gas=rows["gas"].astype(bool),
        brake=rows["brake"].astype(bool),
        was_greedy=rows["is_greedy"].astype(bool),
        gear=rows["gear"],
        zone=rows["zone"],
        meters_advanced=rows["meters"],
        q_values=rows["q_values"],
        frames=frames if len(frames) > 0 else None,
        frame_time_ms=rows["race_time_ms"][:: max(int(told["rows_per_frame"]), 1)][: len(frames)],
    )
