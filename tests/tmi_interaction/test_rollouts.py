"""Races through `GameInstanceManager.rollout()`: results, cut-offs, and games that differ or fail in every way."""

import itertools
import logging
import time

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.protocol.messages import AnalogInput, KeyState, MessageId
from trackmania_rl.race.actions import PolicyDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.tmi_interaction import race_machine
from trackmania_rl.tmi_interaction.game_instance_manager import (
    MAX_ATTEMPTS,
    GameInstanceManager,
    GameKeepsFailingError,
)
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S, GameLauncher
from trackmania_rl.tmi_interaction.race_machine import CONNECT_COMMANDS
from trackmania_rl.tmi_interaction.tminterface2 import (
    GameConnectionError,
    GameEvent,
    GameProtocolError,
    GameTimeoutError,
)

from .fake_game import FakeGame

N_ACTIONS = 12
FORWARD, LEFT, NOTHING = 0, 1, 3
FINISH_MS = 2060
"""Of a race that is driven forward from its start: 41.1 m at 20 m/s."""
VARIANTS = {
    "strict": {},
    "finish never reported": {"finish_unreported": True},
    "everything at once": {
        "checkpoint_before_step": True,
        "step_repeated_after_rewind": True,
        "finish_repeated": True,
        "laps_reported": True,
        "rewind_reports_checkpoints": True,
        "zero_step_missing_once": True,
        "steps_before_give_up_takes_effect": 40,
        "in_menus": False,
    },
}


class FakeLauncher(GameLauncher):
    commands_on_connect = ("toggle_console",)

    def __init__(self):
        super().__init__(port=9999)
        self.runs = False
        self.log = []
        self.waited_s = []
        self.times_shown = 0

    def check_map(self, map_path):
        if map_path == "absent.toml":
            raise UserError("absent.toml is not there")

    def map_argument(self, map_path):
        return map_path.upper()

    def start(self):
        assert not self.runs, "started twice"
        self.runs = True
        self.log.append("start")

    def is_alive(self):
        return self.runs

    def kill(self):
        if self.runs:
            self.log.append("kill")
        self.runs = False

    def show_window(self):
        assert self.runs
        self.times_shown += 1

    def focus_window(self):
        assert self.runs

    def wait_until_connectable(self, timeout_s):
        assert self.runs
        self.waited_s.append(timeout_s)


class ScriptedPolicy:
    """Plays given actions, then forward; even decisions are greedy."""

    def __init__(self, actions=()):
        self.actions = list(actions)
        self.seen = []

    def __call__(self, frame, floats):
        index = len(self.seen)
        self.seen.append((frame.copy(), floats.copy()))
        action = self.actions[index] if index < len(self.actions) else FORWARD
        q_values = np.arange(N_ACTIONS, dtype=np.float32) + index
        return PolicyDecision(action, index % 2 == 0, q_values)


@pytest.fixture
def straight(tmp_path):
    np.save(tmp_path / "straight.npy", np.arange(0, 60, 0.5)[:, None] * np.array([0.0, 0.0, 1.0]))
    return MapEntry(
        map_name="straight", map_path="straight.toml", reference_line="straight.npy", is_explo=True, fill_buffer=True
    )


@pytest.fixture
def make_manager(settings, tmp_path):
    """A manager whose games are `games`, one after the other."""

    def make(*games, image=True, **changes):
        size = {} if image else {"image_width_px": 0, "image_height_px": 0}
        changes = {"game": "simulated", "maps_folder": str(tmp_path), **size, **changes}
        waiting = list(games) or [FakeGame()]
        launcher = FakeLauncher()

        def connect(port, timeout_s, on_silence):
            assert on_silence == launcher.show_window
            return waiting.pop(0)

        game_settings = settings.game.model_copy(update=changes)
        return GameInstanceManager(game_settings, settings.observation, launcher, connect), launcher

    return make


with_and_without_image = pytest.mark.parametrize("image", [True, False], ids=["image", "no image"])


@with_and_without_image
@pytest.mark.parametrize("variant", VARIANTS)
def test_races_are_the_same_on_every_variant_of_the_game(make_manager, straight, variant, image):
    game = FakeGame(**VARIANTS[variant])
    manager, _ = make_manager(game, image=image)
    for n_waits in (3, 0, 7):
        game.driven.clear()
        results, stats = manager.rollout(straight, ScriptedPolicy([NOTHING] * n_waits))
        finish_ms = 50 * n_waits + FINISH_MS
        assert results["race_time"] == finish_ms
        assert stats["checkpoint_times_ms"] == (50 * n_waits + 1000, finish_ms)
        assert results["input_w"].tolist() == [n >= n_waits for n in range(n_waits + 42)]
        held = [KeyState(False, False, time_ms >= 50 * n_waits, False) for time_ms in range(0, finish_ms, 10)]
        assert game.driven == list(zip(range(0, finish_ms, 10), held, strict=True))


@with_and_without_image
def test_results_of_a_finished_race(make_manager, straight, image):
    manager, _ = make_manager(image=image)
    policy = ScriptedPolicy([NOTHING] * 3 + [LEFT] * 2)
    results, stats = manager.rollout(straight, policy)
    T = 45  # the race time is 150 + 2060 ms
    expected_types = {
        "frames": ((T + 1, 1, 8, 16) if image else (T + 1, 1, 0, 0), np.uint8),
        "state_float": ((T + 1, 184), np.float32),
        "car_gear_and_wheels": ((T + 1, 22), np.float32),
        "current_zone_idx": ((T + 1,), np.int64),
        "meters_advanced_along_centerline": ((T + 1,), np.float64),
        "actions": ((T,), np.int64),
        "q_values": ((T, N_ACTIONS), np.float32),
        "position_m": ((T + 1, 3), np.float32),
        "speed_m_s": ((T + 1,), np.float64),
    }
    assert {name: (results[name].shape, results[name].dtype) for name in expected_types} == expected_types
    np.testing.assert_array_equal(results["actions"], [NOTHING] * 3 + [LEFT] * 2 + [FORWARD] * (T - 5))
    np.testing.assert_array_equal(results["action_was_greedy"], np.arange(T) % 2 == 0)
    np.testing.assert_array_equal(results["input_w"], np.arange(T) >= 3)
    assert results["current_zone_idx"][-1] == results["furthest_zone_idx"] == 20 + 120
    advances_m = np.diff(results["meters_advanced_along_centerline"])
    assert advances_m.min() >= 0
    np.testing.assert_allclose(advances_m[10:20], 1, atol=1e-3)
    for t, (frame, floats) in enumerate(policy.seen):
        np.testing.assert_array_equal(results["frames"][t], frame)
        np.testing.assert_array_equal(results["state_float"][t], floats)
        assert (frame == t).all(), "it shows the step's own time"
    np.testing.assert_array_equal(results["frames"][-1], results["frames"][-2], err_msg="none of the finish")
    assert stats["race_finished"] is True
    assert stats["race_time_ms"] == 2210
    assert stats["cutoff_reason"] is None
    assert stats["meters"] == pytest.approx(60, abs=0.5)
    assert stats["mean_speed_m_s"] == pytest.approx(20 * 41 / T)
    assert stats["fraction_greedy"] == pytest.approx(23 / T)
    assert stats["first_value"] == N_ACTIONS - 1
    assert set(stats["timings_ms"]) == {"answer_game", "wait_game", "features", "policy"}
    assert all(value > 0 for value in stats["timings_ms"].values())
    script = [(event.time_ms, event.value) for event in parse_input_script(stats["inputs"])]
    assert script == [(150, 1), (150, 1), (250, 0)]


# Ends of races.


@with_and_without_image
@pytest.mark.parametrize("checkpoint_before_step", [False, True])
def test_a_decision_at_the_moment_of_the_finish_is_dropped(make_manager, straight, image, checkpoint_before_step):
    game = FakeGame(finish_m=41.99, checkpoint_before_step=checkpoint_before_step)
    results, _ = make_manager(game, image=image)[0].rollout(straight, ScriptedPolicy())
    assert results["race_time"] == 2100
    assert len(results["actions"]) == 42


@with_and_without_image
def test_a_standing_car_is_cut_off_and_the_next_race_begins_anew(make_manager, straight, image):
    manager, launcher = make_manager(image=image)
    results, stats = manager.rollout(straight, ScriptedPolicy([FORWARD] * 10 + [NOTHING] * 1000))
    assert "race_time" not in results
    assert stats["race_finished"] is False
    assert stats["cutoff_reason"] == "no_progress"
    assert stats["race_time_ms"] == 500 + 2000
    assert len(results["actions"]) == 50
    for name in ("current_zone_idx", "meters_advanced_along_centerline", "state_float", "frames"):
        assert len(results[name]) == 51
    assert (results["frames"][-1] == 50).all()
    assert manager.rollout(straight, ScriptedPolicy())[0]["race_time"] == FINISH_MS
    assert launcher.log == ["start"]


@pytest.mark.parametrize("seed", range(2))
def test_a_race_ends_at_the_first_moment_with_too_little_progress(make_manager, straight, seed):
    manager, _ = make_manager(image=False, cutoff_no_progress_within_ms=500, cutoff_progress_m=3.0)
    actions = np.random.default_rng(seed).choice([FORWARD, NOTHING], 400, p=[0.4, 0.6]).tolist()
    results, stats = manager.rollout(straight, ScriptedPolicy(actions))
    furthest_m = np.maximum.accumulate(results["meters_advanced_along_centerline"])
    is_too_little = furthest_m[10:] - furthest_m[:-10] < 3.0
    assert stats["cutoff_reason"] == ("no_progress" if is_too_little.any() else None)
    assert not is_too_little[:-1].any()


def test_settings_of_cutoffs_hold_from_the_next_race_on(make_manager, straight):
    manager, _ = make_manager()
    manager.rollout(straight, ScriptedPolicy())
    for changes, reason, race_time_ms in (
        ({"cutoff_race_longer_than_ms": 500}, "too_long", 550),
        ({"horizon": 30}, "horizon", 1500),
        ({"horizon": 30, "soft_horizon": True}, None, FINISH_MS),
    ):
        before = manager.game
        manager.game = before.model_copy(update=changes)
        stats = manager.rollout(straight, ScriptedPolicy())[1]
        assert (stats["cutoff_reason"], stats["race_time_ms"]) == (reason, race_time_ms)
        manager.game = before


# Requests to the game.


def test_a_new_game_is_prepared_once_and_later_races_rewind(make_manager, straight, settings):
    game = FakeGame()
    manager, launcher = make_manager(game)
    focused = []
    launcher.focus_window = lambda: focused.append((game.map, game.time_ms, game.timeout_ms, game.held is not None))
    for n_races in (1, 2, 3):
        assert manager.rollout(straight, ScriptedPolicy())[0]["race_time"] == FINISH_MS
        assert launcher.times_shown == n_races
        assert game.timeout_ms == 600_000_000
    told = [call for call in game.calls if call.startswith(("set ", "cam ", "toggle_console"))]
    assert told == [*CONNECT_COMMANDS, *launcher.commands_on_connect, "cam 2"]
    asked = [call for call in game.calls if call.startswith(("step", "map", "give up", "interface", "version"))]
    assert asked == [f"step period {settings.game.ms_per_action}", 'map "STRAIGHT.TOML"', "interface False"]
    assert game.calls.count("rewind to 0") == 2
    assert focused == [("STRAIGHT.TOML", 0, 10_100, True)] * 3
    assert launcher.waited_s == [LISTENS_WITHIN_S]
    manager.close()
    assert launcher.log == ["start", "kill"]


@with_and_without_image
@pytest.mark.parametrize("n_old_steps", [0, 40])
def test_each_map_is_loaded_and_its_interface_hidden_in_the_countdown(make_manager, straight, image, n_old_steps):
    game = FakeGame(steps_before_give_up_takes_effect=n_old_steps)
    manager, _ = make_manager(game, image=image)
    for map_path in ("straight.toml", "other.toml", "straight.toml"):
        assert manager.rollout(straight.model_copy(update={"map_path": map_path}), ScriptedPolicy())[1]["race_finished"]
    assert [call for call in game.calls if call.startswith(("map", "interface"))] == [
        *('map "STRAIGHT.TOML"', "interface False"),
        *('map "OTHER.TOML"', "interface False"),
        *('map "STRAIGHT.TOML"', "interface False"),
    ]
    assert all(time_ms < 0 for time_ms in game.hidden_at_ms)


def test_analog_actions_are_sent_as_wheel_and_pedals(make_manager, straight):
    game = FakeGame(version=2)
    manager, _ = make_manager(game, actions="analog")
    action = np.array([-0.5, 0.2, 0.9], dtype=np.float32)
    manager.rollout(straight, lambda *_: PolicyDecision(action, True, np.zeros(1, dtype=np.float32)))
    assert {held for _, held in game.driven} == {AnalogInput(-32768, 65536, True)}


@pytest.mark.parametrize(("version", "runs"), [(0, "another plugin than this"), (1, "version 1 of this")])
def test_a_plugin_that_knows_keys_only_is_not_steered(make_manager, straight, version, runs):
    manager, _ = make_manager(FakeGame(version=version), actions="analog")
    with pytest.raises(UserError, match=rf'actions = "analog": the game runs {runs} .* start the game again .*"keys"'):
        manager.rollout(straight, ScriptedPolicy())


# Games that fail.


def failing_at(at_event, error):
    """A game that fails at its `at_event`-th report."""
    game, count = FakeGame(), itertools.count(1)
    original = game.next_event

    def next_event(within_s=None):
        if next(count) >= at_event:
            raise error
        return original()

    game.next_event = next_event
    return game


@pytest.mark.parametrize(
    ("at_event", "error"),
    [(1, GameConnectionError("gone")), (3, GameTimeoutError("silent")), (40, GameProtocolError("nonsense"))],
)
def test_a_failing_game_is_replaced_and_the_race_played_anew(make_manager, straight, caplog, error, at_event):
    manager, launcher = make_manager(failing_at(at_event, error), FakeGame())
    with caplog.at_level(logging.WARNING):
        results, stats = manager.rollout(straight, ScriptedPolicy())
    assert stats["race_finished"]
    assert len(results["actions"]) == 42
    assert launcher.log == ["start", "kill", "start"]
    assert f"race on straight lost (attempt 1 of {MAX_ATTEMPTS}): {error}" in caplog.text


def never_stepping_on():
    game = FakeGame()
    game.events = itertools.chain(itertools.islice(game.events, 20), itertools.repeat(GameEvent(MessageId.RUN_STEP, 3)))
    return game


def of_damaged_states():
    game = FakeGame()
    game.get_state = lambda: b"short"
    return game


def in_the_menus_for_ever():
    game = FakeGame()
    game.command = lambda text: None
    game.events = itertools.repeat(GameEvent(MessageId.ON_CONNECT))
    return game


def silent_in_the_menus():
    def wait(within_s):
        time.sleep(within_s)
        raise GameTimeoutError("silent")

    game = FakeGame()
    game.next_event = wait
    return game


@pytest.mark.parametrize(
    ("make_game", "reason"),
    [
        (lambda: failing_at(1, GameConnectionError("gone")), "straight: gone"),
        (never_stepping_on, "but no next step|but no frame"),
        (of_damaged_states, "5 bytes"),
        (in_the_menus_for_ever, r"no race began on map 'STRAIGHT\.TOML' .* does the game have this map"),
        (silent_in_the_menus, "no race began on map"),
        (lambda: FakeGame(in_menus=False, steps_before_give_up_takes_effect=10**9), "no race began on map"),
        *((lambda ms=ms: FakeGame(finish_told_later_ms=ms), "last decision was at 20") for ms in (-60, 1010, 10**7)),
    ],
)
@with_and_without_image
def test_a_game_that_fails_again_and_again_is_an_error(make_manager, straight, make_game, reason, image, monkeypatch):
    monkeypatch.setattr(race_machine, "START_WITHIN_S", 0.1 if reason.startswith("no race") else 60.0)
    manager, launcher = make_manager(*(make_game() for _ in range(MAX_ATTEMPTS)), image=image)
    with pytest.raises(GameKeepsFailingError, match=reason):
        manager.rollout(straight, ScriptedPolicy())
    assert not launcher.runs
