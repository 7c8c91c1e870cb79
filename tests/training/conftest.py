"""A tiny configuration with distinct sizes (so that a swapped axis fails), and made-up races that fit it."""

import time

import numpy as np
import pytest

from trackmania_rl.agents.builder import IQN, make_agent_builder
from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.iqn import IQNAgent
from trackmania_rl.channels.rollouts import Rollouts
from trackmania_rl.channels.run_state import WEIGHTS_KINDS, Channels, SharedRunState
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import RunLog
from trackmania_rl.runs.snapshot import LiveSettings, write_snapshot
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings, settings_from_flat
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.training.building import as_hook, begin_run, make_configured_memory, make_reward
from trackmania_rl.training.collector import Evaluators, FragmentCutter, WeightPuller
from trackmania_rl.training.hooks import figures
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints, state_of
from trackmania_rl.training.hooks.figures import WriteFigures
from trackmania_rl.training.hooks.hook import RunContext
from trackmania_rl.training.learner import learn

TINY = (
    "float_hidden_dim=11",
    "dense_hidden_dimension=14",
    "iqn_embedding_dimension=9",
    "iqn_n=6",
    "iqn_k=10",
    "conv_channels=(3, 5)",
    "conv_kernel_sizes=(4, 3)",
    "conv_strides=(2, 1)",
    "batch_size=13",
    "memory_size_schedule=((0, 300),)",
    "memory_size_start_learn_schedule=((0, 50),)",
    "number_times_single_memory_is_used_before_discard=2.0",
    "send_shared_network_every_n_batches=2",
    "number_memories_trained_on_between_target_network_updates=26",
    "torch_device=cpu",
    "use_torch_compile=False",
    "minimum_free_disk_mb=0",
)


def edit(live, **values):
    """Put settings in force, of whatever group."""
    live.current = settings_from_flat(live.current.flat() | values)


class WatchedRunState(SharedRunState):
    """A run that ends when `is_over()`."""

    def __init__(self, settings):
        self.is_over = lambda: False
        super().__init__(settings, first_weights(settings))

    @property
    def stop_requested(self):
        return self.is_over()


def first_weights(settings):
    """Networks for the state of a run, the same as those of `players_of`."""
    builder = make_agent_builder(settings, make_games_builder(settings).spaces, SeedTree(1))
    return {kind: builder.make_network() for kind in WEIGHTS_KINDS}


def players_of(settings, run_state, seeds):
    """Explorer and evaluators of a collector, with the same first weights."""
    spaces = race_spaces(settings)
    rngs = {name: seeds.rng(name) for name in ("explorer", "evaluator")}

    def puller(name, kind):
        actor = Inferer(
            IQN(settings, spaces, SeedTree(1)).make_network(),
            n_quantiles=settings.agent.iqn_k,
            throttle_actions=spaces.throttle_actions,
            exploration_settings=settings.exploration,
            rng=rngs[name],
        )
        return WeightPuller(actor, run_state, kind)

    return puller("explorer", "exploration"), Evaluators(lambda: puller("evaluator", "evaluation"))


class KeepingSink:
    """Copies what is put, and has room only while `has_room`."""

    def __init__(self):
        self.has_room = True
        self.waited_s = 0.0
        self.races = []

    def acquire_frames(self, game, timeout_s=0.0):
        return np.zeros((1, 1, 15, 17), dtype=np.uint8) if self.has_room else None

    def put(self, game, race):
        self.races.append(race.copy())

    def close(self):
        """Nothing to let go of."""


def live_in(folder, repository_root):
    """The tiny configuration in a run folder of its own, with an image of 17 x 15 pixels."""
    overrides = (*TINY, "image_width_px=17", "image_height_px=15")
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", folder, overrides)
    live = LiveSettings(snapshot, load_settings(snapshot))
    live.refresh()  # so that tests may replace `current`
    return live


@pytest.fixture(scope="package", autouse=True)
def measure_the_test_loss_often():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(figures, "TEST_LOSS_EVERY_N_BATCHES", 3)
        yield


@pytest.fixture
def live(tmp_path, repository_root):
    return live_in(tmp_path, repository_root)


@pytest.fixture
def layout(live):
    return ObservationLayout(live.current.observation)


class KeepingLogger:
    """Logger that keeps its records."""

    def __init__(self):
        self.calls = []

    def do(self, kind, *record):
        self.calls.append((kind, *record))

    def close(self):
        pass

    def of(self, *kinds):
        """The records of some kinds."""
        return [record for kind, *record in self.calls if kind in kinds]

    def n_figures(self, prefix):
        """The number of calls with a figure of such a name."""
        return sum(any(name.startswith(prefix) for name in values) for values, _ in self.of("figures"))


@pytest.fixture
def logger(monkeypatch):
    """The only logger of runs."""
    logger = KeepingLogger()
    monkeypatch.setattr(figures, "open_loggers", lambda *_: [logger])
    return logger


class FedRollouts(Rollouts):
    """Is empty when the learner has asked in vain."""

    is_empty = False

    @property
    def has_races(self):
        return any(link.headers.poll() for link in self._links.values())

    def get(self, timeout_s):
        race = super().get(0.0)
        self.is_empty = race is None
        return race


def open_channels_here(settings, kind=FedRollouts):
    """The channels of a run within this process, with room for three races of up to 1000 actions."""
    run_state = SharedRunState(settings, first_weights(settings))
    spaces = make_games_builder(settings).spaces
    rollouts = kind(1000, spaces, slots_per_collector=3, stop=run_state.stop_flag)
    return Channels(rollouts, run_state)


def make_context(live, seeds, folder, channels, clock=time.monotonic, **more):
    """The context of a run's hooks, as the command makes it."""
    settings, spaces = live.current, make_games_builder(live.current).spaces
    builder = make_agent_builder(settings, spaces, seeds)
    return RunContext(
        live=live,
        spaces=spaces,
        reward=make_reward(settings, spaces, seeds),
        agent=builder.make_learner(builder.make_network()),
        memory=make_configured_memory(settings, spaces, seeds),
        channels=channels,
        folder=folder,
        run_log=RunLog(folder.run_log, clock, more.get("session", 1)),
        statistics=TrainingStatistics(clock),
        **more,
    )


class LocalRun:
    """A run within this process, with all hooks that ship, which is fed with races."""

    def __init__(
        self,
        live,
        layout,
        folder,
        hooks=(),
        seed=1,
        clock=time.monotonic,
        weights_from=None,
        datasets=(),
        should_stop=None,
        accepted_changes=(),
    ):
        channels = open_channels_here(live.current)
        self.rollouts, self.run_state = channels.rollouts, channels.run_state
        self._sink = self.rollouts.open_collector(0)
        self.context = make_context(live, SeedTree(seed), folder, channels, clock)
        assert isinstance(self.context.agent, IQNAgent)
        self.agent = self.context.agent
        self.buffer, self.buffer_test = self.context.memory.buffer, self.context.memory.buffer_test
        self._should_stop = should_stop or (lambda: self.rollouts.is_empty)
        self.compilation = None
        self.hooks = begin_run(
            self.context,
            [as_hook(hook) for hook in hooks],
            weights_from=weights_from,
            datasets=datasets,
            accepted_changes=accepted_changes,
        )

    @property
    def frames_total(self):
        return self.context.statistics.frames_total

    def hook(self, kind):
        """The registered hook of a kind."""
        (found,) = (hook for hook in self.hooks if isinstance(hook, kind))
        return found

    def put(self, race):
        """Hand in a race as a collector does."""
        assert self._sink.acquire_frames(0, timeout_s=0.0) is not None, "races that came before were not released"
        self._sink.put(0, race)

    def train(self):
        """Train until there is no race."""
        self.rollouts.is_empty = False
        self.context.stop_reason = None
        learn(self.context, self.hooks, self._should_stop, self.compilation)

    def save(self):
        """Write a checkpoint; return its folder."""
        return self.hook(SaveCheckpoints)._write(state_of(self.context))

    def train_on(self, races):
        """Learn from races, one after the other."""
        for race in races:
            self.put(race)
            self.train()

    def close_files(self):
        """End what holds files open."""
        self.hook(WriteFigures).end()
        self.context.run_log.close()


@pytest.fixture
def make_run(live, layout, tmp_path):
    """`make_run(hooks, name="run", seed=1, ...)` begins a run in the folder of this name, or goes on with it."""
    runs = []

    def make(hooks=(), name="run", **how):
        runs.append(LocalRun(live, layout, RunFolder.create(tmp_path, name), hooks, **how))
        return runs[-1]

    yield make
    for run in runs:
        run.close_files()


def race_maker(live, layout):
    """`make_race(n_actions, race_finished, name=value, ...)` gives a race with random observations.

    What is named is in its facts.
    """
    rng = np.random.default_rng(5)
    game = live.current.game

    def make(n_actions, race_finished, **others):
        n_states = n_actions + 1
        floats = (layout.mean + layout.std * rng.standard_normal((n_states, layout.float_input_dim))).astype(np.float32)
        floats[:, layout["mini_race_time_actions"]] = 0
        columns = {
            "frames": rng.integers(0, 256, (n_states, 1, game.image_height_px, game.image_width_px), dtype=np.uint8),
            "state_float": floats,
            "actions": rng.integers(0, len(game.inputs), n_actions),
            "action_was_greedy": rng.random(n_actions) < 0.8,
            "input_w": np.ones(n_actions, dtype=bool),
            "q_values": rng.standard_normal((n_actions, len(game.inputs))).astype(np.float32),
            "action_log_prob": np.full(n_actions, np.nan, dtype=np.float32),
            "car_gear_and_wheels": np.zeros((n_states, len(CAR_COLUMNS)), dtype=np.float32),
            "current_zone_idx": np.arange(n_states),
            "meters_advanced_along_centerline": np.cumsum(rng.random(n_states)),
            "position_m": floats[:, :3],
            "speed_m_s": np.abs(floats[:, 3]).astype(np.float64),
        }
        facts = {
            "map_name": "valley",
            "track": "valley",
            "is_explo": True,
            "fill_buffer": True,
            "n_actions": n_actions,
            "race_finished": race_finished,
            "terminated": race_finished,
            "race_time_ms": n_actions * game.ms_per_action,
            "cutoff_reason": None if race_finished else "no_progress",
            "furthest_zone_idx": n_states,
            "meters": 978.0,
        }
        return Race(columns, RaceFacts(**(facts | others)))

    return make


@pytest.fixture
def make_race(live, layout):
    return race_maker(live, layout)


def n_stored(run):
    return len(run.buffer) + len(run.buffer_test)


def fragments_of(race, n_steps, n_actions):
    """A race as a collector hands it on that cuts it every so many actions."""
    cutter, fragments = FragmentCutter(n_steps), []
    for n_decided in range(1, race.n_actions):
        cutter.n_decided = n_decided
        if cutter.n_to_hand_on == n_actions:
            states, fragment = cutter.cut()
            columns = {
                name: column[states.start : states.stop - (len(column) == race.n_actions)]
                for name, column in race.columns.items()
            }
            known = {name: getattr(race.facts, name) for name in ("map_name", "track", "is_explo", "fill_buffer")}
            facts = RaceFacts(**known, n_actions=len(columns["actions"]), furthest_zone_idx=1, fragment=fragment)
            fragments.append(Race(columns, facts))
    last = race.facts.with_changes(fragment=cutter.end(race.n_actions))
    return [*fragments, Race(race.columns, last)]
