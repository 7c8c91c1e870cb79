"""Greedy races of a trained driver: a run's checkpoint or a driver's file is loaded, drives maps, and is summed up.

A greedy race is a function of its start: the simulated game and the network's values (see `Inferer`) know no chance, so
the same race twice gives the same time. Several races on one map therefore differ in how they begin: race 1 is greedy
throughout, and each further one begins with a few forced actions, drawn from the run's seed tree among those that
accelerate. What it does to the car is small; what the driver then makes of it tells how sturdy its driving is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space

from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.agents.devices import pick_device, pick_playing_device
from trackmania_rl.agents.inference import Actor
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.games.gymnasium_games import GymnasiumGames, own_action, own_floats
from trackmania_rl.games.protocol import Games, rollout
from trackmania_rl.games.race_games import make_games_builder, make_race_games
from trackmania_rl.race.actions import FORWARD, PEDALS
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT, Policy, PolicyDecision
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.driver_file import is_driver_file
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.telemetry.video import VideoFile
from trackmania_rl.training.driver_loading import Learned, fill_network, naming_file, read_file, read_run

FORCED_START_ACTIONS: Final = 10
"""How many actions of race 2 and later ones are forced by default: half a second."""
_NO_IMAGE: Final = np.empty((1, 0, 0), dtype=np.uint8)


@dataclass(frozen=True)
class TrainedDriver:
    """What a run has learned, ready to drive greedily: `act` decides, `evaluate_map` drives whole maps.

    Attributes:
        settings: the run's own.
        spaces: of its games.
        actor: decides with the run's evaluation network.
        frames_total: actions that the run had collected when the checkpoint was written.
        training_s: seconds that it had trained by then.
        file: where its weights were read from: a checkpoint's folder or a driver's file.
    """

    settings: Settings
    spaces: Spaces
    actor: Actor
    frames_total: int
    training_s: float
    file: Path

    def act(
        self, observation: npt.NDArray[np.float32] | Mapping[str, npt.NDArray[Any]] | Any
    ) -> int | npt.NDArray[np.float32]:
        """Return the greedy action in a state, as an environment of the run's configuration shows it.

        Args:
            observation: of a user's own environment, its observation. Of races, the floats (F,), or with an image
                `{"image": (S, H, W) uint8, "floats": (F,)}`. The floats may be normalized or not. The first one, the
                time in the mini-race, tells which: as it is, it is 0 in every race. (Where its configured mean is 0 as
                well, they must not be normalized.) Undoing the normalization rounds the floats, which may turn the
                choice between two actions of equal worth.

        Raises:
            UserError: if it is an observation of another configuration.
        """
        if self.spaces.own_observation is not None:
            return self._act_in(self.spaces.own_observation, observation)
        image: npt.NDArray[np.uint8] | None = None
        if isinstance(observation, np.ndarray):
            floats = observation
        else:
            image, floats = observation["image"], observation["floats"]
        has_image, shape = self.settings.game.has_image, (self.spaces.n_floats,)
        if floats.shape != shape or (image is not None) != has_image:
            raise UserError(
                f"act: the driver takes floats of the shape {shape} and {'an' if has_image else 'no'} image; make the "
                "environment with the configuration of its run"
            )
        if floats[ELAPSED_ACTIONS_FLOAT] != 0:
            floats = floats * self._float_std + self._float_mean
        frame = _NO_IMAGE if image is None else image
        action = self.actor.act_batch(frame[np.newaxis], floats[np.newaxis]).actions[0]
        return int(action) if action.ndim == 0 else action

    def _act_in(self, space: Space[Any], observation: Any) -> int | npt.NDArray[np.float32]:
        """Act in an own environment."""
        if self.spaces.views.n_input_floats > 0:
            raise UserError(
                "act: views show the driver earlier states and actions, which one observation does not hold; "
                "scripts/evaluate.py drives it"
            )
        try:
            floats = own_floats(space, observation)
        except (TypeError, ValueError, LookupError) as error:
            raise UserError(f"act: the driver takes an observation of {space}: {one_line(error)}") from error
        if len(floats) != self.spaces.n_floats:
            raise UserError(f"act: the driver takes an observation of {space}")
        action = self.actor.act_batch(_NO_IMAGE[np.newaxis], floats[np.newaxis]).actions[0]
        return own_action(self.spaces, action)  # type: ignore[no-any-return]

    @functools.cached_property
    def _float_mean(self) -> npt.NDArray[np.float32]:
        return np.array(self.spaces.float_mean, dtype=np.float32)

    @functools.cached_property
    def _float_std(self) -> npt.NDArray[np.float32]:
        return np.array(self.spaces.float_std, dtype=np.float32)


@dataclass(frozen=True)
class EvaluatedRace:
    """One race.

    Attributes:
        n_forced_actions: how many actions at its start were not the driver's own.
        race_finished: whether the finish was reached.
        race_time_ms: the finish time, or the time driven until the race was cut off.
        cutoff_reason: why an unfinished race ended; None for a finished one.
        meters: distance reached along the reference line.
        mean_speed_m_s: over the race.
        checkpoint_times_ms: of the checkpoints passed, the finish included.
        inputs: the race as an input script.
        q_values: (T, A) float32, the values that its actions were chosen by; (T, 1) of analog ones.
    """

    n_forced_actions: int
    race_finished: bool
    race_time_ms: int
    cutoff_reason: str | None
    meters: float
    mean_speed_m_s: float
    checkpoint_times_ms: tuple[int, ...]
    inputs: str
    q_values: npt.NDArray[np.float32] = field(compare=False, repr=False)


@dataclass(frozen=True)
class EvaluatedEpisode:
    """One episode of a user's own environment.

    Attributes:
        episode_return: sum of its rewards, not discounted.
        length: actions.
        end: "terminated" or "truncated".
    """

    episode_return: float
    length: int
    end: str


@dataclass(frozen=True)
class MapEvaluation:
    """The races on one map.

    Attributes:
        map_entry: the map.
        races: at least one.
    """

    map_entry: MapEntry
    races: tuple[EvaluatedRace, ...]

    @property
    def finish_times_ms(self) -> tuple[int, ...]:
        """Of the finished races."""
        return tuple(race.race_time_ms for race in self.races if race.race_finished)

    @property
    def best_ms(self) -> int | None:
        """Fastest finish time; None without a finish."""
        return min(self.finish_times_ms, default=None)

    @property
    def finish_rate(self) -> float:
        """Share of the races that were finished, 0 to 1."""
        return len(self.finish_times_ms) / len(self.races)

    @property
    def median_ms(self) -> float | None:
        """Median finish time; None without a finish."""
        return statistics.median(self.finish_times_ms) if self.finish_times_ms else None

    @property
    def mean_ms(self) -> float | None:
        """Mean finish time; None without a finish."""
        return statistics.fmean(self.finish_times_ms) if self.finish_times_ms else None

    @property
    def best_race(self) -> EvaluatedRace:
        """The fastest finished race; without a finish the one that came furthest."""
        finished = [race for race in self.races if race.race_finished]
        if finished:
            return min(finished, key=lambda race: race.race_time_ms)
        return max(self.races, key=lambda race: race.meters)

    @property
    def best_race_name(self) -> str:
        """The best race as a file's name without ending: `{map}_{time}` as in `best_runs/`, or how far it came."""
        best = self.best_race
        result = str(best.race_time_ms) if best.race_finished else f"unfinished_{best.meters:.0f}m"
        return f"{self.map_entry.map_name}_{result}"

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON; times in ms, null where there is none."""
        return {
            "map": self.map_entry.map_name,
            "n_races": len(self.races),
            "finish_rate": self.finish_rate,
            "best_ms": min(self.finish_times_ms, default=None),
            "median_ms": self.median_ms,
            "mean_ms": self.mean_ms,
            "best_meters": max(race.meters for race in self.races),
            "mean_meters": statistics.fmean(race.meters for race in self.races),
            "races": [
                {name: value for name, value in vars(race).items() if name not in ("inputs", "q_values")}
                for race in self.races
            ],
        }


def load_driver(
    source: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | None = None,
    torch_device: str | None = None,
    *,
    code: Collection[str] = (),
) -> TrainedDriver:
    """Load what a run has learned (averaged weights, or the online ones if it keeps no average), or a driver's file.

    Args:
        source: save/{run_name}; or a driver's file, which may be a stranger's.
        checkpoint: another checkpoint of this run, or one of its drivers; None for its newest checkpoint.
        torch_device: where to compute, as the setting of that name; None: where collectors decide.
        code: modules that a driver's file may import beside what ships. Read them first.

    Raises:
        UserError: if a file or its configuration are missing, damaged or don't fit each other, if a driver's file names
            other code, or if there is no such device.
    """
    path = Path(source)
    if not is_driver_file(path):
        return _ready(read_run(path, None if checkpoint is None else Path(checkpoint)), torch_device)
    if checkpoint is not None:
        raise UserError(f"{path} is a driver, which has no checkpoints: leave --checkpoint out")
    with naming_file(path):
        return _ready(read_file(path, code), torch_device)


def _ready(learned: Learned, torch_device: str | None) -> TrainedDriver:
    """Make a driver ready to drive."""
    settings, counts = learned.settings, learned.statistics
    seeds, spaces = SeedTree(settings.run.seed), make_games_builder(settings).spaces
    device = pick_playing_device(settings, spaces) if torch_device is None else pick_device(torch_device)
    builder = make_agent_builder(settings, spaces, seeds)
    actor = builder.make_actor(fill_network(learned, builder), device, seeds.rng("evaluate/inferer"))
    return TrainedDriver(settings, spaces, actor, counts["frames_total"], counts["training_s"], learned.file)


def evaluate_map(
    driver: TrainedDriver,
    games: Games,
    map_entry: MapEntry,
    n_races: int,
    n_forced_actions: int = FORCED_START_ACTIONS,
    on_race: Callable[[EvaluatedRace], None] = lambda _: None,
) -> MapEvaluation:
    """Drive a map greedily.

    Args:
        driver: who drives.
        games: the first of them is driven; no race is under way in any.
        map_entry: the map.
        n_races: 1 or more; see the head of this module for how they differ.
        n_forced_actions: how many actions are forced at the start of race 2 and later ones.
        on_race: sees each race when it is over.

    Raises:
        UserError: if the map can't be used.
        GameKeepsFailingError: if the game can't be kept alive.
    """
    races = []
    for number in range(1, n_races + 1):
        n_forced = n_forced_actions if number > 1 else 0
        forced = forced_actions(driver.settings, driver.spaces, map_entry, number, n_forced)
        make_policy = functools.partial(greedy_after, forced, driver.actor)
        driven = rollout(games, map_entry, make_policy)
        stats = driven.end_race_stats
        race = EvaluatedRace(
            n_forced_actions=len(forced),
            race_finished=stats["race_finished"],
            race_time_ms=stats["race_time_ms"],
            cutoff_reason=stats["cutoff_reason"],
            meters=stats["meters"],
            mean_speed_m_s=stats["mean_speed_m_s"],
            checkpoint_times_ms=tuple(stats["checkpoint_times_ms"]),
            inputs=stats["inputs"],
            q_values=driven.rollout_results["q_values"].copy(),
        )
        races.append(race)
        on_race(race)
    return MapEvaluation(map_entry, tuple(races))


def evaluate_environment(driver: TrainedDriver, n_episodes: int, film: Path | None) -> list[EvaluatedEpisode]:
    """Drive a user's own environment greedily; the same arguments give the same episodes.

    Args:
        driver: who drives.
        n_episodes: 1 or more.
        film: an .mp4 file for the first episode; None to film nothing.

    Raises:
        UserError: if the environment breaks Gymnasium's API, or renders no RGB arrays for the film.
    """
    settings = driver.settings
    alone = settings.game.model_copy(update={"games_per_collector": 1})
    sync = settings.sync.model_copy(update={"sampling": "asynchronous"})
    builder = make_games_builder(settings.model_copy(update={"game": alone, "sync": sync}))
    assert isinstance(builder, GymnasiumGames)
    builder.render = film is not None
    make_policy = functools.partial(greedy_after, np.empty(0), driver.actor)
    episodes = []
    with contextlib.closing(builder.make_games(0, Path(), SeedTree(settings.run.seed).rng("evaluate/games"))) as games:
        for number in range(n_episodes):
            if film is None or number > 0:
                driven = rollout(games, settings.game.map_cycle[0], make_policy)
            else:
                with VideoFile(film, builder.frames_per_s) as video:
                    show = functools.partial(_film_state, video, games, builder.name)
                    driven = rollout(games, settings.game.map_cycle[0], functools.partial(_shown, make_policy, show))
                    show()
            stats, n_actions = driven.end_race_stats, len(driven.rollout_results["actions"])
            episodes.append(EvaluatedEpisode(stats["meters"], n_actions, stats["cutoff_reason"]))
    return episodes


def _shown(make_policy: Callable[[], Policy], show: Callable[[], object]) -> Policy:
    """Return a policy that shows each state before it decides."""
    policy = make_policy()

    def act(frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
        show()
        return policy(frame, floats)

    return act


def _film_state(video: VideoFile, games: Games, name: str) -> None:
    picture = games.picture(0, 0, 0)
    if picture is None:
        raise UserError(f'{name} renders no RGB arrays to film: let it take render_mode="rgb_array", or use --no-video')
    video.write(np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2BGRA), dtype=np.uint8))


def first_races(
    driver: TrainedDriver, maps_folder: Path, map_entries: Iterable[MapEntry], n_at_a_time: int
) -> Iterator[tuple[MapEntry, dict[str, Any]]]:
    """Drive simulated maps greedily, one race on each, many at a time in this process.

    Args:
        driver: who drives.
        maps_folder: where relative paths begin.
        map_entries: the maps.
        n_at_a_time: how many are driven together.

    Yields:
        Each map with its race's `end_race_stats`, as races end.

    Raises:
        UserError: if a map can't be used.
    """
    settings = driver.settings
    games = make_race_games(settings).in_process(n_at_a_time, maps_folder)
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


def forced_actions(
    settings: Settings, spaces: Spaces, map_entry: MapEntry, number: int, n_actions: int
) -> npt.NDArray[Any]:
    """Draw a race's first actions, (n_actions,) or (n_actions, D): gas without brake, the same for the same number."""
    rng = SeedTree(settings.run.seed).rng(f"evaluate/{map_entry.map_name}/race-{number}")
    space = spaces.action
    if isinstance(space, Box):
        drawn = rng.uniform(space.low, space.high, (n_actions, *space.shape)).astype(np.float32)
        if settings.game.actions == "analog":
            drawn[:, PEDALS] = FORWARD[PEDALS]
        return drawn
    return rng.choice(spaces.throttle_actions or spaces.n_values, size=n_actions)


def greedy_after(forced: npt.NDArray[Any], actor: Actor) -> Policy:
    """Return the greedy policy of one race, but for the race's first actions."""
    waiting = iter(forced if forced.ndim > 1 else forced.tolist())

    def act(frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
        decision = actor.act_batch(frame[np.newaxis], floats[np.newaxis])
        own = decision.actions[0]
        action = next(waiting, own)
        return PolicyDecision(action, bool(np.all(action == own)), decision.q_values[0])

    return act
