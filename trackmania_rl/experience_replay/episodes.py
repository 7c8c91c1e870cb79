"""Races as data set episodes, and the conversions in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, Space

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES
from trackmania_rl.race.actions import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.race.rewards import Rewarded, as_stored, is_finite_as_stored
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings
from trackmania_rl.settings.game import RACES

Array = npt.NDArray[Any]
IMAGE: Final = "image"
FLOATS: Final = "floats"
METERS: Final = "meters_advanced_along_centerline"
RACE_TIME: Final = "race_time_ms"
GREEDY: Final = "action_was_greedy"
POTENTIALS: Final = "potentials"
OF_ACTIONS: Final = (GREEDY,)
"""Race columns without a row for the last state; episodes have a row of zeros there."""
OF_STATES: Final = (METERS, "current_zone_idx", "car_gear_and_wheels", "position_m")
"""Race columns from which the reward may be computed, see `Race`."""
COLUMNS: Final = (*OF_STATES, *OF_ACTIONS, RACE_TIME, POTENTIALS)
"""Used episode infos; there may be others."""


@dataclass(frozen=True)
class DataSetForm:
    """Episode form that fits a run, from the games' spaces."""

    spaces: Spaces
    has_elapsed: bool = True  # a state's floats begin with the time in the mini-race; not in custom environments

    @classmethod
    def of_run(cls, settings: Settings, spaces: Spaces) -> DataSetForm:
        """Return the form for a run."""
        return cls(spaces, has_elapsed=settings.game.games == RACES)

    @property
    def n_floats(self) -> int:
        """Floats per state in an episode."""
        return self.spaces.n_floats - (not self.has_elapsed)

    @property
    def first_action(self) -> int:
        """First discrete action's number, which may differ from 0; 0 for continuous ones."""
        return int(self.spaces.action.start) if isinstance(self.spaces.action, Discrete) else 0

    @property
    def observation_space(self) -> Space[Any]:
        """Space for the floats (F,), not normalized; with an image a dictionary, as in `TrackMania/Race-v0`."""
        floats = Box(-np.inf, np.inf, (self.n_floats,), np.float32)
        if not self.spaces.has_image:
            return floats
        return Dict({IMAGE: Box(0, 255, self.spaces.image_shape, np.uint8), FLOATS: floats})


@dataclass(frozen=True)
class Episode:
    """A race with T actions in a data set."""

    observations: (
        Array | dict[str, Array]
    )  # (T + 1, F) float32, not normalized; or `floats` and `image` (T + 1, S, H, W)
    actions: Array  # (T,) int64, or (T, D) float32
    rewards: npt.NDArray[np.float32]  # (T,), without shaping potentials
    is_finished: bool  # whether the last state is terminal; else the race was cut off
    infos: Mapping[str, Array] = field(default_factory=dict)  # further columns, T + 1 rows
    about: Mapping[str, Any] = field(default_factory=dict)  # plain values such as `map` and `source`

    @property
    def floats(self) -> Array:
        """(T + 1, F)."""
        return self.observations[FLOATS] if isinstance(self.observations, dict) else self.observations


def episode_of_race(race: Race, form: DataSetForm, ms_per_action: int, about: Mapping[str, Any]) -> Episode:
    """Make an episode from a rewarded race; copies."""
    assert race.rewards is not None, "the race is not rewarded"
    columns = race.columns
    infos = {name: np.array(columns[name]) for name in OF_STATES}
    infos |= {name: _with_last(np.asarray(columns[name])) for name in OF_ACTIONS}
    infos[RACE_TIME] = np.append(np.arange(race.n_actions) * ms_per_action, race.facts.race_time_ms)
    floats = np.array(columns["state_float"], dtype=np.float32)
    return Episode(
        observations=_observations(np.asarray(columns["frames"]), floats, np.asarray(columns["actions"]), form),
        actions=_numbered(columns["actions"], form),
        rewards=race.rewards,
        is_finished=race.facts.race_finished,
        infos=infos,
        about=about,
    )


def episodes_of_memory(columns: Mapping[str, Array], form: DataSetForm, source: str) -> Iterator[Episode]:
    """Yield the races in a replay memory's rows (`RowColumns`). The oldest one may have lost the beginning."""
    n_steps = columns["n_steps"].astype(np.int64)
    last_rows = np.flatnonzero(n_steps == 0)
    first_rows = np.append(0, last_rows + 1)[:-1]
    for first, last in zip(first_rows.tolist(), last_rows.tolist(), strict=True):
        if last == first:  # only the oldest race's end is left
            continue
        of_states = slice(first, last + 1)
        of_actions = slice(first, last)
        was_greedy = np.ones(last - first + 1, dtype=np.bool_)
        # A transition with one action before the race's end was cut by an exploratory action.
        was_greedy[1:-1] = n_steps[first : last - 1] > 1 if n_steps.max() > 1 else True
        yield Episode(
            observations=_observations(
                columns["frames"][of_states], columns["state_floats"][of_states], columns["actions"][of_states], form
            ),
            actions=_numbered(columns["actions"][of_actions], form),
            rewards=columns["rewards"][of_actions],
            is_finished=bool(columns["steps_to_finish"][first] != NEVER_FINISHES),
            infos={GREEDY: was_greedy, POTENTIALS: columns["potentials"][of_states]},
            about={"source": source},
        )


def race_of_episode(episode: Episode, form: DataSetForm) -> Race:
    """Return an episode's race, as far as there are columns.

    Raises:
        UserError: if columns do not fit the form or one another, or hold invalid values.
    """
    _check(episode, form)
    n_actions = len(episode.actions)
    observations = episode.observations
    images = observations[IMAGE] if isinstance(observations, dict) else np.empty((n_actions + 1, 1, 0, 0), np.uint8)
    columns: dict[str, Array] = {
        "frames": images[:, -1:],
        "state_float": _with_elapsed(episode.floats, form),
        "actions": (episode.actions - form.first_action).astype(form.spaces.action_dtype),
        GREEDY: np.ones(n_actions, dtype=np.bool_),
    }
    columns |= {name: episode.infos[name] for name in OF_STATES if name in episode.infos}
    columns |= {name: episode.infos[name][:-1] for name in OF_ACTIONS if name in episode.infos}
    facts = RaceFacts(
        map_name="data_set",
        is_explo=True,
        fill_buffer=True,
        n_actions=n_actions,
        race_finished=episode.is_finished and RACE_TIME in episode.infos,
        race_time_ms=int(episode.infos[RACE_TIME][-1]) if RACE_TIME in episode.infos else 0,
        terminated=episode.is_finished,
    )
    return Race(columns, facts)


def recorded_reward(episode: Episode) -> Rewarded | None:
    """Return an episode's recorded rewards; None if the columns allow computing another configuration's rewards."""
    if METERS in episode.infos and RACE_TIME in episode.infos:
        return None
    none = np.zeros(len(episode.actions) + 1, dtype=np.float32)
    return Rewarded(as_stored(episode.rewards), as_stored(episode.infos.get(POTENTIALS, none)))


def _observations(frames: Array, floats: Array, actions: Array, form: DataSetForm) -> Array | dict[str, Array]:
    """Return the states as agents observe them: floats, and with an image (T + 1, S, H, W)."""
    rows = np.arange(len(floats))
    images, seen = form.spaces.views.of_states(frames[None], floats[None], actions[None], np.zeros_like(rows), rows)
    if not form.has_elapsed:
        seen = np.delete(seen, ELAPSED_ACTIONS_FLOAT, axis=1)
    return {IMAGE: images, FLOATS: seen} if form.spaces.has_image else seen


def _with_elapsed(floats: Array, form: DataSetForm) -> npt.NDArray[np.float32]:
    """Return the floats that the memory stores; the time in the mini-race is 0."""
    floats = floats.astype(np.float32, copy=False)
    floats = floats if form.has_elapsed else np.insert(floats, ELAPSED_ACTIONS_FLOAT, 0.0, axis=1)
    return floats[:, : form.spaces.n_row_floats]


def _numbered(actions: Any, form: DataSetForm) -> Array:
    """Return the actions with the episode's numbers; a copy."""
    return np.array(actions, dtype=form.spaces.action_dtype) + form.spaces.action_dtype(form.first_action)  # type: ignore[no-any-return]


def _with_last(of_actions: Array) -> Array:
    return np.concatenate((of_actions, np.zeros_like(of_actions[:1])))


def _check(episode: Episode, form: DataSetForm) -> None:
    n_actions = len(episode.actions)
    columns = {"floats": episode.floats, "actions": episode.actions, "rewards": episode.rewards}
    wanted = {
        "floats": (n_actions + 1, form.n_floats),
        "actions": (n_actions, *form.spaces.action_shape),
        "rewards": (n_actions,),
    }
    if isinstance(episode.observations, dict):
        columns[IMAGE] = episode.observations[IMAGE]
        wanted[IMAGE] = (n_actions + 1, *form.spaces.image_shape)
    for name, shape in wanted.items():
        if columns[name].shape != shape:
            raise UserError(f"its {name} have the shape {columns[name].shape}, not {shape}")
        if not is_finite_as_stored(columns[name]):
            raise UserError(f"its {name} hold numbers that are not finite")
    if n_actions == 0:
        raise UserError("it has no actions")
    for name in COLUMNS:
        if name in episode.infos and np.shape(episode.infos[name])[:1] != (n_actions + 1,):
            raise UserError(f"its {name} have the shape {np.shape(episode.infos[name])}, not {n_actions + 1} rows")
    first = form.first_action
    n_values = form.spaces.n_values
    is_known = (episode.actions >= first) & (episode.actions < first + n_values)
    if isinstance(form.spaces.action, Discrete) and not is_known.all():
        raise UserError(f"its actions are not all from {first} to {first + n_values - 1}")
