"""Demonstrations: given inputs are driven with the agent's actions, once, before a new run's first race.

The agent learns from these as from any exploration race, or with a share of each batch and a margin loss (Hester et
al. 2018, "Deep Q-learning from Demonstrations"). Inputs files of other programs are approximated by the agent's
actions; the log has the result.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.games.protocol import Games, rollout
from trackmania_rl.gbx.replay import ghost_of_driver, is_replay_file, read_replay, script_of_ghost
from trackmania_rl.protocol.input_script import InputEvent, read_input_script
from trackmania_rl.protocol.state_blob import InputSlot
from trackmania_rl.race.actions import Action, ActionKind, Policy, PolicyDecision, actions_of_game
from trackmania_rl.race.race import RaceFacts
from trackmania_rl.settings import GameSettings, MapEntry
from trackmania_rl.settings.game import MS_PER_ENGINE_TICK
from trackmania_rl.simulator.inputs import InputState
from trackmania_rl.training.collector import CollectorParts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Demonstration:
    """A race to drive."""

    name: str  # file name
    entry: MapEntry
    actions: npt.NDArray[Any]  # (n,) int64 indices into `inputs`, or (n, 3) float32; the last one is repeated
    n_exact: int  # actions that equal the file's inputs


def load_demonstrations(game: GameSettings, folder: Path) -> tuple[Demonstration, ...]:
    """Read a configuration's demonstrations; relative paths are in `folder`."""
    entries = {entry.map_name: entry for entry in game.map_cycle}
    demonstrations = []
    for demonstration in game.demonstrations:
        try:
            events = read_inputs(folder / demonstration.inputs)
        except UserError as error:
            raise UserError(f"demonstrations: {error}") from error
        actions, n_exact = actions_of_inputs(events, game)
        entry = entries[demonstration.map_name].model_copy(update={"is_explo": True, "fill_buffer": True, "repeat": 1})
        demonstrations.append(Demonstration(Path(demonstration.inputs).name, entry, actions, n_exact))
    return tuple(demonstrations)


def actions_of_inputs(events: Sequence[InputEvent], game: GameSettings) -> tuple[npt.NDArray[Any], int]:
    """Approximate inputs by the agent's actions.

    Each decision takes the action nearest to the mean input during it. The difference is added to the next
    decision (error diffusion), so short taps and half turned wheels are not lost.

    Returns:
        The actions (n,) or (n, 3), one for each decision until the last event, and how many equal the inputs.
    """
    kind = actions_of_game(game)
    nearest = _nearest_analog_action if game.actions == "analog" else _nearest_index(kind)
    actions = []
    n_exact = 0
    missing = np.zeros(3)  # gas, brake and steer, in actions
    for of_decision in _controls_of_decisions(events, game):  # (ticks, 3)
        wanted = of_decision.mean(axis=0) + missing
        action = nearest(wanted)
        done = kind.controls(np.asarray([action]))[0]
        # At most half an action, because differences that no action can make up for must not accumulate.
        missing = (wanted - done).clip(-0.5, 0.5)
        actions.append(action)
        n_exact += bool((of_decision == done).all())
    return np.array(actions, dtype=kind.dtype), n_exact


def _nearest_index(kind: ActionKind) -> Callable[[npt.NDArray[np.float64]], Action]:
    """Return a function from gas, brake and steer (3,) to the nearest action's index."""
    of_action = kind.controls(np.arange(kind.n_values))  # (A, 3)
    return lambda wanted: int(np.abs(of_action - wanted).sum(axis=1).argmin())


def _nearest_analog_action(wanted: npt.NDArray[np.float64]) -> Action:
    gas, brake, steer = wanted.tolist()
    pressed = (1.0 if pedal > 0.5 else -1.0 for pedal in (gas, brake))
    return np.array([np.clip(steer, -1.0, 1.0), *pressed], dtype=np.float32)


def drive_demonstrations(demonstrations: Sequence[Demonstration], games: Games, parts: CollectorParts) -> None:
    """Drive demonstrations in the first game and send each race to the learner, until the run ends."""
    n_values = actions_of_game(parts.run_state.settings.game).n_values
    for demonstration in demonstrations:
        room = functools.partial(parts.rollouts.acquire_frames, 0)
        if room() is None:
            return
        make_policy = functools.partial(replayed, demonstration.actions, n_values)
        race = rollout(games, demonstration.entry, make_policy, room, parts.listeners)
        race.facts = race.facts.with_changes(is_demonstration=True)
        _log_result(demonstration, race.facts)
        parts.rollouts.put(0, race)


def replayed(actions: npt.NDArray[Any], n_values: int, n_exploratory: int = sys.maxsize) -> Policy:
    """Return a policy for one race that takes given actions, and repeats the last one.

    Q values are 0, and the first `n_exploratory` decisions are not greedy.
    """
    q_values = np.zeros(n_values, dtype=np.float32)
    chosen = list(actions) if actions.ndim > 1 else actions.tolist()
    decisions = itertools.count()

    def policy(_: npt.NDArray[np.uint8], __: npt.NDArray[np.float32]) -> PolicyDecision:
        number = next(decisions)
        return PolicyDecision(chosen[min(number, len(chosen) - 1)], number >= n_exploratory, q_values)

    return policy


def _log_result(demonstration: Demonstration, facts: RaceFacts) -> None:
    seconds = facts.race_time_ms / 1000
    cut_off = f"cut off ({facts.cutoff_reason}) after {seconds:.2f} s and {facts.meters:.0f} m"
    log.log(
        logging.INFO if facts.race_finished else logging.WARNING,
        "demonstration %s on %s: %s; %d of its %d actions are exactly its inputs",
        demonstration.name,
        demonstration.entry.map_name,
        f"finished in {seconds:.2f} s" if facts.race_finished else cut_off,
        demonstration.n_exact,
        len(demonstration.actions),
    )


def read_inputs(path: Path) -> Sequence[InputEvent]:
    """Read an inputs file, or the fastest race in a replay or ghost.

    Raises:
        UserError: if it is missing or damaged, or holds no inputs.
    """
    events: Sequence[InputEvent]
    if is_replay_file(path):
        events = script_of_ghost(ghost_of_driver(read_replay(path)), path).events
    else:
        events = read_input_script(path)
    if not events:
        raise UserError(f"{path} holds no inputs")
    return events


def _controls_of_decisions(events: Sequence[InputEvent], game: GameSettings) -> npt.NDArray[np.float64]:
    """Return gas, brake and steer (T, ticks per action, 3) to the last event or the longest race's end."""
    last_ms = min(events[-1].time_ms, game.cutoff_race_longer_than_ms)
    n_decisions = last_ms // game.ms_per_action + 1
    controls = np.empty((n_decisions * game.engine_ticks_per_action, 3))
    inputs = InputState(np.zeros((len(InputSlot), 2), dtype=np.uint32))
    index = 0
    for tick in range(len(controls)):
        first = index
        while index < len(events) and events[index].time_ms <= tick * MS_PER_ENGINE_TICK:
            index += 1
        if index > first:
            inputs.apply(events[first:index])
        controls[tick] = inputs.controls
    return controls.reshape(n_decisions, game.engine_ticks_per_action, 3)
