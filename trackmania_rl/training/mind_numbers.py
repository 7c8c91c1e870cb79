"""Gathers the numbers behind the pictures of a run from its agent, its recent races and its replay memory.

Nothing in here changes what the run learns: transitions and horizons are drawn by random numbers of their own.

Shapes as in `telemetry.mind.numbers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict

from trackmania_rl.agents.agent import Agent, TransitionErrors
from trackmania_rl.buffer_management import rows_of_rollout
from trackmania_rl.buffer_utilities import MiniRaceReplayBuffer
from trackmania_rl.experience_replay.memory import Memory, MiniRaceMemory
from trackmania_rl.experience_replay.mini_race import MiniRaceRules, cut_to_mini_races
from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.experience_replay.transition_storage import Transitions, TransitionStorage
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.rewards import Reward, RewardedRace
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.mind.numbers import (
    KM_H_PER_M_S,
    About,
    Array,
    Comparison,
    DrivenRace,
    ErrorsByHorizon,
    Expectations,
    MindNumbers,
    Surprises,
    key_action_name,
    speeds_m_s,
)

N_STATES: Final = 4
N_TAUS: Final = 64
N_ELAPSED: Final = 26
N_SURPRISES: Final = 6
APART_S: Final = 1.0
"""Two surprises of one race lie at least this far apart: neighbours are nearly the same."""
N_SAMPLED: Final = 1024
N_SAMPLED_WITH_IMAGE: Final = 256
"""Transitions of each side of the replay memory; an image takes much longer to read."""
NO_POSITION: Final = (np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class RecentRace:
    """A race that came in.

    Attributes:
        columns: copies of what it was, see `race.results.rollout_results`; frames only where they are looked at.
        stats: its `end_race_stats`.
    """

    columns: dict[str, Any]
    stats: dict[str, Any]

    @property
    def map_name(self) -> str:
        """The map cycle's name of its map."""
        return str(self.stats["map_name"])

    @property
    def kind(self) -> str:
        """`explored` or `evaluated`."""
        return "explored" if self.stats["is_explo"] else "evaluated"

    @property
    def n_actions(self) -> int:
        """T."""
        return len(self.columns["actions"])

    @property
    def has_positions(self) -> bool:
        """Whether it was driven on a map."""
        return "position_m" in self.columns

    @property
    def position_m(self) -> Array:
        """(T, 3); NaN without a map."""
        nowhere = np.tile(NO_POSITION, (self.n_actions, 1))
        return np.asarray(self.columns["position_m"]) if self.has_positions else nowhere

    @property
    def meters(self) -> Array:
        """(T,) along the line; NaN without one."""
        if not self.has_positions:
            return np.full(self.n_actions, np.nan)
        return np.asarray(self.columns["meters_advanced_along_centerline"], dtype=np.float64)[: self.n_actions]


@dataclass(frozen=True)
class Mind:
    """What is looked into.

    Attributes:
        agent: expects and errs.
        settings: of the run, those in force.
        spaces: of its games.
        reward: what its actions are worth.
        rules: of its mini-races.
        frames_total: actions that it has collected.
        training_s: seconds that it has trained.
        line_m: (M, 3) reference line of the map that is shown; None where there is none.
    """

    agent: Agent
    settings: Settings
    spaces: Spaces
    reward: Reward
    rules: MiniRaceRules
    frames_total: int
    training_s: float
    line_m: Array | None = None

    def rewarded(self, race: RecentRace) -> RewardedRace:
        """What a race's actions are worth."""
        return self.reward(race.columns, self.settings, self.frames_total)


def gather_numbers(
    mind: Mind,
    newest: RecentRace,
    evaluated: Sequence[RecentRace],
    explored: RecentRace | None,
    best: DrivenRace | None,
    memory: Memory | None,
) -> MindNumbers:
    """Gather all numbers that there are.

    Args:
        mind: what is looked into.
        newest: the newest evaluated race, with its frames.
        evaluated: recent evaluated races, this one among them.
        explored: a recent explored race of the same map, with its frames.
        best: the fastest race of that map.
        memory: the replay memory; None to leave out what it would show.
    """
    races = [newest] if explored is None else [newest, explored]
    expectations = _expectations(mind, newest)
    return MindNumbers(
        about=about(mind, newest),
        expectations=expectations,
        comparison=_comparison(mind, evaluated, newest.map_name) if expectations is not None else None,
        errors=None if memory is None else _errors_by_horizon(mind, memory),
        surprises=_surprises(mind, races),
        race=driven_race(newest, mind.settings) if newest.has_positions else None,
        best=best,
    )


def about(mind: Mind, newest: RecentRace) -> About:
    """Tell where the numbers come from."""
    game = mind.settings.game
    names, controls = action_names(mind, newest)
    return About(
        map_name=newest.map_name,
        track=str(newest.stats.get("track", "")),
        frames_total=mind.frames_total,
        training_s=mind.training_s,
        ms_per_action=game.ms_per_action,
        mini_race_actions=mind.rules.duration_actions or 0,
        action_names=np.array(names),
        action_controls=controls,
        line_m=np.zeros((0, 3)) if mind.line_m is None else np.asarray(mind.line_m),
    )


def action_names(mind: Mind, race: RecentRace) -> tuple[list[str], Array]:
    """Name the A actions to choose from, and say what they do to the car, (A, 3); (0, 3) where they are no keys."""
    game, n_actions = mind.settings.game, mind.spaces.n_values
    if not race.has_positions or game.actions != "keys":
        return [f"action {action}" for action in range(n_actions)], np.zeros((0, 3))
    controls = actions_of_game(game).controls(np.arange(n_actions))
    return [key_action_name(*row) for row in controls.tolist()], controls


def driven_race(race: RecentRace, settings: Settings) -> DrivenRace:
    """What is seen of a race on a map."""
    return DrivenRace(
        kind=race.kind,
        is_finished=bool(race.stats["race_finished"]),
        race_time_ms=int(race.stats["race_time_ms"]),
        checkpoint_times_ms=np.array(race.stats.get("checkpoint_times_ms", ()), dtype=np.int64),
        position_m=race.position_m.copy(),
        meters=race.meters.copy(),
        controls=actions_of_game(settings.game).controls(np.asarray(race.columns["actions"])),
    )


def realised_returns(rewarded: RewardedRace, rules: MiniRaceRules, *, is_terminal: bool) -> Array:
    """(T,) what the mini-races that begin at a race's T actions brought, by the rules of what is learned.

    NaN where it is not known: the race was cut off before the mini-race's end.

    Args:
        rewarded: the race.
        rules: discount, and length of a mini-race.
        is_terminal: whether nothing comes after the race's last action.
    """
    n_actions = len(rewarded.rewards)
    n_ahead = n_actions if rules.duration_actions is None else min(rules.duration_actions, n_actions)
    # The shaping of a whole mini-race is -potential of where it begins, see `buffer_collate_function`.
    returns: Array = -rewarded.potentials[:-1].astype(np.float64)
    for ahead in range(n_ahead):
        returns[: n_actions - ahead] += rules.gamma**ahead * rewarded.rewards[ahead:]
    if not is_terminal:
        n_known = 0 if rules.duration_actions is None else max(n_actions - rules.duration_actions + 1, 0)
        returns[n_known:] = np.nan
    return returns


def worst_apart(sizes: Array, race: Array, place: Array, apart: int, n_most: int) -> list[int]:
    """The largest of some sizes (n,), the largest first, no two of one race within `apart` places of each other."""
    chosen: list[int] = []
    for candidate in np.argsort(-sizes).tolist():
        if len(chosen) == n_most or not np.isfinite(sizes[candidate]):
            break
        near = (race[other] == race[candidate] and abs(place[other] - place[candidate]) < apart for other in chosen)
        if not any(near):
            chosen.append(candidate)
    return chosen


def _is_terminal(race: RecentRace, settings: Settings) -> bool:
    """Whether values end with the race: it was finished, and that counts as the end."""
    is_finished = "race_time" in race.columns or bool(race.columns.get("terminated", False))
    return is_finished and not settings.replay.no_done_at_end


def _transitions(mind: Mind, race: RecentRace, index: Array) -> Transitions:
    """The transitions that begin at some states of a race, as the replay memory would gather them."""
    rows = rows_of_rollout(
        race.columns, mind.rewarded(race), mind.settings.replay, 0, mind.settings.game.soft_horizon_actions
    )
    spaces = mind.spaces
    ring = RingBuffer(len(rows), spaces.n_own_floats, spaces.image_size_px, "cpu", spaces.action_shape)
    ring.append(rows)
    storage = TransitionStorage(ring, mind.settings.replay.n_steps, spaces.views)
    return storage.get(torch.as_tensor(index, dtype=torch.int64))


def _expectations(mind: Mind, race: RecentRace) -> Expectations | None:
    """What the agent expects in states that lie evenly in a race; None if it does not value actions."""
    n_states = min(N_STATES, race.n_actions)
    states = ((np.arange(n_states) + 0.5) / n_states * race.n_actions).astype(np.int64)
    transitions = _transitions(mind, race, states)
    img, floats = transitions.state_img, torch.as_tensor(transitions.state_float)
    taus = (torch.arange(N_TAUS) + 0.5) / N_TAUS
    returns = mind.agent.returns_at(img, floats, taus)
    if returns is None:
        return None
    duration = mind.rules.duration_actions
    elapsed = np.unique(np.linspace(0, duration - 1, N_ELAPSED).round()) if duration is not None else np.zeros(0)
    values = torch.zeros(n_states, 0, returns.shape[2])
    if len(elapsed):
        swept = floats.repeat_interleave(len(elapsed), dim=0)
        swept[:, ELAPSED_ACTIONS_FLOAT] = torch.as_tensor(np.tile(elapsed, n_states), dtype=swept.dtype)
        at_elapsed = mind.agent.returns_at(img.repeat_interleave(len(elapsed), dim=0), swept, taus)
        assert at_elapsed is not None
        values = at_elapsed.mean(dim=1).unflatten(0, (n_states, len(elapsed)))
    s_per_action = mind.settings.game.ms_per_action / 1000
    return Expectations(
        time_s=states * s_per_action,
        meters=race.meters[states],
        position_m=race.position_m[states],
        speed_km_h=KM_H_PER_M_S * speeds_m_s(race.position_m, s_per_action)[states],
        taus=taus.numpy() if returns.shape[1] > 1 else np.zeros(0),
        returns=returns.cpu().numpy(),
        elapsed_actions=elapsed,
        values=values.cpu().numpy(),
    )


def _comparison(mind: Mind, races: Sequence[RecentRace], map_name: str) -> Comparison | None:
    """What was predicted in races and what came."""
    parts = []
    for number, race in enumerate(races):
        terminal = _is_terminal(race, mind.settings)
        realised = realised_returns(mind.rewarded(race), mind.rules, is_terminal=terminal)
        actions = np.asarray(race.columns["actions"])
        predicted = np.asarray(race.columns["q_values"], dtype=np.float64)[np.arange(len(actions)), actions]
        known = np.isfinite(realised) & np.isfinite(predicted)
        of_race = np.full(known.sum(), number), np.full(known.sum(), race.map_name == map_name)
        parts.append((*of_race, race.meters[known], predicted[known], realised[known]))
    if not parts:
        return None
    return Comparison(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _errors_by_horizon(mind: Mind, memory: Memory) -> ErrorsByHorizon | None:
    """How wrong the agent is about both sides of the replay memory, at horizons of all lengths."""
    if mind.rules.duration_actions is None or not isinstance(memory, MiniRaceMemory):
        return None
    sides = []
    for is_test, side in ((False, memory.buffer), (True, memory.buffer_test)):
        sampled = _sampled(mind, side, np.random.default_rng((mind.frames_total, is_test)))
        errors = None if sampled is None else mind.agent.errors_of(sampled)
        if sampled is None or errors is None:
            continue
        loss, _, _, error = _on_host(errors)
        left = mind.rules.duration_actions - sampled["state_float"][:, ELAPSED_ACTIONS_FLOAT].cpu().numpy()
        sides.append((np.full(len(loss), is_test), left, loss, error))
    if not sides:
        return None
    return ErrorsByHorizon(*(np.concatenate(columns) for columns in zip(*sides, strict=True)))


def _sampled(mind: Mind, side: MiniRaceReplayBuffer, rng: np.random.Generator) -> TensorDict | None:
    """Transitions of a side, all alike, at times evenly spread over the mini-race; None where there are none."""
    duration = mind.rules.duration_actions
    assert duration is not None
    n_sampled = N_SAMPLED_WITH_IMAGE if mind.spaces.has_image else N_SAMPLED
    with side.ring.lock:
        index = side.storage.index
        if len(index) == 0:
            return None
        drawn = torch.from_numpy(rng.integers(len(index), size=n_sampled)).to(index.device)
        elapsed = torch.from_numpy(np.arange(n_sampled) * duration // n_sampled).to(index.device)
        return cut_to_mini_races(side.storage.get(index[drawn]), elapsed, mind.rules)


def _surprises(mind: Mind, races: Sequence[RecentRace]) -> Surprises | None:
    """The transitions of some races that were predicted worst, with the whole mini-race ahead."""
    every = max(
        1, sum(race.n_actions for race in races) // (N_SAMPLED_WITH_IMAGE if mind.spaces.has_image else N_SAMPLED)
    )
    looked_at = [_transitions_looked_at(mind, race, np.arange(0, race.n_actions, every)) for race in races]
    known = [columns for columns in looked_at if columns is not None]
    if not known:
        return None
    names = [field.name for field in dataclasses.fields(Surprises)]
    joined = {name: np.concatenate([columns[name] for columns in known]) for name in known[0]}
    apart = round(APART_S / (mind.settings.game.ms_per_action / 1000))
    worst = worst_apart(np.abs(joined["error"]), joined["kind"], joined["place"], apart, N_SURPRISES)
    return Surprises(**{name: joined[name][worst] for name in names})


def _transitions_looked_at(mind: Mind, race: RecentRace, index: Array) -> dict[str, Array] | None:
    """The columns of `Surprises`, and the `place` in its race, of all transitions that begin at some states."""
    transitions = _transitions(mind, race, index)
    n_steps, frames = np.asarray(transitions.n_steps).copy(), transitions.state_img[:, -1].numpy()
    batch = cut_to_mini_races(transitions, torch.zeros(len(index), dtype=torch.int64), mind.rules)
    errors = mind.agent.errors_of(batch)
    if errors is None:
        return None
    loss, predicted, target, error = _on_host(errors)
    s_per_action = mind.settings.game.ms_per_action / 1000
    position_m = race.position_m
    way_m = np.gradient(position_m[:, ::2], axis=0) if len(position_m) > 1 else np.zeros((1, 2))
    direction = way_m / np.maximum(np.linalg.norm(way_m, axis=1, keepdims=True), 1e-9)
    realised = realised_returns(mind.rewarded(race), mind.rules, is_terminal=_is_terminal(race, mind.settings))
    return {
        "kind": np.full(len(index), race.kind),
        "place": index,
        "time_s": index * s_per_action,
        "meters": race.meters[index],
        "position_m": position_m[index],
        "direction": direction[index],
        "speed_km_h": KM_H_PER_M_S * speeds_m_s(position_m, s_per_action)[index],
        "action": _texts_of_actions(mind, race, index),
        "n_steps": n_steps,
        "reward": batch["reward"].numpy(),
        "error": np.where(np.isnan(error), loss, error),
        "predicted": predicted,
        "target": target,
        "realised": realised[index],
        "frames": frames,
    }


def _texts_of_actions(mind: Mind, race: RecentRace, index: Array) -> Array:
    """(B,) names of the actions taken in some states of a race, or their numbers."""
    actions = np.asarray(race.columns["actions"])[index]
    if actions.ndim == 1:
        return np.array(action_names(mind, race)[0])[actions]
    return np.array([", ".join(f"{number:+.2f}" for number in action) for action in actions.tolist()])


def _on_host(errors: TransitionErrors) -> tuple[Array, Array, Array, Array]:
    """(B,) loss, predicted, target and target - predicted; NaN for what the agent does not tell."""
    loss = errors.loss.cpu().numpy()
    unknown = np.full(len(loss), np.nan)
    predicted = unknown if errors.predicted is None else errors.predicted.cpu().numpy()
    target = unknown if errors.target is None else errors.target.cpu().numpy()
    return loss, predicted, target, target - predicted
