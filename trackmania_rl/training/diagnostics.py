"""Data for the plots in `telemetry.diagnostics`: from an agent and recent races, or from a checkpoint.

Gathering data does not change what a run learns and draws no random numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from trackmania_rl.agents.agent import Agent
from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.agents.devices import pick_device
from trackmania_rl.agents.inference import Actor
from trackmania_rl.drivers.evaluation import FORCED_START_ACTIONS, forced_starts, greedy_after
from trackmania_rl.drivers.loading import load_learned
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.experience_replay.memory import transitions_of_race
from trackmania_rl.experience_replay.mini_races import MiniRaceRules, buffer_collate_function
from trackmania_rl.experience_replay.transitions import Transitions
from trackmania_rl.games.protocol import rollout
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.parts import make_part
from trackmania_rl.race.actions import ELAPSED_ACTIONS_FLOAT, actions_of_game
from trackmania_rl.race.race import Race
from trackmania_rl.race.rewards import Reward, Rewarded
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.schedules import linear
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import MapEntry, Settings, settings_from_flat
from trackmania_rl.telemetry.diagnostics import Array, Data, Section, key_action_name
from trackmania_rl.track.reference_line import load_reference_line

N_STATES: Final = 4
N_TAUS: Final = 64
N_ELAPSED: Final = 26
N_LARGEST: Final = 6
APART_S: Final = 1.0
"""Shortest time between two of the largest errors in one race. Neighbours are nearly the same."""
N_SAMPLED: Final = 1024
N_SAMPLED_WITH_IMAGE: Final = 256


@dataclass(frozen=True)
class Subject:
    """An agent with settings, spaces, reward, counts and the map's reference line."""

    agent: Agent
    settings: Settings
    spaces: Spaces
    reward: Reward
    frames_total: int
    training_s: float
    line_m: Array | None = None

    @property
    def rules(self) -> MiniRaceRules:
        """Mini-races and discount in force."""
        gamma = linear(self.settings.agent.gamma_schedule, self.frames_total)
        return MiniRaceRules.from_settings(self.settings.replay, gamma)

    @property
    def s_per_action(self) -> float:
        """Action duration."""
        return self.settings.game.ms_per_action / 1000


class _Analysis:
    """A race with T actions and rewards. Positions and distances are NaN without a map."""

    def __init__(self, subject: Subject, race: Race) -> None:
        self.subject = subject
        self.columns = race.columns
        self.facts = race.facts
        self.n_actions = race.n_actions
        self.has_map = "position_m" in race.columns
        self.kind = race.facts.kind
        nowhere = np.full((self.n_actions, 3), np.nan)
        self.position_m = nowhere  # (T, 3)
        self.meters = nowhere[:, 0]
        self.speed_m_s = nowhere[:, 0]
        if self.has_map:
            self.position_m = np.asarray(race.columns["position_m"][: self.n_actions])
            self.speed_m_s = np.asarray(race.columns["speed_m_s"][: self.n_actions])
            self.meters = np.asarray(race.columns["meters_advanced_along_centerline"][: self.n_actions], np.float64)
        self.rewarded = subject.reward(race.rollout_results(), subject.settings, subject.frames_total)
        self._race = Race(race.columns, race.facts, *self.rewarded)
        is_terminal = race.facts.terminated and not subject.settings.replay.no_done_at_end
        self.realised = realised_returns(self.rewarded, subject.rules, is_terminal=is_terminal)

    def transitions(self, index: Array) -> Transitions:
        """Return the transitions at states (B,), as the replay memory gathers them."""
        of_states = torch.as_tensor(index, dtype=torch.int64)
        return transitions_of_race(self._race, of_states, self.subject.settings, self.subject.spaces)

    def places(self, index: Array) -> dict[str, Array]:
        """Return times, distances, positions and speeds at states (B,)."""
        return {
            "time_s": index * self.subject.s_per_action,
            "meters": self.meters[index],
            "position_m": self.position_m[index],
            "speed_km_h": 3.6 * self.speed_m_s[index],
        }


def gather(
    subject: Subject,
    newest: Race,
    evaluated: Sequence[Race],
    explored: Race | None,
) -> Data:
    """Gather the data for all plots.

    Args:
        subject: the agent.
        newest: newest evaluation race, with frames.
        evaluated: recent evaluation races, including the newest; those on other maps are left out.
        explored: recent exploration race on the same map, with frames.
    """
    race = _Analysis(subject, newest)
    map_name = newest.facts.map_name
    races = [race] if explored is None else [race, _Analysis(subject, explored)]
    data = {"about": _about(race)}
    names = data["about"].action_names
    if (expectations := _expectations(race)) is not None:
        of_map = [_Analysis(subject, one) for one in evaluated if one.facts.map_name == map_name]
        data |= {"expectations": expectations, "comparison": _comparison(of_map)}
    if (errors := _errors(races, names, at_all_horizons=False)) is not None:
        data["largest"] = Section(**_largest(errors))
    if (errors := _errors(races, names, at_all_horizons=True)) is not None:
        data["errors"] = Section(**errors)
    return data


def realised_returns(rewarded: Rewarded, rules: MiniRaceRules, *, is_terminal: bool) -> Array:
    """Return (T,) the returns in the mini-races that begin at a race's T actions; NaN where the race was cut off.

    `is_terminal` tells that nothing comes after the race's last action.
    """
    n_actions = len(rewarded.rewards)
    n_ahead = n_actions if rules.duration_actions is None else min(rules.duration_actions, n_actions)
    # A whole mini-race's shaping is minus the potential where it begins, see `buffer_collate_function`.
    returns: Array = -rewarded.potentials[:-1].astype(np.float64)
    for ahead in range(n_ahead):
        returns[: n_actions - ahead] += rules.gamma**ahead * rewarded.rewards[ahead:]
    if not is_terminal:
        n_known = 0 if rules.duration_actions is None else max(n_actions - rules.duration_actions + 1, 0)
        returns[n_known:] = np.nan
    return returns


def _about(race: _Analysis) -> Section:
    subject = race.subject
    game = race.subject.settings.game
    n_actions = race.subject.spaces.n_values
    names = [f"action {action}" for action in range(n_actions)]
    controls = np.zeros((0, 3))
    if race.has_map and game.actions == "keys":
        controls = actions_of_game(game).controls(np.arange(n_actions))
        names = [key_action_name(*row) for row in controls.tolist()]
    return Section(
        map_name=race.facts.map_name,
        track=race.facts.track,
        frames_total=subject.frames_total,
        training_s=subject.training_s,
        s_per_action=subject.s_per_action,
        mini_race_actions=subject.rules.duration_actions or 0,
        action_names=np.array(names),
        action_controls=controls,
        line_m=np.zeros((0, 3)) if subject.line_m is None else np.asarray(subject.line_m),
        driven_m=race.position_m.copy() if race.has_map else np.zeros((0, 3)),  # a race is valid within a call
    )


def _expectations(race: _Analysis) -> Section | None:
    """Return the expectations in states evenly spread over a race; None for an agent without action values."""
    agent = race.subject.agent
    duration = race.subject.rules.duration_actions
    n_states = min(N_STATES, race.n_actions)
    states = ((np.arange(n_states) + 0.5) / n_states * race.n_actions).astype(np.int64)
    transitions = race.transitions(states)
    img = transitions.state_img
    floats = transitions.state_float
    taus = (torch.arange(N_TAUS) + 0.5) / N_TAUS
    returns = agent.returns_at(img, floats, taus)
    if returns is None:
        return None
    elapsed = np.unique(np.linspace(0, duration - 1, N_ELAPSED).round()) if duration is not None else np.zeros(0)
    values = torch.zeros(n_states, 0, returns.shape[2])
    if len(elapsed):
        swept = floats.repeat_interleave(len(elapsed), dim=0)
        swept[:, ELAPSED_ACTIONS_FLOAT] = torch.as_tensor(np.tile(elapsed, n_states), dtype=swept.dtype)
        at_elapsed = agent.returns_at(img.repeat_interleave(len(elapsed), dim=0), swept, taus)
        assert at_elapsed is not None
        values = at_elapsed.mean(dim=1).unflatten(0, (n_states, len(elapsed)))
    return Section(
        **race.places(states),
        taus=taus.numpy() if returns.shape[1] > 1 else np.zeros(0),
        returns=returns.cpu().numpy(),
        elapsed_actions=elapsed,
        values=values.cpu().numpy(),
    )


def _comparison(races: Sequence[_Analysis]) -> Section:
    parts = []
    for number, race in enumerate(races):
        actions = np.asarray(race.columns["actions"])
        predicted = np.asarray(race.columns["q_values"], dtype=np.float64)[np.arange(len(actions)), actions]
        known = np.isfinite(race.realised) & np.isfinite(predicted)
        columns = {"race": np.full(len(actions), number), "meters": race.meters}
        columns |= {"predicted": predicted, "realised": race.realised}
        parts.append({name: values[known] for name, values in columns.items()})
    return Section(**_joined(parts))


def _errors(races: Sequence[_Analysis], action_names: Array, *, at_all_horizons: bool) -> dict[str, Array] | None:
    """Return errors for the races' transitions (B,), with the whole mini-race ahead or at all horizons.

    If the agent gives no error, the loss replaces it. None if it gives neither.
    """
    subject = races[0].subject
    most = N_SAMPLED_WITH_IMAGE if subject.spaces.has_image else N_SAMPLED
    every = max(1, sum(race.n_actions for race in races) // most)
    duration = subject.rules.duration_actions or 0
    parts = []
    for race in races:
        index = np.arange(0, race.n_actions, every)
        elapsed = np.zeros(len(index), dtype=np.int64)
        if at_all_horizons and duration:
            elapsed = np.arange(len(index)) * 7919 % duration  # a prime number: all horizons at all places
        transitions = race.transitions(index)
        n_steps = transitions.n_steps.numpy()
        batch = buffer_collate_function(transitions, rules=subject.rules, elapsed=torch.as_tensor(elapsed))
        reward = batch["reward"].numpy().copy()
        if (errors := subject.agent.errors_of(batch)) is None:
            return None
        loss = errors.loss.cpu().numpy()
        predicted, target = (
            np.full(len(loss), np.nan) if values is None else values.cpu().numpy()
            for values in (errors.predicted, errors.target)
        )
        actions = np.asarray(race.columns["actions"])[index]
        names = action_names[actions] if actions.ndim == 1 else [_numbers(action) for action in actions.tolist()]
        columns = {"loss": loss, "predicted": predicted, "target": target, "n_steps": n_steps, "reward": reward}
        columns["error"] = np.where(np.isnan(target - predicted), loss, target - predicted)
        columns |= {"kind": np.full(len(index), race.kind), "action": np.array(names)}
        columns |= {"actions_left": duration - elapsed, "realised": race.realised[index]}
        parts.append(columns | race.places(index))
    return _joined(parts)


def _numbers(action: list[float]) -> str:
    return ", ".join(f"{number:+.2f}" for number in action)


def _largest(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the largest errors' columns, no two from one race within `APART_S`."""
    chosen: list[int] = []
    for row in np.argsort(-np.abs(columns["error"])).tolist():
        is_near = np.abs(columns["time_s"][chosen] - columns["time_s"][row]) < APART_S
        of_race = columns["kind"][chosen] == columns["kind"][row]
        if np.isfinite(columns["error"][row]) and not (is_near & of_race).any():
            chosen.append(row)
    return {name: values[chosen[:N_LARGEST]] for name, values in columns.items()}


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def load_subject(
    run_folder: Path, checkpoint: Path | None = None, torch_device: str | None = None
) -> tuple[Subject, Actor]:
    """Load a run's agent from a checkpoint or a file in drivers/, by default the newest checkpoint.

    Raises:
        UserError: if folder, settings or checkpoint are missing, damaged or do not fit each other.
    """
    learned = load_learned(run_folder, checkpoint)
    changes: dict[str, Any] = {"use_torch_compile": False, "n_collectors": 1, "games_per_collector": 1}
    changes |= {"sampling": "asynchronous"}
    if learned.settings.game.game == "simulated":
        changes["game_transport"] = "in_process"
    if torch_device is not None:
        changes["torch_device"] = torch_device
    settings = settings_from_flat(learned.settings.flat() | changes)
    spaces = make_games_builder(settings).spaces
    seeds = SeedTree(settings.run.seed)
    builder = make_agent_builder(settings, spaces, seeds)
    agent = builder.make_learner(builder.make_network())
    try:
        if learned.agent is None:
            agent.load_weights(learned.weights)
        else:
            agent.load_state_dict(learned.agent)
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{learned.file} does not fit its settings: {one_line(error)}") from error
    takes = "settings, spaces, seeds"
    reward: Reward = make_part(settings.reward.reward, "reward", settings, spaces, seeds, takes=takes)
    device = pick_device(settings.run.torch_device)
    actor = builder.make_actor(agent.evaluation_network, device, seeds.rng("diagnostics/actor"))
    counts = learned.statistics
    return Subject(agent, settings, spaces, reward, counts["frames_total"], counts["training_s"]), actor


def drive_and_gather(subject: Subject, actor: Actor, entry: MapEntry, n_races: int, maps_folder: Path) -> Data:
    """Drive a map greedily, as `evaluate_map`, and gather the data for the plots.

    Raises:
        UserError: if the map can't be used.
        GameError: if the game keeps failing.
    """
    settings = subject.settings
    races = []
    rng = SeedTree(settings.run.seed).rng("diagnostics/games")
    with contextlib.closing(make_games_builder(settings).make_games(0, maps_folder, rng)) as games:
        for forced in forced_starts(settings, subject.spaces, entry, n_races, FORCED_START_ACTIONS):
            ended = rollout(games, entry, functools.partial(greedy_after, forced, actor))
            ended.facts = ended.facts.with_changes(is_explo=False)
            races.append(ended.copy())
    if "position_m" in races[0].columns:
        with contextlib.suppress(UserError):  # a generated track has no file
            line_m = load_reference_line(maps_folder / entry.reference_line)
            subject = dataclasses.replace(subject, line_m=line_m)
    return gather(subject, races[0], races, None)
