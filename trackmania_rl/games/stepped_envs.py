"""A user's Gymnasium environments, stepped by decisions; episodes are races."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import cv2
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces as gym_spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.race.actions import BatchDecision, PolicyDecision
from trackmania_rl.race.race import POINTS, TERMINATED, Race, RaceFacts, highest_value
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.race.views import Views
from trackmania_rl.settings import GameSettings, MapEntry

AnyEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]

RENDER_MODE: Final = "rgb_array"


class EnvironmentFaultError(UserError):
    """Violation of Gymnasium's API by an environment; a restart is useless."""


@dataclass
class History:
    """States and decisions of an episode so far."""

    entry: MapEntry | None = None
    frames: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    floats: list[npt.NDArray[np.float32]] = field(default_factory=list)
    decisions: list[PolicyDecision] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    infos: list[dict[str, npt.NDArray[np.float32]]] = field(default_factory=list)

    def newest(self, views: Views) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Return the newest state's image (S, H, W) and floats for agents."""
        if not views.inputs and views.rows_back == 0:
            return self.frames[-1], self.floats[-1]
        floats, frames = (np.stack(states[-views.rows_back - 1 :]) for states in (self.floats, self.frames))
        earlier = self.decisions[len(self.decisions) + 1 - len(floats) :]
        actions = np.array([*(decision.action for decision in earlier), views.action_before])
        last = np.array([len(floats) - 1])
        images, seen = views.of_states(frames[None], floats[None], actions[None], np.zeros_like(last), last)
        return images[0], seen[0]


class SteppedEnvs(Games):
    """K environments in this process, stepped in turn. `rng` seeds their first resets; `info` names columns."""

    def __init__(
        self,
        envs: Sequence[Any],
        spaces: Spaces,
        game: GameSettings,
        rng: np.random.Generator,
        info: Sequence[str] = (),
    ) -> None:
        self.n_games = len(envs)
        self.game = game
        self._envs = envs
        self._spaces = spaces
        self._info = info
        self._seeds: list[int | None] = [int(seed) for seed in rng.integers(2**31, size=len(envs))]
        self._episodes: dict[int, History] = {}
        self._ended: dict[int, Race] = {}

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        self._ended.pop(game, None)
        options = {}
        if map_entry.map_path:  # environments without levels may refuse options
            options = map_entry.model_dump(include={"map_name", "map_path", "is_explo"})
        result = self._reset(game, options)
        with self._unpacking("reset()", result, "info"):
            observation, _ = result
            frame, floats = state_of_observation(self._spaces, observation)
        self._episodes[game] = History(map_entry, [frame], [floats])

    @override
    def recv(self) -> Received:
        ids = np.array(self._waiting(), dtype=np.int64)
        episodes = [self._episodes[game] for game in ids.tolist()]
        newest = [episode.newest(self._spaces.views) for episode in episodes]
        images = np.array([image for image, _ in newest], dtype=np.uint8).reshape(len(ids), *self._spaces.image_shape)
        floats = np.array([floats for _, floats in newest], dtype=np.float32)
        is_first = np.array([not episode.decisions for episode in episodes], dtype=np.bool_)
        ended = self._ended
        self._ended = {}
        return Received(ids, images, floats.reshape(len(ids), self._spaces.n_floats), is_first, ended)

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        for row, game in enumerate(ids.tolist()):
            made = self._envs[game].step(env_action(self._spaces, decision.actions[row]))
            self._add(game, decision, row, made)

    @override
    def under_way(self, game: int, states: range) -> Race:
        return self._race(self._episodes[game], states)

    @override
    def motion(self, ids: GameIds) -> Motion:
        raise TypeError("a user's own environment has no cars")

    @override
    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        env = self._envs[game]
        if env.render_mode != RENDER_MODE:
            return None
        try:
            picture = env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{name_of(env)} cannot render: {one_line(error)}") from error
        picture = picture[game] if isinstance(picture, tuple) else picture  # of a vector environment
        return picture if isinstance(picture, np.ndarray) else None

    @override
    def close(self) -> bool:
        for env in dict.fromkeys(self._envs):
            env.close()
        return True

    def _waiting(self) -> list[int]:
        return sorted(self._episodes)

    def _reset(self, game: int, options: dict[str, Any]) -> Any:
        seed = self._seeds[game]
        self._seeds[game] = None
        env = self._envs[game]
        return env.reset(seed=seed, options=options) if options else env.reset(seed=seed)

    def _add(self, game: int, decision: BatchDecision, row: int, made: Any) -> None:
        longest = self.game.cutoff_race_longer_than_ms // self.game.ms_per_action
        longest = min(longest, self.game.cutoff_horizon_actions or longest)
        episode = self._episodes[game]
        of_info = f"info with {', '.join(self._info)}" if self._info else "info"
        with self._unpacking("step()", made, f"reward, terminated, truncated, {of_info}"):
            observation, *numbers, info = made
            frame, floats = state_of_observation(self._spaces, observation)
            reward, terminated, truncated = np.array(numbers, dtype=np.float64).reshape(3).tolist()
            entries = {name: np.asarray(info[name], dtype=np.float32) for name in self._info}
        episode.frames.append(frame)
        episode.floats.append(floats)
        episode.infos.append(entries)
        episode.decisions.append(decision.one(row))
        episode.rewards.append(reward)
        if terminated or truncated or len(episode.decisions) >= longest:
            self._ended[game] = self._ended_race(self._episodes.pop(game), bool(terminated))

    @contextlib.contextmanager
    def _unpacking(self, call: str, result: Any, others: str) -> Iterator[None]:
        """Raise an `EnvironmentFaultError` if a call's result is not a tuple of an observation and `others`."""
        try:
            yield
        except (TypeError, ValueError, LookupError) as error:
            raise EnvironmentFaultError(
                f"games: {name_of(self._envs[0])} breaks Gymnasium's API: {call} returns {one_line(result, 200)} "
                f"and not ({self._spaces.custom_observation}, {others}): {one_line(error)}; mend the environment "
                "(gymnasium.utils.env_checker.check_env tests it)"
            ) from error

    def _race(self, episode: History, states: range, **facts: Any) -> Race:
        """Return some states of an episode and the actions between them."""
        decided = slice(states.start, states.stop - 1)
        decisions = episode.decisions[decided]
        infos = {f"info_{name}": np.array([info[name] for info in episode.infos[decided]]) for name in self._info}
        columns = infos | {
            "frames": np.array(episode.frames[states.start : states.stop], dtype=np.uint8),
            "state_float": np.array(episode.floats[states.start : states.stop], dtype=np.float32),
            "actions": np.array([decision.action for decision in decisions], dtype=self._spaces.action_dtype),
            "action_was_greedy": np.array([decision.is_greedy for decision in decisions], dtype=np.bool_),
            "q_values": np.array([decision.q_values for decision in decisions], dtype=np.float32),
            "action_log_prob": np.array([decision.action_log_prob for decision in decisions], dtype=np.float32),
            "rewards": np.array(episode.rewards[decided], dtype=np.float32),
        }
        assert episode.entry is not None
        return Race(columns, RaceFacts.of_entry(episode.entry, n_actions=len(columns["actions"]), **facts))

    def _ended_race(self, episode: History, terminated: bool) -> Race:
        n_actions = len(episode.decisions)
        return self._race(
            episode,
            range(n_actions + 1),
            race_time_ms=n_actions * self.game.ms_per_action,
            cutoff_reason=TERMINATED if terminated else "truncated",
            terminated=terminated,
            meters=float(sum(episode.rewards)),
            progress_unit=POINTS,
            fraction_greedy=float(np.mean([decision.is_greedy for decision in episode.decisions])),
            first_value=highest_value(episode.decisions[0].q_values),
        )


class SteppedVectorEnv(SteppedEnvs):
    """A `VectorEnv` of K environments. It steps all of them when each episode has its decision.

    Environments without an episode make any action.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        spaces: Spaces,
        game: GameSettings,
        rng: np.random.Generator,
        info: Sequence[str] = (),
    ) -> None:
        super().__init__([envs] * envs.num_envs, spaces, game, rng, info)
        self._vector_env = envs
        self._decided: dict[int, tuple[BatchDecision, int]] = {}  # and its row there
        self._is_over = np.zeros(envs.num_envs, dtype=np.bool_)

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        self._decided.pop(game, None)
        super().begin(game, map_entry, frames)

    @override
    def recv(self) -> Received:
        if self._decided and not self._waiting():
            self._step()
        return super().recv()

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        self._decided |= {game: (decision, row) for row, game in enumerate(ids.tolist())}
        if len(self._decided) == self.n_games:
            self._step()

    def _step(self) -> None:
        if self._is_over.any():  # these have no episode: `begin` resets
            self._masked_reset(self._is_over, {})
        space = self._spaces.action
        idle = env_action(self._spaces, space.low if isinstance(space, gym_spaces.Box) else 0)
        actions = [idle] * self.n_games
        for game, (decision, row) in self._decided.items():
            actions[game] = env_action(self._spaces, decision.actions[row])
        made = self._vector_env.step(np.array(actions))
        observations, rewards, terminated, truncated, infos = made
        self._is_over = np.logical_or(terminated, truncated)
        rows = list(zip(self._each(observations), rewards, terminated, truncated, strict=True))
        decided = self._decided
        self._decided = {}
        for game, (decision, row) in decided.items():
            info = {name: infos[name][game] for name in self._info if name in infos}
            self._add(game, decision, row, (*rows[game], info))

    @override
    def _waiting(self) -> list[int]:
        return sorted(self._episodes.keys() - self._decided.keys())

    @override
    def _reset(self, game: int, options: dict[str, Any]) -> Any:
        if self._seeds[0] is not None:
            self._vector_env.reset(seed=self._seeds[0])
            self._seeds[0] = None
        observations, info = self._masked_reset(np.arange(self.n_games) == game, options)
        return self._each(observations)[game], info

    def _masked_reset(self, mask: npt.NDArray[np.bool_], options: dict[str, Any]) -> tuple[Any, Any]:
        self._is_over = self._is_over & ~mask
        return self._vector_env.reset(options={"reset_mask": mask} | options)

    def _each(self, observations: Any) -> list[Any]:
        return list(iterate(self._vector_env.observation_space, observations))


def name_of(env: AnyEnv) -> str:
    """Return an environment's id, or the name of its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def state_of_observation(spaces: Spaces, observation: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Return the frame (1, H, W) and the floats of a state of a user's own environment.

    The floats are 0 for the time elapsed in the mini-race, and the flattened observation without its image.

    Raises:
        TypeError, ValueError or LookupError: if the observation does not fit its space.
    """
    space, (height, width) = spaces.custom_observation, spaces.image_size_px
    assert space is not None
    frame = np.empty((1, height, width), dtype=np.uint8)
    if height > 0:
        name, of_image, space = split_image(space)
        image = observation if name is None else observation[name]
        observation = {key: observation[key] for key in space} if isinstance(space, gym_spaces.Dict) else np.empty(0)
        if np.shape(image) != of_image.shape:
            raise ValueError(f"its image is {np.shape(image)}")
        image = np.asarray(image, dtype=np.uint8)
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.shape[2:] == (3,) else image.reshape(image.shape[:2])
        frame[0] = cv2.resize(gray, (width, height), interpolation=cv2.INTER_AREA)
    floats = np.append(np.float32(0), np.asarray(gym_spaces.flatten(space, observation), dtype=np.float32))
    if len(floats) != spaces.n_row_floats:
        raise ValueError(f"it has {len(floats) - 1} numbers, not {spaces.n_row_floats - 1}")
    return frame, floats


def split_image(space: gym_spaces.Space[Any]) -> tuple[str | None, gym_spaces.Box, gym_spaces.Space[Any]]:
    """Return the name in a `Dict`, or None, and the space of the only image, and the space of all else.

    Raises:
        LookupError: if there is no image, or more than one.
    """
    entries: dict[Any, Any] = dict(space.items()) if isinstance(space, gym_spaces.Dict) else {None: space}
    images = [name for name, entry in entries.items() if _is_image(entry)]
    if len(images) != 1:
        raise LookupError(f"{space} has {len(images)} images")
    image = entries.pop(images[0])
    return images[0], image, gym_spaces.Dict(entries) if entries else gym_spaces.Box(0.0, 1.0, (0,))


def _is_image(space: gym_spaces.Space[Any]) -> bool:
    if not isinstance(space, gym_spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def env_action(spaces: Spaces, action: Any) -> Any:
    """Convert an agent's action to the environment's."""
    space = spaces.action
    if spaces.choices:
        return np.array(np.unravel_index(int(action), spaces.choices))
    return int(action) + int(space.start) if isinstance(space, gym_spaces.Discrete) else np.asarray(action)
