"""Greedy races by a trained driver.

Neither the simulated game nor a greedy driver is random. Race 1 on a map is greedy throughout. Each further one begins
with forced actions, drawn by the run's seed, so the races show how robust the driving is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.agents.devices import pick_device, pick_playing_device
from trackmania_rl.agents.inference import Actor
from trackmania_rl.drivers.driver_file import DriverFileError, is_driver_file
from trackmania_rl.drivers.loading import Learned, fill_network, load_learned
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.games.gymnasium_games import GymnasiumGames
from trackmania_rl.games.protocol import GameIds, Games, Received, rollout
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.games.stepped_envs import History, env_action, state_of_observation
from trackmania_rl.race.actions import (
    ELAPSED_ACTIONS_FLOAT,
    FORWARD,
    PEDALS,
    Action,
    BatchDecision,
    Policy,
    PolicyDecision,
)
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.telemetry.video import VideoFile

FORCED_START_ACTIONS: Final = 10
"""Default number of forced actions: half a second."""
_NO_IMAGE: Final = np.empty((1, 0, 0), dtype=np.uint8)
_OF_RACES: Final = (
    "race_finished",
    "race_time_ms",
    "cutoff_reason",
    "meters",
    "mean_speed_m_s",
    "checkpoint_times_ms",
)
"""Race facts in `MapEvaluation.figures`."""


@dataclass(frozen=True)
class TrainedDriver:
    """Trained network that drives greedily, by `act` or `evaluate_map`."""

    settings: Settings
    spaces: Spaces
    actor: Actor
    frames_total: int  #: actions that the run had collected
    training_s: float
    file: Path  #: weights' origin: a checkpoint's folder or a driver's file

    def act(self, observation: Any) -> Action:
        """Return the greedy action for an observation from the run's kind of environment.

        Args:
            observation: from a user's environment; or from races, the floats (F,), with an image
                `{"image": (S, H, W) uint8, "floats": (F,)}`. Floats are normalized if the first one, the time in the
                mini-race, is not 0.

        Raises:
            UserError: if the observation is from another configuration, or views need earlier ones (`begin_episode`).
        """
        spaces = self.spaces
        if spaces.custom_observation is not None:
            if spaces.views.n_input_floats + spaces.views.rows_back > 0:
                raise UserError(
                    "act: views show the driver earlier states and actions, which one observation does not hold; call "
                    "act = driver.begin_episode() after each reset"
                )
            return self.begin_episode()(observation)
        image: npt.NDArray[np.uint8] | None = None
        floats = observation
        if not isinstance(observation, np.ndarray):
            image = observation["image"]
            floats = observation["floats"]
        has_image = self.settings.game.has_image
        if floats.shape != (spaces.n_floats,) or (image is not None) != has_image:
            raise UserError(
                f"act: the driver takes floats of the shape {(spaces.n_floats,)} and {'an' if has_image else 'no'} "
                "image; make the environment with the configuration of its run"
            )
        if floats[ELAPSED_ACTIONS_FLOAT] != 0:
            mean, std = (np.array(n, dtype=np.float32) for n in (spaces.float_mean, spaces.float_std))
            floats = floats * std + mean
        return self._decide(_NO_IMAGE if image is None else image, floats).action

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[npt.NDArray[Any], None]:
        """Return the greedy action and no state, as Stable-Baselines3 calls its models.

        Args:
            observation: as for `act`, or a batch of such observations along a first axis.
            state: not used.
            episode_start: not used.
            deterministic: must be True, as a driver has no other actions.

        Raises:
            UserError: as for `act`, or if random actions are requested.
        """
        if not deterministic:
            raise UserError("predict: a driver is greedy; call predict(observation, deterministic=True)")
        space = self.spaces.custom_observation
        shape = (self.spaces.n_floats,) if space is None else space.shape
        floats = observation if isinstance(observation, np.ndarray) else observation["floats"]
        if shape is None or floats.ndim == len(shape):
            return np.asarray(self.act(observation)), None
        has_parts = floats is not observation
        each = [{k: part[i] for k, part in observation.items()} if has_parts else row for i, row in enumerate(floats)]
        return np.stack([self.act(one) for one in each]), None

    def begin_episode(self) -> Callable[[Any], Action]:
        """Return `act` for one episode, which keeps the earlier states and actions that views show."""
        episode = History()
        if self.spaces.custom_observation is None:  # race observations include views
            return self.act

        def act(observation: Any) -> Any:
            try:
                frame, floats = state_of_observation(self.spaces, observation)
            except (TypeError, ValueError, LookupError) as error:
                space = self.spaces.custom_observation
                raise UserError(f"act: the driver takes an observation of {space}: {one_line(error)}") from error
            episode.frames.append(frame)
            episode.floats.append(floats)
            decision = self._decide(*episode.newest(self.spaces.views))
            episode.decisions.append(decision)
            return env_action(self.spaces, decision.action)

        return act

    def _decide(self, image: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
        return self.actor.act_batch(image[np.newaxis], floats[np.newaxis]).one(0)


@dataclass(frozen=True)
class MapEvaluation:
    """One or more races on a map.

    Attributes:
        races: without frames; race k with `n_forced_actions[k]` forced actions.
    """

    map_entry: MapEntry
    races: tuple[Race, ...]
    n_forced_actions: tuple[int, ...]

    @property
    def best_race(self) -> Race:
        """The fastest finished race; without a finish the one that came furthest."""
        finished = [race for race in self.races if race.facts.race_finished]
        if finished:
            return min(finished, key=lambda race: race.facts.race_time_ms)
        return max(self.races, key=lambda race: race.facts.meters)

    @property
    def best_race_name(self) -> str:
        """File name for the best race: `{map}_{time}`, or `{map}_unfinished_{meters}m`."""
        best = self.best_race.facts
        result = str(best.race_time_ms) if best.race_finished else f"unfinished_{best.meters:.0f}m"
        return f"{self.map_entry.map_name}_{result}"

    def figures(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON. Times are None without a finish."""
        facts = [race.facts for race in self.races]
        finish_ms = [race.race_time_ms for race in facts if race.race_finished]
        meters = [race.meters for race in facts]
        return {
            "map": self.map_entry.map_name,
            "n_races": len(self.races),
            "finish_rate": len(finish_ms) / len(self.races),
            "best_ms": min(finish_ms, default=None),
            "median_ms": statistics.median(finish_ms) if finish_ms else None,
            "mean_ms": statistics.fmean(finish_ms) if finish_ms else None,
            "best_meters": max(meters),
            "mean_meters": statistics.fmean(meters),
            "races": [
                {"n_forced_actions": n_forced} | {name: getattr(race, name) for name in _OF_RACES}
                for n_forced, race in zip(self.n_forced_actions, facts, strict=True)
            ],
        }


def load_driver(
    source: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | None = None,
    torch_device: str | None = None,
    *,
    code: Collection[str] = (),
) -> TrainedDriver:
    """Load a run's averaged weights (online ones if it has no average), or a driver's file.

    Args:
        source: save/{run_name}, or an untrusted driver's file.
        checkpoint: another checkpoint or driver in this run; None for the newest checkpoint.
        torch_device: as the setting with that name; None for the collectors' device.
        code: modules that a driver's file may import besides the shipped ones. Read them first.

    Raises:
        UserError: if a file or its configuration are missing, damaged or don't fit each other, if a driver's file names
            other code, or if there is no such device.
    """
    path = Path(source)
    if checkpoint is not None and is_driver_file(path):
        raise UserError(f"{path} is a driver, which has no checkpoints: leave --checkpoint out")
    try:
        return _ready(load_learned(path, None if checkpoint is None else Path(checkpoint), code), torch_device)
    except UserError as error:
        if str(path) in str(error) or not is_driver_file(path):
            raise
        raise DriverFileError(f"{path}: {one_line(error)}") from error


def _ready(learned: Learned, torch_device: str | None) -> TrainedDriver:
    settings = learned.settings
    counts = learned.statistics
    seeds = SeedTree(settings.run.seed)
    spaces = make_games_builder(settings).spaces
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
) -> MapEvaluation:
    """Drive 1 or more races on a map greedily in the first game; no other may be in a race.

    Later races begin with forced actions.

    Raises:
        UserError: if the map can't be used.
        GameKeepsFailingError: if the game keeps failing.
    """
    races = []
    n_forced = []
    for forced in forced_starts(driver.settings, driver.spaces, map_entry, n_races, n_forced_actions):
        race = rollout(games, map_entry, functools.partial(greedy_after, forced, driver.actor))
        races.append(race.copy(with_frames=False))
        n_forced.append(len(forced))
    return MapEvaluation(map_entry, tuple(races), tuple(n_forced))


def evaluate_environment(driver: TrainedDriver, n_episodes: int, film: Path | None) -> list[RaceFacts]:
    """Drive a user's environment greedily. The same arguments give the same episodes.

    Args:
        driver: for the environment.
        n_episodes: episode count.
        film: an .mp4 file for the first episode, or None.

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
            with contextlib.ExitStack() as closing:
                listeners = []
                if film is not None and number == 0:
                    video = closing.enter_context(VideoFile(film, builder.frames_per_s))
                    listeners.append(_Filming(video, games, builder.name))
                driven = rollout(games, settings.game.map_cycle[0], make_policy, listeners=listeners)
            episodes.append(driven.facts)
    return episodes


class _Filming:
    """Listener that films each state in the first game."""

    def __init__(self, video: VideoFile, games: Games, name: str) -> None:
        self._video, self._games, self._name = video, games, name

    def begins(self, game: int, map_entry: MapEntry) -> None: ...

    def decided(self, ids: GameIds, decision: BatchDecision) -> None: ...

    def received(self, _: Received) -> None:
        picture = self._games.picture(0, 0, 0)
        if picture is None:
            raise UserError(
                f'{self._name} renders no RGB arrays to film: let it take render_mode="rgb_array", or use --no-video'
            )
        self._video.write(np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2BGRA), dtype=np.uint8))


def forced_starts(
    settings: Settings, spaces: Spaces, map_entry: MapEntry, n_races: int, n_actions: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield the forced actions for each race on a map, (n_actions,) or (n_actions, D); the first race has none.

    They press gas without brake, and are the same for the same race number.
    """
    space = spaces.action
    for number in range(1, n_races + 1):
        size = n_actions if number > 1 else 0
        rng = SeedTree(settings.run.seed).rng(f"evaluate/{map_entry.map_name}/race-{number}")
        if not isinstance(space, Box):
            yield rng.choice(spaces.throttle_actions or spaces.n_values, size=size)
            continue
        drawn = rng.uniform(space.low, space.high, (size, *space.shape)).astype(np.float32)
        if settings.game.actions == "analog":
            drawn[:, PEDALS] = FORWARD[PEDALS]
        yield drawn


def greedy_after(forced: npt.NDArray[Any], actor: Actor) -> Policy:
    """Return a policy for one race that is greedy after the forced actions."""
    waiting = iter(forced if forced.ndim > 1 else forced.tolist())

    def act(frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
        decision = actor.act_batch(frame[np.newaxis], floats[np.newaxis])
        decided = decision.actions[0]
        action = next(waiting, decided)
        return PolicyDecision(action, bool(np.all(action == decided)), decision.q_values[0])

    return act
