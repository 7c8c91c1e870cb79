"""The pictures of a run's mind by its checkpoint: races are driven anew, and looked at as a training does it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trackmania_rl.agents.agent import Agent
from trackmania_rl.agents.builder import Actor, make_agent_builder
from trackmania_rl.agents.run_network import pick_device
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.experience_replay.memory import Memory
from trackmania_rl.experience_replay.mini_race import MiniRaceRules
from trackmania_rl.games.protocol import rollout
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import CheckpointError
from trackmania_rl.runs.driver_file import is_driver_file
from trackmania_rl.schedules import linear
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import MapEntry, Settings, settings_from_flat
from trackmania_rl.telemetry.mind.numbers import DrivenRace, MindNumbers
from trackmania_rl.track.reference_line import load_reference_line
from trackmania_rl.training.building import make_configured_memory, make_reward
from trackmania_rl.training.collector import stats_of_entry
from trackmania_rl.training.driver_loading import load_run_settings, read_run, read_state
from trackmania_rl.training.evaluation import FORCED_START_ACTIONS, forced_actions, greedy_after
from trackmania_rl.training.hooks.pictures import DrawPictures, best_races
from trackmania_rl.training.mind_numbers import Mind, RecentRace, gather_numbers


@dataclass(frozen=True)
class RunMind:
    """A run's agent and memory as a checkpoint has them.

    Attributes:
        settings: the run's, for one game.
        spaces: of its games.
        agent: looked into.
        actor: drives, by the same weights.
        memory: the replay memory; None where the checkpoint holds none.
        best: the fastest race of each map.
        frames_total: actions that the run had collected.
        training_s: seconds that it had trained.
    """

    settings: Settings
    spaces: Spaces
    agent: Agent
    actor: Actor
    memory: Memory | None
    best: dict[str, DrivenRace]
    frames_total: int
    training_s: float


def load_mind(run_folder: Path, checkpoint: Path | None = None, torch_device: str | None = None) -> RunMind:
    """Load what can be looked into.

    Args:
        run_folder: save/{run_name}.
        checkpoint: another checkpoint of this run, or a file of its drivers/; None for its newest checkpoint.
        torch_device: where to compute; None: as the run does.

    Raises:
        UserError: if folder, configuration or checkpoint are missing, damaged or don't fit each other.
    """
    settings = _for_one_game(load_run_settings(run_folder), torch_device)
    seeds, spaces = SeedTree(settings.run.seed), make_games_builder(settings).spaces
    builder = make_agent_builder(settings, spaces, seeds)
    agent = builder.make_learner(builder.make_network())
    hooks: Mapping[str, Any]
    try:
        if checkpoint is not None and is_driver_file(checkpoint):  # networks alone
            file, kept = checkpoint, read_run(run_folder, checkpoint)
            agent.load_weights(kept.weights)
            hooks = {"CountRaces": kept.statistics}
        else:
            file, state = read_state(run_folder, checkpoint, settings)
            agent.load_state_dict(state["agent"])
            hooks = state["hooks"]
        statistics, stored = hooks["CountRaces"], hooks.get("StoreRaces", {}).get("buffers")
        best = best_races(hooks[DrawPictures.__name__]) if DrawPictures.__name__ in hooks else {}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is no checkpoint of a training: it holds no {error}") from error
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{file} does not fit the configuration in {run_folder}: {one_line(error)}") from error
    actor = builder.make_actor(
        agent.evaluation_network, pick_device(settings.run.torch_device), seeds.rng("mind/actor")
    )
    memory = None if stored is None else _memory_of(stored, settings, spaces, seeds)
    frames_total, training_s = int(statistics["frames_total"]), float(statistics["training_s"])
    return RunMind(settings, spaces, agent, actor, memory, best, frames_total, training_s)


def drive_and_gather(run: RunMind, entry: MapEntry, n_races: int, maps_folder: Path) -> MindNumbers:
    """Drive a map greedily and gather the numbers behind the pictures.

    Args:
        run: drives.
        entry: the map.
        n_races: 1 or more; the first is greedy throughout, later ones begin as those of `evaluate_map` do.
        maps_folder: where tracks and reference lines lie.

    Raises:
        UserError: if the map can't be used.
        GameError: if the game keeps failing.
    """
    settings = run.settings
    races = _driven(run, entry, n_races, maps_folder)
    mind = Mind(
        agent=run.agent,
        settings=settings,
        spaces=run.spaces,
        reward=make_reward(settings, run.spaces, SeedTree(settings.run.seed)),
        rules=MiniRaceRules.from_settings(settings.replay, linear(settings.agent.gamma_schedule, run.frames_total)),
        frames_total=run.frames_total,
        training_s=run.training_s,
        line_m=_line_m(entry, settings, maps_folder) if races[0].has_positions else None,
    )
    return gather_numbers(mind, races[0], races, None, run.best.get(entry.map_name), run.memory)


def _driven(run: RunMind, entry: MapEntry, n_races: int, maps_folder: Path) -> Sequence[RecentRace]:
    builder, rng = make_games_builder(run.settings), SeedTree(run.settings.run.seed).rng("mind/games")
    told = stats_of_entry(entry) | {"is_explo": False}
    races = []
    with contextlib.closing(builder.make_games(0, maps_folder, rng)) as games:
        for number in range(1, n_races + 1):
            n_forced = FORCED_START_ACTIONS if number > 1 else 0
            forced = forced_actions(run.settings, run.spaces, entry, number, n_forced)
            ended = rollout(games, entry, functools.partial(greedy_after, forced, run.actor))
            columns: dict[str, Any] = {  # what a game hands out may be its own memory
                name: value.copy() if hasattr(value, "copy") else value for name, value in ended.rollout_results.items()
            }
            races.append(RecentRace(columns, ended.end_race_stats | told))
    return races


def _for_one_game(settings: Settings, torch_device: str | None) -> Settings:
    """The run's settings, to be played in one game by one process, and without waiting for a compiler."""
    changes: dict[str, Any] = {"use_torch_compile": False, "n_collectors": 1, "games_per_collector": 1}
    changes |= {"sampling": "asynchronous"}
    if settings.game.game == "simulated":
        changes["game_transport"] = "in_process"
    if torch_device is not None:
        changes["torch_device"] = torch_device
    return settings_from_flat(settings.flat() | changes)


def _memory_of(stored: dict[str, Any], settings: Settings, spaces: Spaces, seeds: SeedTree) -> Memory:
    memory = make_configured_memory(settings, spaces, seeds)
    try:
        memory.load_state_dict(stored)
    except (KeyError, RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise CheckpointError(
            f"the checkpoint's replay memory does not fit the configuration: {one_line(error)}"
        ) from error
    return memory


def _line_m(entry: MapEntry, settings: Settings, maps_folder: Path) -> Any:
    """The map's reference line; None where there is none."""
    with contextlib.suppress(UserError):
        spacing_m = settings.observation.distance_between_zone_centers_m
        return load_reference_line(maps_folder / entry.reference_line, spacing_m)
    return None
