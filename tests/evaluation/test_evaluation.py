"""Loading a run's driver, its observations, and its greedy races."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from trackmania_rl.drivers.evaluation import (
    MapEvaluation,
    TrainedDriver,
    evaluate_map,
    forced_starts,
    load_driver,
)
from trackmania_rl.errors import UserError
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.snapshot import SETTINGS_FILE, write_changes
from trackmania_rl.runs.store import save_checkpoint
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.track.named_maps import map_entries


@pytest.fixture(scope="module")
def driver(run_folder):
    return load_driver(run_folder)


@pytest.fixture(scope="module")
def manager(run_settings, maps_folder):
    launcher = SimulatedGameLauncher(find_free_port(), maps_folder)
    return GameInstanceManager(run_settings.game, run_settings.observation, launcher)


@pytest.fixture(scope="module")
def games(manager):
    with contextlib.closing(SocketGames([manager])) as games:
        yield games


class RecordingInferer:
    """Keeps its observations, and always decides for action 4."""

    def act_batch(self, frames, floats):
        self.frames, self.floats = frames, floats
        return BatchDecision(np.array([4]), np.array([True]), np.zeros((1, 12), dtype=np.float32))


@pytest.fixture
def bend(run_settings, maps_folder):
    return map_entries(run_settings, maps_folder)[0]


def test_races_differ_by_their_forced_start_only_and_repeat_exactly(driver, games, bend):
    evaluation = evaluate_map(driver, games, bend, n_races=4, n_forced_actions=12)
    again = evaluate_map(driver, games, bend, n_races=4, n_forced_actions=12)
    assert again.figures() == evaluation.figures()
    assert evaluation.n_forced_actions == (0, 12, 12, 12)
    inputs = [race.facts.inputs for race in evaluation.races]
    assert inputs == [race.facts.inputs for race in again.races]
    assert inputs[0] == "0.00 press up\n"
    assert len(set(inputs)) == 4
    assert evaluation.figures()["finish_rate"] == 1.0
    assert evaluation.best_race.facts.race_time_ms == evaluation.figures()["best_ms"]


def test_a_race_lost_with_its_game_begins_again_with_the_forced_actions(driver, manager, games, bend):
    expected = evaluate_map(driver, games, bend, n_races=2)
    rollout = manager.rollout

    def losing_a_game(map_entry, policy, frames):
        decisions = iter(range(10_000))

        def act(image, floats):
            if next(decisions) == 15:
                manager._launcher.kill()
            return policy(image, floats)

        return rollout(map_entry, act, frames)

    manager.rollout = losing_a_game
    try:
        again = evaluate_map(driver, games, bend, n_races=2)
    finally:
        manager.rollout = rollout
    assert again.figures() == expected.figures()


def test_a_driver_sees_floats_normalized_or_not_and_an_image_if_it_was_trained_with_one(repository_root, run_settings):
    inferer, layout = RecordingInferer(), ObservationLayout(run_settings.observation)
    image = {"image_width_px": 40, "image_height_px": 30, "frames_per_state": 3}
    settings = load_settings(repository_root / "config_files" / "config.py", image)
    without, with_image = (TrainedDriver(s, race_spaces(s), inferer, 0, 0.0, Path()) for s in (run_settings, settings))
    floats = np.random.default_rng(3).normal(layout.mean, layout.std).astype(np.float32)
    floats[0] = 0
    assert without.act(floats) == 4
    assert inferer.frames.shape == (1, 1, 0, 0)
    np.testing.assert_array_equal(inferer.floats, floats[np.newaxis])
    without.act((floats - layout.mean) / layout.std)
    assert inferer.floats.dtype == np.float32
    np.testing.assert_allclose(inferer.floats[0], floats, rtol=1e-5, atol=1e-5 * layout.std.max())
    observation = {"image": np.ones((3, 30, 40), dtype=np.uint8), "floats": floats}
    assert with_image.act(observation) == 4
    assert inferer.frames.shape == (1, 3, 30, 40)
    action, state = without.predict(floats, deterministic=True)  # as Stable-Baselines3's models
    assert (action, action.dtype, state) == (4, np.dtype(np.int64), None)
    assert without.predict(np.stack([floats] * 3))[0].tolist() == [4] * 3
    batch = {name: np.stack([value] * 2) for name, value in observation.items()}
    assert with_image.predict(batch, state=None, episode_start=np.ones(2, dtype=bool))[0].tolist() == [4, 4]
    with pytest.raises(UserError, match="deterministic=True"):
        without.predict(floats, deterministic=False)
    for driver, wrong in ((with_image, floats), (without, observation), (without, floats[:-1])):
        with pytest.raises(UserError, match="make the environment with the configuration of its run"):
            driver.act(wrong)


def test_a_maps_figures():
    entry = MapEntry(map_name="m", map_path="m", reference_line="m", is_explo=False, fill_buffer=False)

    def race(finished, time_ms, meters):
        named = {"map_name": "m", "is_explo": False, "fill_buffer": False}
        return Race({}, RaceFacts(**named, race_finished=finished, race_time_ms=time_ms, meters=meters))

    races = (race(True, 3000, 50.0), race(False, 900, 70.0), race(True, 2000, 50.0), race(True, 2500, 50.0))
    evaluation = MapEvaluation(entry, races, (0, 10, 10, 10))
    figures = evaluation.figures()
    assert (figures["finish_rate"], figures["median_ms"], figures["mean_ms"]) == (0.75, 2500, 2500)
    assert evaluation.best_race_name == "m_2000"
    assert (figures["best_ms"], figures["best_meters"]) == (2000, 70.0)
    none_finished = MapEvaluation(entry, (race(False, 900, 30.4), race(False, 500, 40.6)), (0, 10))
    figures = none_finished.figures()
    assert (figures["best_ms"], figures["median_ms"]) == (None, None)
    assert none_finished.best_race_name == "m_unfinished_41m"


def test_forced_starts_accelerate_steer_and_never_brake(driver, bend):
    forward_and_turns = {0, 1, 2}
    none, keys = forced_starts(driver.settings, driver.spaces, bend, 2, 300)
    assert len(none) == 0
    assert set(keys.tolist()) == forward_and_turns
    settings = driver.settings
    analog = settings.model_copy(update={"game": settings.game.model_copy(update={"actions": "analog"})})
    (_, drawn), (_, again) = (forced_starts(analog, race_spaces(analog), bend, 2, 300) for _ in range(2))
    assert (drawn.shape, drawn.dtype) == ((300, 3), np.float32)
    assert (drawn[:, 1] > 0).all()
    assert (drawn[:, 2] < 0).all()
    assert drawn[:, 0].min() < -0.9
    assert drawn[:, 0].max() > 0.9
    np.testing.assert_array_equal(drawn, again)


def test_a_checkpoint_that_cannot_drive_is_refused(run_folder, tmp_path):
    newest = run_folder / "checkpoints" / "000001"
    with pytest.raises(CheckpointError, match="it holds no 'agent'"):
        load_driver(run_folder, save_checkpoint(tmp_path, {"hooks": {}}, 0))
    shutil.copyfile(run_folder / SETTINGS_FILE, tmp_path / SETTINGS_FILE)
    write_changes(tmp_path / SETTINGS_FILE, {"float_hidden_dim": 17})
    with pytest.raises(CheckpointError, match="does not fit its settings"):
        load_driver(tmp_path, newest)
    state = load_checkpoint(newest).state
    state["agent"]["averaged"]["A_head.2.bias"][1] = torch.nan
    with pytest.raises(CheckpointError, match=r"A_head\.2\.bias are not finite numbers, so it cannot drive"):
        load_driver(run_folder, save_checkpoint(tmp_path, state, 0))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match='torch_device = "cuda"'):
            load_driver(run_folder, torch_device="cuda")
