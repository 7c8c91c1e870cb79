"""A user's Gymnasium environment as games: spaces, episodes, rewards, ends, and unusable spaces."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from trackmania_rl.drivers.evaluation import TrainedDriver, evaluate_environment
from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.memory import rows_of_race
from trackmania_rl.games.gymnasium_games import GymnasiumGames
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.games.stepped_envs import EnvironmentFaultError, env_action
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.run import train
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import MapEntry, SettingsError, load_settings, settings_from_flat

from .conftest import make_memory

ENTRY = MapEntry(map_name="counting", is_explo=True, fill_buffer=True)
EPISODE = 5


class Counting(gymnasium.Env[Any, Any]):
    """Observes how often it was stepped in a bounded float and where it began in an unbounded one; ends after 5."""

    observation_space = spaces.Dict({"began": spaces.Box(-np.inf, np.inf, (1,)), "n": spaces.Box(0.0, 10.0, (1,))})
    action_space: spaces.Space[Any] = spaces.Discrete(3, start=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n, self.began, self.actions = 0, float(self.np_random.random()), []
        return self._seen(), {}

    def step(self, action):
        self.n += 1
        self.actions.append(action)
        return self._seen(), float(np.sum(action)), self.n == EPISODE and np.ndim(action) == 0, self.n == EPISODE, {}

    def _seen(self):
        return {"began": np.array([self.began], np.float32), "n": np.array([self.n], np.float32)}


class CountingNumbers(Counting):
    action_space = spaces.Box(-1.0, 1.0, (2,))


class CountingChoices(Counting):
    action_space = spaces.MultiDiscrete([3, 2])


class TooManyChoices(Counting):
    action_space = spaces.MultiDiscrete([40, 40])


class Unbounded(Counting):
    action_space = spaces.Box(-np.inf, np.inf, (2,))


class Lists(Counting):
    observation_space = spaces.Sequence(spaces.Discrete(3))


class OldReset(Counting):
    def reset(self):
        return super().reset()[0]


class LacksAnEntry(Counting):
    def _seen(self):
        return {"n": np.zeros(1, np.float32)}


class ObservesTooMuch(Counting):
    def _seen(self):
        return {**super()._seen(), "n": np.zeros(1 + self.n, np.float32)}


class RewardsAnArray(Counting):
    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, np.ones(1), *ends


class OldStep(Counting):
    def step(self, action):
        return super().step(action)[:4]


class Filmed(Counting):
    """Observes, beside a number, a picture in which each step has a brightness of its own."""

    observation_space = spaces.Dict({"camera": spaces.Box(0, 255, (40, 60, 3), np.uint8), "n": spaces.Box(0, 10, (1,))})

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {"height_m": 2.5 * self.n, "position": np.array([self.n, -self.n])}

    def _seen(self):
        return {"camera": np.full((40, 60, 3), 10 * self.n, np.uint8), "n": np.array([self.n], np.float32)}


class OnlyFilmed(Filmed):
    observation_space = spaces.Box(0, 255, (40, 60), np.uint8)

    def _seen(self):
        return np.full((40, 60), 10 * self.n, np.uint8)


def vector_of(env, num_envs, mode="DISABLED", **options):
    return gymnasium.vector.SyncVectorEnv([partial(env, **options)] * num_envs, autoreset_mode=AutoresetMode[mode])


@pytest.fixture
def settings(repository_root):
    return load_settings(repository_root / "config_files" / "config.py", {"games_per_collector": 2})


def games_of(settings, env, seed=1):
    return GymnasiumGames(settings, env=env).make_games(0, Path(), np.random.default_rng(seed))


def decide(games, action):
    received = games.recv()
    n = len(received.ids)
    decision = BatchDecision(np.array([action] * n), np.ones(n, dtype=bool), np.full((n, 3), 0.5, dtype=np.float32))
    games.send(received.ids, decision)
    return received


def test_spaces_are_those_of_the_environment(settings):
    of_choice, of_numbers = (GymnasiumGames(settings, env=env).spaces for env in (Counting, CountingNumbers))
    assert of_choice.action == spaces.Discrete(3, start=2)
    assert of_choice.float_mean == (0.0, 0.0, 5.0)
    assert of_choice.float_std == (1.0, 1.0, 5.0)
    changed = settings_from_flat(settings.flat() | {"temporal_mini_race_duration_actions": 100})
    of_mini_races = GymnasiumGames(changed, env=Counting).spaces
    assert (of_mini_races.float_mean[0], of_mini_races.float_std[0]) == (50.0, 50.0)
    assert of_choice.n_values == 3
    assert of_numbers.action_shape == (2,)
    assert of_numbers.n_values == 1


def test_an_episode_becomes_a_race(settings):
    games = games_of(settings, Counting)
    games.begin(0, ENTRY)
    for n in range(EPISODE):
        received = decide(games, 1)
        assert received.ids.tolist() == [0]
        assert received.floats[0, [0, 2]].tolist() == [0, n]
        assert received.is_first.tolist() == [n == 0]
    received = games.recv()
    assert len(received.ids) == 0
    race = received.ended[0]
    assert race.columns["state_float"][:, 2].tolist() == [0, 1, 2, 3, 4, 5], "the last one is the true one"
    assert race.columns["actions"].tolist() == [1] * EPISODE
    assert games._envs[0].unwrapped.actions == [3] * EPISODE, "which begin at 2 there"
    assert race.facts.terminated
    assert race.facts.meters == 15.0
    rewarded = RaceReward(settings, GymnasiumGames(settings, env=Counting).spaces, SeedTree(0))(
        race.rollout_results(), settings, 0
    )
    assert rewarded.rewards.tolist() == [3.0] * EPISODE
    assert rewarded.potentials.tolist() == [0.0] * (EPISODE + 1)


class Levels(Counting):
    """Observe how long the path of the level is."""

    def reset(self, *, seed=None, options=None):
        self.options = options
        super().reset(seed=seed)
        self.n = len(options["map_path"]) if options else 0
        return self._seen(), {}


def vector_of_levels(num_envs):
    return vector_of(Levels, num_envs)


@pytest.mark.parametrize("env", [Levels, vector_of_levels])
def test_a_level_of_the_map_cycle_reaches_the_environment(repository_root, env):
    cycle = [{"map_name": "levels", "map_path": path, "is_explo": True, "fill_buffer": True} for path in ("a=3", "b")]
    changes = {"games": partial(GymnasiumGames, env=env), "games_per_collector": 2, "map_cycle": cycle}
    settings = load_settings(repository_root / "config_files" / "config_cartpole.py", changes)
    games = games_of(settings, env)
    for entry in (ENTRY, *settings.game.map_cycle):
        games.begin(0, entry)
        games.begin(1, ENTRY)
        assert games.recv().floats[:, 2].tolist() == [len(entry.map_path), 0]
    if env is Levels:
        assert games._envs[0].unwrapped.options == {"map_name": "levels", "map_path": "b", "is_explo": True}


def test_actions_may_be_numbers_and_episodes_truncated(settings):
    games = games_of(settings, CountingNumbers)
    games.begin(1, ENTRY)
    for _ in range(EPISODE):
        decide(games, np.array([0.25, 0.5], dtype=np.float32))
    race = games.recv().ended[1]
    assert race.columns["actions"].shape == (EPISODE, 2)
    assert race.columns["actions"].dtype == np.float32
    assert not race.facts.terminated
    assert race.facts.cutoff_reason == "truncated"


def test_each_combination_of_choices_is_an_action(settings):
    games = games_of(settings, CountingChoices)
    games.begin(1, ENTRY)
    for action in range(EPISODE):
        decide(games, action)
    race = games.recv().ended[1]
    assert race.columns["actions"].tolist() == [0, 1, 2, 3, 4]
    chosen = [np.array(pair) for pair in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))]
    np.testing.assert_array_equal(games._envs[1].unwrapped.actions, chosen)


def test_episodes_begin_by_the_runs_seed(settings):
    def beginnings(seed):
        games = games_of(settings, Counting, seed)
        for game in (0, 1, 0):
            games.begin(game, ENTRY)
        return games.recv().floats[:, 1].tolist()

    assert beginnings(1) == beginnings(1) != beginnings(2)
    assert len(set(beginnings(1))) == 2


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("NoSuchGame-v3", r"GymnasiumGames\(env='NoSuchGame-v3'\): .*doesn't exist"),
        (TooManyChoices, r"TooManyChoices has the actions MultiDiscrete\(\[40 40\]\).* at most 1024 combinations"),
        (Unbounded, r"Unbounded has the actions Box\(-inf, .*Discrete\(n\), .* and a bounded Box"),
        (Lists, r"Lists has the observations Sequence\(.*cannot be flattened to floats"),
    ],
)
def test_unlearnable_data_are_named(settings, env, message):
    with pytest.raises(SettingsError, match=message):
        GymnasiumGames(settings, env=env)


def test_a_part_that_makes_no_games_is_named(settings):
    game = settings.game.model_copy(update={"games": "builtins:id"})
    with pytest.raises(SettingsError, match=r"games = 'builtins:id' made a int; derive it from GamesBuilder"):
        make_games_builder(settings.model_copy(update={"game": game}))


@pytest.mark.parametrize(
    ("env", "fault"),
    [
        (OldReset, r"OldReset: reset\(seed=...\) raises TypeError: .*'seed'"),
        (OldStep, r"OldStep breaks Gymnasium's API: step\(\) returns \(.* and not \(Dict\(.*, reward, terminated,"),
        (ObservesTooMuch, r"ObservesTooMuch breaks .*: step\(\) returns .* not \(Dict.*: it has 3 numbers, not 2"),
        (RewardsAnArray, r"RewardsAnArray breaks .*: step\(\) returns .* reward, terminated, truncated, info\): "),
        (LacksAnEntry, r"LacksAnEntry breaks Gymnasium's API: reset\(\) returns .* and not \(Dict.*, info\): 'began'"),
    ],
)
def test_an_environment_that_breaks_the_api_is_named_with_its_fault(settings, env, fault):
    for sound in (Counting, CountingNumbers):
        GymnasiumGames(settings, env=sound).check()
    with pytest.raises(EnvironmentFaultError, match=rf"^games: {fault}") as told:
        GymnasiumGames(settings, env=env).check()
    assert "\n" not in str(told.value)


def counting_spaces():
    return Counting.observation_space, Counting.action_space


def other_spaces():
    return Counting.observation_space, spaces.Discrete(7)


class Robot(OldStep):
    """Note the processes that touch it."""

    def __init__(self):
        with Path(os.environ["ROBOT_LOG"]).open("a") as log:
            print(os.getpid(), file=log)


def test_only_the_first_collector_touches_an_environment_with_given_spaces(repository_root, tmp_path, monkeypatch):
    log = tmp_path / "robot.log"
    monkeypatch.setenv("ROBOT_LOG", str(log))
    games = {"games": partial(GymnasiumGames, env=Robot, spaces=counting_spaces), "n_collectors": 1}
    settings = load_settings(repository_root / "config_files" / "config_cartpole.py", games)
    with pytest.raises(UserError, match="collector 0 cannot play"):
        train(settings, output_folder=tmp_path)
    (pid,) = map(int, log.read_text().split())
    assert pid != os.getpid()
    assert "Robot breaks Gymnasium's API: step() returns" in next(tmp_path.rglob("train.log")).read_text()


def test_an_environment_must_have_the_spaces_given(settings):
    with pytest.raises(EnvironmentFaultError, match=r"Counting has the spaces .* not those given: .*Discrete\(7\)"):
        GymnasiumGames(settings, env=Counting, spaces=other_spaces()).make_games(0, Path(), np.random.default_rng(0))


class Drawn(Counting):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((16, 24, 3), 40 * self.n, np.uint8)


class DrawnWith(Drawn):
    def __init__(self, **options):
        super().__init__(**options)


def drawn_vector(num_envs, render_mode=None):
    return vector_of(Drawn, num_envs, render_mode=render_mode)


class AlwaysFirst:
    """Actor that keeps its observations."""

    def __init__(self):
        self.floats = []

    def act_batch(self, images, floats):
        self.floats.append(floats)
        return BatchDecision(np.zeros(1, np.int64), np.ones(1, dtype=bool), np.zeros((1, 3), np.float32))


def driver_of(settings, env):
    given = settings_from_flat({**settings.flat(), "games": partial(GymnasiumGames, env=env)})
    spaces = make_games_builder(given).spaces
    return TrainedDriver(given, spaces, AlwaysFirst(), 0, 0.0, Path())


def test_a_driver_acts_on_the_environments_own_observation(settings):
    driver, env = driver_of(settings, Counting), Counting()
    observation, _ = env.reset(seed=3)
    assert driver.act(observation) == 2, "the first one, which is 2 there"
    np.testing.assert_array_equal(driver.actor.floats[0], [[0, observation["began"][0], 0]])
    env.step(driver.act(observation))
    for wrong in ({"n": np.zeros(1)}, np.zeros(3), {"began": np.zeros(2), "n": np.zeros(1)}):
        with pytest.raises(UserError, match=r"act: the driver takes an observation of Dict"):
            driver.act(wrong)


@pytest.mark.parametrize("env", [Drawn, DrawnWith, drawn_vector])
def test_episodes_are_evaluated_and_the_first_one_is_filmed(settings, tmp_path, env):
    episodes = evaluate_environment(driver_of(settings, env), 2, tmp_path / "film.mp4")
    assert [(one.meters, one.n_actions, one.cutoff_reason) for one in episodes] == [(10.0, EPISODE, "terminated")] * 2
    film = cv2.VideoCapture(str(tmp_path / "film.mp4"))
    assert (film.get(cv2.CAP_PROP_FRAME_COUNT), film.get(cv2.CAP_PROP_FPS)) == (EPISODE + 1, 5)
    levels = [film.read()[1].mean() for _ in range(EPISODE + 1)]
    np.testing.assert_allclose(levels, 40 * np.arange(EPISODE + 1), atol=8)
    assert evaluate_environment(driver_of(settings, Counting), 1, None) == episodes[:1]
    with pytest.raises(UserError, match='Counting renders no RGB arrays to film: let it take render_mode="rgb_array"'):
        evaluate_environment(driver_of(settings, Counting), 1, tmp_path / "none.mp4")
    assert [file.name for file in tmp_path.iterdir()] == ["film.mp4"]


@pytest.mark.parametrize(("env", "n_floats"), [(Filmed, 2), (OnlyFilmed, 1), (partial(vector_of, Filmed), 2)])
def test_images_become_frames_and_infos_columns(settings, env, n_floats):
    sizes = {"image_width_px": 30, "image_height_px": 20, "frames_per_state": 2}
    settings = settings.model_copy(update={"game": settings.game.model_copy(update=sizes)})
    builder = GymnasiumGames(settings, env=env, info=("height_m", "position"))
    spaces_of_run, games = builder.spaces, builder.make_games(0, Path(), np.random.default_rng(1))
    assert (spaces_of_run.image_shape, spaces_of_run.n_floats) == ((2, 20, 30), n_floats)
    games.begin(0, ENTRY)
    received = [decide(games, 1) for _ in range(EPISODE)]
    assert [one.images[0, :, 0, 0].tolist() for one in received[:3]] == [[0, 0], [0, 10], [10, 20]]
    ended = games.recv().ended[0]
    race = ended.columns
    assert race["frames"].shape == (EPISODE + 1, 1, 20, 30)
    assert race["frames"][:, 0, 7, 7].tolist() == [0, 10, 20, 30, 40, 50]
    assert race["info_height_m"].tolist() == [2.5, 5.0, 7.5, 10.0, 12.5]
    assert race["info_position"].tolist() == [[n, -n] for n in range(1, EPISODE + 1)]
    buffer, _ = make_memory(settings, spaces_of_run)
    ended.rewards, ended.potentials = race["rewards"], np.zeros(EPISODE + 1, np.float32)
    read = buffer.storage.get(buffer.extend(rows_of_race(ended, settings)))
    np.testing.assert_array_equal(read.state_img, np.concatenate([one.images for one in received]))
    with pytest.raises(SettingsError, match=r"Counting gives no image of 30 x 20 pixels: .* has 0 images; set image_w"):
        GymnasiumGames(settings, env=Counting)
    lacking = GymnasiumGames(settings, env=env, info=("depth_m",))
    with pytest.raises(EnvironmentFaultError, match=r"step\(\) returns .*, info with depth_m\): 'depth_m'"):
        lacking.check()


@pytest.mark.parametrize("env", ["CartPole-v1", partial(gymnasium.make, "CartPole-v1")])
@pytest.mark.parametrize(("horizon", "limit"), [(700, 700), (100, 500), (None, 500)])
def test_a_horizon_beyond_an_environments_own_limit_replaces_it(settings, env, horizon, limit):
    game = settings.game.model_copy(update={"horizon": horizon})
    games = games_of(settings.model_copy(update={"game": game}), env)
    assert games._envs[0].spec is not None
    assert games._envs[0].spec.max_episode_steps == limit


@pytest.mark.parametrize(
    ("env", "actions"),
    [(Counting, [0, 1]), (CountingChoices, [5, 2]), (CountingNumbers, np.float32([[0.5, 1], [-1, 0]]))],
)
def test_a_vector_environment_steps_when_each_episode_has_its_decision(settings, env, actions):
    games = games_of(settings, partial(vector_of, env))
    own = GymnasiumGames(settings, env=env).spaces
    for game in (0, 1):
        games.begin(game, ENTRY)
    for _ in range(EPISODE):
        received = games.recv()
        assert received.ids.tolist() == [0, 1]
        for game in (0, 1):  # a decision each, such as those of exploration and of evaluation
            games.send(np.array([game]), BatchDecision(actions[game : game + 1], np.ones(1, bool), np.zeros((1, 3))))
    ended = games.recv().ended
    assert len({race.columns["state_float"][0, 1] for race in ended.values()}) == 2, "seeds of their own"
    for game, race in ended.items():
        assert race.columns["state_float"][:, 2].tolist() == [0, 1, 2, 3, 4, 5]
        np.testing.assert_array_equal(race.columns["actions"], [actions[game]] * EPISODE)
        in_env = [env_action(own, actions[game])] * EPISODE
        np.testing.assert_allclose(race.columns["rewards"], [np.sum(action) for action in in_env])
        assert race.facts.terminated == (env is Counting)
    for _ in range(3):  # the other one has no episode, as at the end of a turn of synchronous sampling
        games.begin(1, ENTRY)
        while not (received := games.recv()).ended:
            decision = BatchDecision(actions[:1], np.ones(1, bool), np.zeros((1, 3)))
            games.send(received.ids, decision)
        assert len(received.ended[1].columns["actions"]) == EPISODE
    games.begin(0, ENTRY)
    assert games.recv().floats[0, 2] == 0
    assert games.close()


def test_an_ids_vector_environment_has_the_horizon_and_does_not_reset_by_itself(settings):
    game = settings.game.model_copy(update={"horizon": 700})
    games = partial(GymnasiumGames, settings.model_copy(update={"game": game}))
    made = games(env="CartPole-v1", vectorization_mode="sync").make_games(0, Path(), np.random.default_rng(1))
    assert made._envs[0].spec.max_episode_steps == 700
    assert made.n_games == 2
    with pytest.raises(SettingsError, match="resets its environments by itself; make it with vector_kwargs="):
        games(env=partial(vector_of, Counting, mode="NEXT_STEP"))


VIEWS = {
    "before": {"column": "floats", "shift": [-3, -1]},
    "acted": {"column": "actions", "shift": -1},
    "earlier": {"column": "floats", "shift": "-4:-2"},
    "earned": {"column": "rewards", "shift": "0:1", "input": False},
}


def with_views(settings):
    observation = settings.observation.model_validate(settings.observation.model_dump() | {"views": VIEWS})
    return settings.model_copy(update={"observation": observation})


def test_a_driver_with_views_acts_as_in_its_evaluation(settings):
    driver, alone = (driver_of(with_views(settings), Counting) for _ in range(2))
    evaluate_environment(driver, 2, None)
    env = Counting()
    for number in range(2):
        observation, _ = env.reset(seed=number)
        act, is_over = alone.begin_episode(), False
        while not is_over:
            observation, _, is_over, _, _ = env.step(act(observation))
    began = [1, 4, 7, 13, 16, 19]  # drawn by other seeds
    evaluated, played = (np.delete(np.concatenate(each.actor.floats), began, axis=1) for each in (driver, alone))
    assert len(played) == 2 * EPISODE
    np.testing.assert_array_equal(played, evaluated)
    with pytest.raises(UserError, match=r"act: views show .*driver.begin_episode\(\)"):
        alone.act(observation)


@pytest.mark.parametrize(("env", "actions"), [(Counting, (2, 0, 1)), (CountingNumbers, ((0.5, -1), (0.25, 1), (1, 1)))])
def test_views_are_seen_as_they_are_learned_from(settings, env, actions):
    settings = with_views(settings)
    spaces, games = GymnasiumGames(settings, env=env).spaces, games_of(settings, env)
    n_of_action = 3 if env is Counting else 2
    assert (spaces.n_row_floats, spaces.n_floats) == (3, 3 + 2 * 3 + n_of_action + 3 * 3)
    games.begin(0, ENTRY)
    seen = [decide(games, np.array(actions[n % 3])).floats[0] for n in range(EPISODE)]
    assert seen[2][3:9].tolist() == [*seen[0][:3], *seen[1][:3]]
    acted = seen[2][9 : 9 + n_of_action]
    np.testing.assert_array_equal(acted, np.eye(3)[actions[1]] if env is Counting else actions[1])
    assert seen[4][9 + n_of_action :].tolist() == [x for n in (0, 1, 2) for x in seen[n][:3]]
    ended = games.recv().ended[0]
    rollout = ended.columns
    buffer, _ = make_memory(settings, spaces)
    ended.rewards, ended.potentials = rollout["rewards"], np.zeros(EPISODE + 1, np.float32)
    read = buffer.storage.get(buffer.extend(rows_of_race(ended, settings)))
    np.testing.assert_array_equal(read.state_float, seen)
    np.testing.assert_array_equal(read.entries["earned"][:, 0], rollout["rewards"])
