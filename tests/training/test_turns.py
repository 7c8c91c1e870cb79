"""Synchronous sampling: the same seed gives the same run, also where it was interrupted and went on."""

import hashlib
import math
import threading

import pytest
import torch

from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.channels.rollouts import Rollouts
from trackmania_rl.experience_replay.ring_buffer import rows_of_state
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.multiprocess.collector_process import CollectorTask, make_begin_turn, make_parts
from trackmania_rl.race.race import CollectorProgress
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import iterate_races
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.seeds import SeedTree
from trackmania_rl.training.building import begin_run
from trackmania_rl.training.collector import TurnTakingCollector
from trackmania_rl.training.hooks.figures import WriteFigures
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.learner import learn

from .conftest import edit, make_context, open_channels_here

N_COLLECTORS, N_GAMES = 2, 3
TIMED = ("wall_s", "session", "learning")
OF_CLOCK = ("training_s", "kept_at_s")  # training time: of the run, and of the last recording of each map
GENERATED = {
    "map_name": "many",
    "generator": {"difficulty": (0.0, 0.4), "first_seed": 0, "last_seed": 99, "races_per_track": 2},
    "is_explo": True,
    "fill_buffer": True,
    "repeat": 2,
}

THREE_MAPS = tuple(
    {"map_name": name, "map_path": f"{name}.toml", "reference_line": f"{name}_0.5m.npy", "is_explo": True}
    | {"fill_buffer": True, "repeat": repeat}
    for name, repeat in (("valley", 1), ("ring", 2), ("kart", 1))
)


class KilledError(Exception):
    """As if the process was gone."""


class KillAfter(Hook):
    """Kills a session after so many races."""

    def __init__(self, n_races):
        self._left = n_races

    def on_race(self, race):
        self._left -= 1

    def after_updates(self):
        if self._left < 0:
            raise KilledError


class Session:
    """One start of a run: a learner in this thread, collectors in threads of their own."""

    def __init__(self, live, folder, maps_folder, session, n_frames, killed_after_races=math.inf):
        settings, seeds = live.current, SeedTree(live.current.run.seed)
        self.channels = open_channels_here(settings, Rollouts)
        self.run = make_context(live, seeds, folder, self.channels, lambda: 0.0, session=session)
        self.hooks = begin_run(self.run, [KillAfter(killed_after_races)])
        self._should_stop = lambda: self.run.statistics.frames_total >= n_frames
        tasks = [
            CollectorTask(
                index=index,
                name=f"collector-{index}/session-{session}/start-1",
                maps_folder=maps_folder,
                tracks_folder=folder.path / f"tracks-{index}",
                live_folder=folder.path / "live",
                rollouts=self.channels.rollouts.open_collector(index),
                run_state=self.channels.run_state,
                make_games_builder=make_games_builder,
                make_agent_builder=make_agent_builder,
                progress=self.run.progress.get(index, CollectorProgress()),
            )
            for index in range(settings.game.n_collectors)
        ]
        self._threads = [threading.Thread(target=self._collect, args=(task,)) for task in tasks]

    def _collect(self, task):
        builder = make_games_builder(task.run_state.settings)
        parts = make_parts(task, builder.spaces)
        games = builder.make_games(task.index, task.maps_folder, SeedTree(0).rng("unused"))
        TurnTakingCollector(parts, games, make_begin_turn(task, builder.spaces, parts)).run()

    def play(self, *, is_killed=True):
        """Play; where it is broken off, but is not killed, its hooks end as ever."""
        for thread in self._threads:
            thread.start()
        ending = self.hooks
        try:
            learn(self.run, self.hooks, self._should_stop)
        except KilledError:
            ending = self.hooks if not is_killed else [hook for hook in self.hooks if isinstance(hook, WriteFigures)]
        finally:
            self.channels.run_state.publish(stop=True)
            for hook in ending:
                hook.end()
            for thread in self._threads:
                thread.join()


def digest_of(state):
    """All that a checkpoint holds, tensors as digests, but for the time that training took."""
    if isinstance(state, dict):
        return {name: digest_of(value) for name, value in state.items() if name not in OF_CLOCK}
    if isinstance(state, list):
        return [digest_of(value) for value in state]
    if isinstance(state, torch.Tensor):
        return hashlib.sha256(state.contiguous().numpy().tobytes()).hexdigest()
    return state


def races_of(race_log):
    """Return the race log without times of the clock and the number of sessions."""
    races = iterate_races(race_log)
    return [{name: value for name, value in race.items() if name not in TIMED} for race in races]


@pytest.fixture
def play_run(live, tmp_path, repository_root):
    """`play_run(name, 200, 400, setting=value)` plays a run to 200 frames, goes on to 400; returns races and state.

    With `killed_after_races=(5, 9)` it is first killed after so many races each, and goes on from its last checkpoint.
    """
    small = {
        "sampling": "synchronous",
        "n_collectors": N_COLLECTORS,
        "games_per_collector": N_GAMES,
        "image_width_px": 0,
        "image_height_px": 0,
        "cutoff_no_progress_within_ms": 600,
        "cutoff_race_longer_than_ms": 1500,
        "memory_size_schedule": ((0, 2000),),
        "map_cycle": (live.current.game.map_cycle[1].model_dump(), GENERATED),
        "evaluation_weights_decay": 0.9,
    }

    def play(name, *n_frames, killed_after_races=(), is_killed=True, **settings):
        edit(live, **{**small, **settings})
        folder = RunFolder.create(tmp_path, name)
        maps_folder = repository_root / "maps"
        for session, n_races in enumerate(killed_after_races, start=1):
            edit(live, checkpoint_interval_s=1e-9 if session < 3 else 3600.0)
            Session(live, folder, maps_folder, session, 10**9, n_races).play(is_killed=is_killed)
        edit(live, checkpoint_interval_s=3600.0)
        for session, until in enumerate(n_frames, start=1 + len(killed_after_races)):
            Session(live, folder, maps_folder, session, until).play()
        state = load_checkpoint(folder.path).state
        if (ring := state["replay"]["memory"].get("ring")) is not None:
            ring["columns"] = rows_of_state(ring)
        return races_of(folder.run_log), digest_of(state)

    return play


def test_the_same_seed_gives_the_same_run_also_when_it_was_interrupted(play_run):
    races, state = play_run("once", 350)
    assert len(races) >= 3 * N_COLLECTORS * N_GAMES
    assert state["n_turns"] >= 3
    assert state["agent"]["updates"] > 10
    assert [race["collector"] for race in races[: 2 * N_GAMES]] == [0] * N_GAMES + [1] * N_GAMES
    assert len({race["track"] for race in races if "track" in race}) > 3
    assert play_run("killed", 350, killed_after_races=(0, 8, 2)) == (races, state)
    assert play_run("broken off", 350, killed_after_races=(4, 2), is_killed=False) == (races, state)
    other_races, other_state = play_run("another seed", 350, seed=7)
    assert (races, state["agent"]) != (other_races, other_state["agent"])


VARIANTS = {
    "three maps": {"map_cycle": THREE_MAPS},
    "SAC": {
        "agent": "trackmania_rl.agents.torchrl_agent:SAC",
        "actions": "analog",
        "gamma_schedule": ((0, 0.99),),
        "n_collectors": 1,  # torch's own random state is shared by the threads that stand for collectors here
    },
    "PPO": {
        "agent": "trackmania_rl.agents.torchrl_agent:PPO",
        "memory": "trackmania_rl.experience_replay.rollout_store:RolloutStore",
        "gamma_schedule": ((0, 0.99),),
        "n_steps": 1,
        "temporal_mini_race_duration_actions": None,
        "expected_reward_per_action": 0.0,
        "oversample_long_term_steps": 0,
        "n_collectors": 1,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_killed_goes_on_as_if_it_was_not(play_run, variant):
    settings = VARIANTS[variant]
    races, state = play_run("once", 350, **settings)
    assert state["agent"]["updates"] > 10
    if variant == "three maps":
        assert [race["map"] for race in races[:N_GAMES]] == ["valley", "ring", "ring"]
        assert {race["map"] for race in races} == {"valley", "ring", "kart"}
    assert play_run("killed", 150, 350, killed_after_races=(5, 9), **settings) == (races, state)


def test_a_run_with_its_memory_on_disk_is_the_same_run_also_when_it_was_killed(play_run, caplog):
    settings = {"memory_size_schedule": ((0, 120), (150, 300))}
    races, state = play_run("in RAM", 450, **settings)
    ring = state["replay"]["memory"]["ring"]
    assert ring["end_row"] > 380, "the ring begins again"
    on_disk = play_run("on disk", 450, killed_after_races=(5, 4), replay_storage="disk", **settings)
    assert on_disk == (races, state)
    assert "without" not in caplog.text


def test_the_same_seed_gives_the_same_run_in_fragments(play_run):
    settings = {"batch_mode": "truncate_episodes", "rollout_fragment_length": 5}
    races, state = play_run("once", 350, **settings)
    assert state["agent"]["updates"] > 10
    assert state["n_turns"] >= 350 // (5 * N_COLLECTORS * N_GAMES)
    assert play_run("again", 350, **settings) == (races, state)
    resumed, _ = play_run("resumed", 200, 350, **settings)
    assert len(resumed) >= len(races) // 2, "it continues, with new races"
