"""Mirror of a collector's games for the live page: a file in shared memory, written while a reader asks for it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil

from trackmania_rl.games.protocol import GameIds, Games, Motion, Received
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.results import EndedRace
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import GameSettings, MapEntry
from trackmania_rl.telemetry.live.feed_file import (
    EVALUATED_STAGE,
    FILE_NAME,
    MOST_FRAME_BYTES,
    MOST_ROWS,
    N_STAGES,
    FeedLayout,
    FeedMemory,
    create_feed,
    writing,
)
from trackmania_rl.track.game_map import map_file

log = logging.getLogger(__name__)

CARS_EVERY_S: Final = 0.1
RACES_EVERY_S: Final = 1.0
PICTURES_EVERY_S: Final = 0.1
BEAT_EVERY_S: Final = 1.0
SHOWN_FOR_S: Final = 5.0
"""How long games are shown after a reader said that it looks."""

SIMULATED: Final = "simulated"
"""The game that whoever looks can drive and draw again."""

_GEAR: Final = CAR_COLUMNS.index("gear")


@dataclass
class _Watched:
    """A game that somebody watches.

    Attributes:
        stage: its place in the file.
        until_s: when it is watched no more, if nobody asks again.
        next_race_s: when its next race is told.
        next_picture_s: when its next picture is told.
    """

    stage: int
    until_s: float = -math.inf
    next_race_s: float = -math.inf
    next_picture_s: float = -math.inf


class LiveMirror:
    """Listener that writes the state of a collector's games to a file.

    Args:
        games: which are played.
        feed: the file, as `create_feed` made it.
        maps_folder: where the maps lie.
        clock: seconds.
    """

    def __init__(
        self, games: Games, feed: FeedMemory, maps_folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._games = games
        self._feed = feed
        self._maps_folder = maps_folder
        self._clock = clock
        self._entries: list[MapEntry | None] = [None] * games.n_games
        self._received: Received | None = None
        self._tells_motion = True
        self._looked = int(feed.header["looked"][0])
        self._asked = feed.cars["asked"].copy()
        self._shown_until_s = -math.inf
        self._next_beat_s = -math.inf
        self._next_cars_s = np.full(games.n_games, -math.inf)
        self._start_m = np.full(games.n_games, math.nan)  # where the race began, along the line
        self._watched: dict[int, _Watched] = {}
        self._next_evaluated_s = -math.inf
        self._n_told = 0

    def begins(self, game: int, map_entry: MapEntry) -> None:
        """Note the map of a game's next race."""
        self._entries[game] = map_entry
        self._start_m[game] = math.nan

    def received(self, received: Received) -> None:
        """Write the races that have ended."""
        now_s = self._clock()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + BEAT_EVERY_S
            self._feed.header["beat_s"] = time.time()
        self._received = None
        if self._is_looked_at(now_s):
            self._received = received
            for game, race in received.ended.items():
                self._tell_race(game, race, now_s)

    def decided(self, ids: GameIds, decision: BatchDecision) -> None:
        """Write the states in which games wait, with the decisions made there."""
        if self._received is None or not self._tells_motion:
            return
        now_s = self._clock()
        due = np.flatnonzero(self._next_cars_s[ids] <= now_s)
        if len(due) > 0:
            self._next_cars_s[ids[due]] = now_s + CARS_EVERY_S
            self._tell_cars(ids[due], decision, due)
        if self._watched and self._feed.layout.height_px > 0:
            self._tell_pictures(ids, self._received, now_s)

    def close(self) -> None:
        """Mark the file as over and remove it."""
        self._feed.header["is_over"] = 1
        self._feed.close()
        with contextlib.suppress(OSError):  # on Windows, while a reader has it open
            self._feed.path.unlink()

    def _is_looked_at(self, now_s: float) -> bool:
        """Whether somebody has looked lately, and at which games in particular."""
        looked = int(self._feed.header["looked"][0])
        if looked != self._looked:
            self._looked = looked
            self._shown_until_s = now_s + SHOWN_FOR_S
            self._note_who_is_watched(now_s)
        return now_s < self._shown_until_s

    def _note_who_is_watched(self, now_s: float) -> None:
        """Give a place to each game that was asked for; the one asked for longest ago gives way."""
        asked = self._feed.cars["asked"].copy()
        for game in np.flatnonzero(asked != self._asked).tolist():
            watched = self._watched.pop(game, None)
            if watched is None or watched.until_s < now_s:  # what was told when it was watched before is old
                watched = _Watched(self._free_stage() if watched is None else watched.stage)
                self._clear(watched.stage, game)
            watched.until_s = now_s + SHOWN_FOR_S
            self._watched[game] = watched
        self._asked = asked

    def _free_stage(self) -> int:
        """Return a place that no game has, or take that of the game asked for longest ago."""
        taken = {watched.stage for watched in self._watched.values()} | {EVALUATED_STAGE}
        free = [stage for stage in range(N_STAGES) if stage not in taken]
        if free:
            return free[0]
        return self._watched.pop(min(self._watched, key=lambda game: self._watched[game].until_s)).stage

    def _clear(self, stage: int, game: int) -> None:
        stages = self._feed.stages
        with writing(stages["sequence"], stage), writing(stages["picture_sequence"], stage):
            stages["game"][stage] = game
            stages["n_rows"][stage] = 0
            stages["number"][stage] = 0
            self._feed.pictures[stage] = 0

    def _tell_cars(self, ids: GameIds, decision: BatchDecision, rows: npt.NDArray[np.int64]) -> None:
        """Write the states in which some games wait, and what was decided in them: `rows` of the decision."""
        try:
            motion = self._games.motion(ids)
        except TypeError:  # somebody's own environment, in which no car moves
            self._tells_motion = False
            return
        for place in np.flatnonzero(np.isnan(self._start_m[ids])).tolist():
            self._start_m[ids[place]] = self._begins_at_m(int(ids[place]), motion, place)
        cars = self._feed.cars
        with writing(cars["sequence"], ids):
            cars["told_s"][ids] = time.time()
            for game in ids.tolist():
                _write_where(cars[game], self._entries[game])
            cars["race_time_ms"][ids] = motion.race_time_ms
            cars["position_m"][ids] = motion.position_m
            cars["speed_m_s"][ids] = motion.speed_m_s
            cars["meters"][ids] = motion.meters - self._start_m[ids]
            cars["gear"][ids] = motion.car[:, _GEAR]
            cars["zone"][ids] = motion.zone_idx
            actions, is_greedy, q_values = decision.actions[rows], decision.is_greedy[rows], decision.q_values[rows]
            for name, column in _decision_columns(self._games.game, actions, is_greedy, q_values).items():
                cars[name][ids] = column

    def _begins_at_m(self, game: int, motion: Motion, place: int) -> float:
        """Metres along the line in a race's first state, which may be the one in which the game waits now."""
        if motion.race_time_ms[place] == 0:
            return float(motion.meters[place])
        return float(self._games.under_way(game, range(1))["meters_advanced_along_centerline"][0])

    def _tell_pictures(self, ids: GameIds, received: Received, now_s: float) -> None:
        """Write what the agent sees in the watched games."""
        for game in ids.tolist():
            watched = self._watched.get(game)
            if watched is None or now_s < watched.next_picture_s or now_s > watched.until_s:
                continue
            watched.next_picture_s = now_s + PICTURES_EVERY_S
            newest = received.images[np.flatnonzero(received.ids == game)[0], -1]
            with writing(self._feed.stages["picture_sequence"], watched.stage):
                self._feed.pictures[watched.stage] = newest

    def _tell_race(self, game: int, race: EndedRace, now_s: float) -> None:
        """Write a race that has ended, where it is wanted."""
        entry, watched = self._entries[game], self._watched.get(game)
        if entry is None or race.end is None:
            return
        if not entry.is_explo and now_s >= self._next_evaluated_s:
            self._next_evaluated_s = now_s + RACES_EVERY_S
            self._write_race(EVALUATED_STAGE, game, entry, race)
        if watched is not None and watched.next_race_s <= now_s <= watched.until_s:
            watched.next_race_s = now_s + RACES_EVERY_S
            self._write_race(watched.stage, game, entry, race)

    def _write_race(self, stage: int, game: int, entry: MapEntry, race: EndedRace) -> None:
        end, told = race.end, race.rollout_results
        assert end is not None
        stages, layout = self._feed.stages, self._feed.layout
        n_rows = min(len(told["actions"]) + 1, layout.n_rows)
        rows_per_frame = -(-n_rows // layout.n_frames) if layout.n_frames > 0 else 1
        self._n_told += 1
        with writing(stages["sequence"], stage):
            _write_where(stages[stage], entry)
            about = {
                "number": self._n_told,
                "told_s": time.time(),
                "game": game,
                "n_rows": n_rows,
                "n_frames": -(-n_rows // rows_per_frame) if layout.n_frames > 0 else 0,
                "rows_per_frame": rows_per_frame,
                "race_time_ms": end.race_time_ms,
                "race_finished": end.is_finished,
                "map_file": os.fsencode(map_file(entry, self._maps_folder).resolve()),
            }
            for name, value in about.items():
                stages[name][stage] = value
            rows = self._feed.rows[stage, :n_rows]
            for name, column in _columns_of_race(race, self._games.game).items():
                rows[name] = column[:n_rows]
            if layout.n_frames > 0:
                frames = told["frames"][:n_rows:rows_per_frame, 0]
                self._feed.frames[stage, : len(frames)] = frames


def make_mirror(
    games: Games,
    spaces: Spaces,
    settings: GameSettings,
    folder: Path,
    collector: int,
    maps_folder: Path,
    clock: Callable[[], float] = time.monotonic,
) -> LiveMirror | None:
    """Make the mirror of a collector's games; None, with a warning, if its file can't be made.

    Args:
        games: the collector's.
        spaces: theirs.
        settings: theirs.
        folder: for the file.
        collector: its number.
        maps_folder: where the maps lie.
        clock: seconds.
    """
    height_px, width_px = spaces.image_size_px
    # The simulated game is driven again by whoever looks, and seen in colour; frames of the real game are all there is.
    tells_frames = spaces.has_image and settings.game != SIMULATED
    n_rows = min(settings.cutoff_race_longer_than_ms // settings.ms_per_action + 2, MOST_ROWS)
    n_frames = min(MOST_FRAME_BYTES // (height_px * width_px), n_rows) if tells_frames else 0
    layout = FeedLayout(games.n_games, spaces.n_values, n_rows, n_frames, height_px, width_px)
    process = psutil.Process()
    try:
        for old in folder.glob(FILE_NAME.format(collector=collector, pid="*")):
            with contextlib.suppress(OSError):  # on Windows, where somebody looks at it
                old.unlink()
        feed = create_feed(
            folder / FILE_NAME.format(collector=collector, pid=process.pid),
            layout,
            collector=collector,
            pid=process.pid,
            process_began_s=process.create_time(),
            beat_s=time.time(),
        )
    except OSError as error:
        log.warning("collector %d: nobody can watch its races: %s: %s", collector, folder, error.strerror)
        return None
    return LiveMirror(games, feed, maps_folder, clock)


def _write_where(record: np.void, entry: MapEntry | None) -> None:
    if entry is not None:
        record["map_name"] = entry.map_name.encode(errors="replace")
        record["track"] = Path(entry.map_path.replace("\\", "/")).stem.encode(errors="replace")
        record["is_explo"] = entry.is_explo


def _decision_columns(
    settings: GameSettings, actions: npt.NDArray[Any], is_greedy: npt.NDArray[np.bool_], q_values: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    """Tell n decisions in the columns of `state_dtype`."""
    gas, brake, steer = actions_of_game(settings).controls(actions).T
    return {"steer": steer, "gas": gas, "brake": brake, "is_greedy": is_greedy, "q_values": q_values}


def _columns_of_race(race: EndedRace, settings: GameSettings) -> dict[str, npt.NDArray[Any]]:
    """Tell a race of T actions in the columns of `state_dtype`, (T + 1, ...); the last decision stays to its end."""
    end, told = race.end, race.rollout_results
    assert end is not None
    n_actions = len(told["actions"])
    decided = np.append(np.arange(n_actions), n_actions - 1)
    time_ms = np.append(np.arange(n_actions) * settings.ms_per_action, end.race_time_ms)
    position_m = np.concatenate((told["position_m"], end.last.position_m[None]))
    seconds = np.maximum(np.diff(time_ms), 1) / 1000
    speed_m_s = np.linalg.norm(np.diff(position_m, axis=0), axis=1) / seconds
    meters = told["meters_advanced_along_centerline"]
    return {
        "race_time_ms": time_ms,
        "position_m": position_m,
        "speed_m_s": np.append(speed_m_s, end.last.speed_m_s),
        "gear": told["car_gear_and_wheels"][:, _GEAR],
        "zone": told["current_zone_idx"],
        "meters": meters - meters[0],
        **_decision_columns(
            settings, told["actions"][decided], told["action_was_greedy"][decided], told["q_values"][decided]
        ),
    }
