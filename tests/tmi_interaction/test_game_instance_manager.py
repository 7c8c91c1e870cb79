"""Whole races through the manager: results, statistics, and games that fail in every way."""

import logging
import time
from types import SimpleNamespace

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.tmi_interaction import game_instance_manager, race_machine
from trackmania_rl.tmi_interaction.game_instance_manager import (
    MAX_ATTEMPTS,
    GameInstanceManager,
    GameKeepsFailingError,
)
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S
from trackmania_rl.tmi_interaction.race_start import CONNECT_COMMANDS
from trackmania_rl.tmi_interaction.speed_watch import RACES_AVERAGED
from trackmania_rl.tmi_interaction.transport import GameConnectionError, GameProtocolError, GameTimeoutError
from trackmania_rl.track.reference_line import ReferenceLineError

N_ACTIONS = 12
FORWARD, LEFT, NOTHING = 0, 1, 3


class FakeLauncher:
    port = 9999
    commands_on_connect = ("toggle_console",)

    def __init__(self):
        self.runs = False
        self.log = []
        self.times_shown = 0
        self.waited_s = []

    def check_map(self, map_path):
        if map_path == "absent.toml":
            raise UserError("absent.toml is not there")

    def map_argument(self, map_path):
        return map_path

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
    (tmp_path / "straight.toml").touch()
    return MapEntry(
        map_name="straight",
        map_path="straight.toml",
        reference_line="straight.npy",
        is_explo=True,
        fill_buffer=True,
    )


@pytest.fixture
def make_manager(settings, make_fake_game, tmp_path):
    """A manager whose games are made by `games`, one after the other."""

    def make(*games, image=True, **changes):
        size = {} if image else {"image_width_px": 0, "image_height_px": 0}
        changes = {"game": "simulated", "maps_folder": str(tmp_path), **size, **changes}
        waiting = list(games) or [make_fake_game()]
        launcher = FakeLauncher()
        manager = GameInstanceManager(
            settings.game.model_copy(update=changes),
            settings.observation,
            launcher,
            connect=lambda port, timeout_s, on_silence: waiting.pop(0),
        )
        return manager, launcher

    return make


@pytest.mark.parametrize("image", [True, False])
def test_rollout_results_of_a_finished_race(make_manager, straight, image, settings):
    manager, _ = make_manager(image=image)
    policy = ScriptedPolicy([NOTHING] * 3 + [LEFT] * 2)
    results, _ = manager.rollout(straight, policy)
    T = 45  # 3 actions standing, then 41.1 m at 20 m/s: the finish at 150 + 2060 ms
    assert results["race_time"] == 2210
    assert results["frames"].shape == ((T + 1, 1, 8, 16) if image else (T + 1, 1, 0, 0))
    assert results["frames"].dtype == np.uint8
    assert results["state_float"].shape == (T + 1, 184)
    assert results["state_float"].dtype == np.float32
    np.testing.assert_array_equal(results["actions"], [NOTHING] * 3 + [LEFT] * 2 + [FORWARD] * (T - 5))
    assert results["actions"].dtype == np.int64
    np.testing.assert_array_equal(results["action_was_greedy"], np.arange(T) % 2 == 0)
    np.testing.assert_array_equal(results["input_w"], np.arange(T) >= 3)
    assert results["q_values"].shape == (T, N_ACTIONS)
    assert results["q_values"].dtype == np.float32
    assert results["car_gear_and_wheels"].shape == (T + 1, 22)
    assert results["position_m"].shape == (T, 3)
    assert results["position_m"].dtype == np.float32
    for name, dtype in (("current_zone_idx", np.int64), ("meters_advanced_along_centerline", np.float64)):
        assert results[name].shape == (T + 1,)
        assert results[name].dtype == dtype
    assert results["current_zone_idx"][-1] == results["furthest_zone_idx"] == 20 + 120
    assert np.all(np.diff(results["meters_advanced_along_centerline"]) >= 0)
    for t, (frame, floats) in enumerate(policy.seen):
        np.testing.assert_array_equal(results["frames"][t], frame)
        np.testing.assert_array_equal(results["state_float"][t], floats)
    np.testing.assert_array_equal(results["frames"][-1], results["frames"][-2], err_msg="none of the finish")


def test_statistics_of_a_finished_race(make_manager, straight):
    manager, _ = make_manager()
    _, stats = manager.rollout(straight, ScriptedPolicy([NOTHING]))
    assert stats["race_finished"] is True
    assert stats["race_time_ms"] == 2110
    assert stats["cutoff_reason"] is None
    assert stats["checkpoint_times_ms"] == [1050, 2110]
    assert stats["meters"] == pytest.approx(60, abs=0.5)
    assert stats["mean_speed_m_s"] == pytest.approx(20 * 41 / 43)
    assert stats["fraction_greedy"] == pytest.approx(22 / 43)
    assert stats["first_value"] == N_ACTIONS - 1
    assert set(stats["timings_ms"]) == {"answer_game", "wait_game", "features", "policy"}
    assert all(value > 0 for value in stats["timings_ms"].values())
    assert [event.time_ms for event in parse_input_script(stats["inputs"])] == [50]


def test_a_race_that_is_cut_off(make_manager, straight):
    manager, _ = make_manager()
    results, stats = manager.rollout(straight, ScriptedPolicy([NOTHING] * 1000))
    assert "race_time" not in results
    assert stats["race_finished"] is False
    assert stats["cutoff_reason"] == "no_progress"
    assert stats["race_time_ms"] == 2000
    T = len(results["actions"])
    assert T == 40
    for name in ("current_zone_idx", "meters_advanced_along_centerline", "state_float", "frames"):
        assert len(results[name]) == T + 1
    assert (results["frames"][-1] == 2000 // 50).all()
    assert results["furthest_zone_idx"] == 20


@pytest.mark.parametrize("image", [True, False])
def test_a_decision_at_the_moment_of_the_finish_is_dropped(make_manager, make_fake_game, straight, image):
    manager, _ = make_manager(make_fake_game(finish_m=41.99), image=image)
    results, _ = manager.rollout(straight, ScriptedPolicy())
    assert results["race_time"] == 2100
    assert len(results["actions"]) == 42


def test_the_script_holds_a_late_actions_keys_for_as_long_as_they_were_held(make_manager, make_fake_game, straight):
    manager, _ = make_manager(make_fake_game(late_step_at_ms=300))
    _, stats = manager.rollout(straight, ScriptedPolicy([FORWARD] * 6 + [LEFT]))
    assert [(event.time_ms, event.value) for event in parse_input_script(stats["inputs"])] == [
        (0, 1),
        (350, 1),
        (400, 0),
    ]


def test_frames_go_where_there_is_room_for_them(make_manager, straight):
    manager, _ = make_manager()
    room = np.zeros((100, 1, 8, 16), dtype=np.uint8)
    results, _ = manager.rollout(straight, ScriptedPolicy(), frames=room)
    assert results["frames"].ctypes.data == room.ctypes.data
    small = np.zeros((10, 1, 8, 16), dtype=np.uint8)
    more, _ = manager.rollout(straight, ScriptedPolicy(), frames=small)
    np.testing.assert_array_equal(more["frames"], results["frames"])


def test_one_game_serves_many_races(make_manager, straight):
    manager, launcher = make_manager()
    times = [manager.rollout(straight, ScriptedPolicy())[0]["race_time"] for _ in range(4)]
    assert times == [2060] * 4
    assert launcher.log == ["start"]
    manager.close()
    assert launcher.log == ["start", "kill"]


def test_settings_change_between_races(make_manager, straight):
    manager, _ = make_manager()
    manager.rollout(straight, ScriptedPolicy())
    manager.game = manager.game.model_copy(update={"cutoff_race_longer_than_ms": 500})
    assert manager.rollout(straight, ScriptedPolicy())[1]["cutoff_reason"] == "too_long"


def failing_at(game, at_event, error):
    """Let a fake game fail at its so-and-so-many-th report."""
    original, count = game.next_event, iter(range(1, 100_000))

    def next_event(within_s=None):
        if next(count) >= at_event:
            raise error
        return original()

    game.next_event = next_event
    return game


@pytest.mark.parametrize(
    "error", [GameConnectionError("gone"), GameTimeoutError("silent"), GameProtocolError("nonsense")]
)
@pytest.mark.parametrize("at_event", [1, 3, 40])
def test_a_failing_game_is_replaced_and_the_race_played_anew(
    make_manager, make_fake_game, straight, caplog, error, at_event
):
    manager, launcher = make_manager(failing_at(make_fake_game(), at_event, error), make_fake_game())
    with caplog.at_level(logging.WARNING):
        results, stats = manager.rollout(straight, ScriptedPolicy())
    assert stats["race_finished"]
    assert len(results["actions"]) == 42
    assert launcher.log == ["start", "kill", "start"]
    assert f"race on straight lost (attempt 1 of {MAX_ATTEMPTS}): {error}" in caplog.text


def test_a_game_that_died_between_races_is_replaced(make_manager, make_fake_game, straight):
    manager, launcher = make_manager(make_fake_game(), make_fake_game())
    manager.rollout(straight, ScriptedPolicy())
    launcher.runs = False
    assert manager.rollout(straight, ScriptedPolicy())[1]["race_finished"]
    assert manager.game_starts == 2


def test_failing_again_and_again_is_an_error(make_manager, make_fake_game, straight):
    games = [failing_at(make_fake_game(), 1, GameConnectionError("gone")) for _ in range(MAX_ATTEMPTS)]
    manager, launcher = make_manager(*games)
    with pytest.raises(GameKeepsFailingError, match="straight: gone"):
        manager.rollout(straight, ScriptedPolicy())
    assert not launcher.runs


def test_an_old_game_is_restarted_between_races(make_manager, make_fake_game, straight, monkeypatch):
    now_s = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(game_instance_manager, "time", clock)
    manager, launcher = make_manager(make_fake_game(), make_fake_game(), game_reboot_interval_s=3600.0)
    manager.rollout(straight, ScriptedPolicy())
    now_s[0] += 3599
    manager.rollout(straight, ScriptedPolicy())
    assert launcher.log == ["start"]
    now_s[0] += 2
    manager.rollout(straight, ScriptedPolicy())
    assert launcher.log == ["start", "kill", "start"]


def test_a_game_that_has_become_slow_is_restarted(make_manager, make_fake_game, straight, monkeypatch, caplog):
    now_s, step_s = [0.0], [0.001]
    monkeypatch.setattr(race_machine, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))

    def game():
        made = make_fake_game()
        original = made.next_event

        def next_event(within_s=None):
            now_s[0] += step_s[0]
            return original()

        made.next_event = next_event
        return made

    def play(n_races):
        for _ in range(n_races):
            manager.rollout(straight, ScriptedPolicy())

    manager, launcher = make_manager(game(), game(), game_reboot_below_speed_share=0.5)
    play(RACES_AVERAGED + 1)  # the first one has a countdown
    step_s[0] = 0.0025  # two fifths of the speed, which the average falls to race by race
    play(RACES_AVERAGED - 1)
    assert launcher.log == ["start"]
    play(1)
    with caplog.at_level(logging.WARNING):
        play(1)
    assert launcher.log == ["start", "kill", "start"]
    assert "of its best speed" in caplog.text
    play(3 * RACES_AVERAGED)  # the new game is that slow from its start on, so that is its best
    assert launcher.log == ["start", "kill", "start"]


def test_the_window_is_shown_before_each_race(make_manager, straight):
    manager, launcher = make_manager()
    for n in (1, 2, 3):
        manager.rollout(straight, ScriptedPolicy())
        assert launcher.times_shown == n


def test_the_window_is_shown_also_while_the_game_is_silent(settings, make_fake_game, straight, tmp_path):
    launcher, given = FakeLauncher(), []

    def connect(port, timeout_s, on_silence):
        given.append(on_silence)
        return make_fake_game()

    game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(tmp_path)})
    GameInstanceManager(game, settings.observation, launcher, connect).rollout(straight, ScriptedPolicy())
    assert given == [launcher.show_window]


def test_the_game_is_focused_when_its_race_has_begun(make_manager, make_fake_game, straight):
    game, seen = make_fake_game(), []
    manager, launcher = make_manager(game)
    launcher.focus_window = lambda: seen.append((game.map, game.time_ms, game.held is not None))
    manager.rollout(straight, ScriptedPolicy())
    assert seen == [("straight.toml", 0, True)]


def test_a_new_game_is_told_each_command_once_however_many_races_it_plays(make_manager, make_fake_game, straight):
    game = make_fake_game()
    manager, launcher = make_manager(game, game_camera_number=3)
    for _ in range(2):
        manager.rollout(straight, ScriptedPolicy())
    told = [call for call in game.calls if call.startswith(("set ", "cam ", "toggle_console"))]
    assert told == [*CONNECT_COMMANDS, *launcher.commands_on_connect, "cam 3"]


def test_the_game_is_told_a_map_as_its_launcher_says(make_manager, make_fake_game, straight):
    game = make_fake_game()
    manager, launcher = make_manager(game)
    launcher.map_argument = str.upper
    manager.rollout(straight, ScriptedPolicy())
    assert game.map == "STRAIGHT.TOML"


def test_everything_is_compiled_before_the_game_starts_as_it_drops_who_is_silent_for_long(
    make_manager, straight, monkeypatch
):
    manager, launcher = make_manager()
    monkeypatch.setattr(game_instance_manager, "compile_ahead", lambda *_: launcher.log.append("compile"))
    for _ in range(2):
        manager.rollout(straight, ScriptedPolicy())
    assert launcher.log == ["compile", "start"]


def test_a_game_may_take_as_long_to_listen_as_with_the_doctor(make_manager, straight):
    manager, launcher = make_manager()
    manager.rollout(straight, ScriptedPolicy())
    assert launcher.waited_s == [LISTENS_WITHIN_S]
    assert LISTENS_WITHIN_S >= 120


def test_what_the_policy_raises_passes_through_and_the_game_stays(make_manager, straight):
    class StopError(Exception):
        pass

    def stopping(frame, floats):
        raise StopError

    manager, launcher = make_manager()
    with pytest.raises(StopError):
        manager.rollout(straight, stopping)
    assert launcher.runs
    assert manager.rollout(straight, ScriptedPolicy())[1]["race_finished"]


def test_missing_maps_and_lines_are_named(make_manager, straight, tmp_path):
    manager, launcher = make_manager()
    with pytest.raises(UserError, match=r"absent\.toml is not there"):
        manager.rollout(straight.model_copy(update={"map_path": "absent.toml"}), ScriptedPolicy())
    with pytest.raises(ReferenceLineError, match=r"absent\.npy: no such file"):
        manager.rollout(straight.model_copy(update={"reference_line": "absent.npy"}), ScriptedPolicy())
    assert launcher.log == []


def test_the_policy_sees_the_last_frames_of_its_own_race(make_manager, straight):
    manager, _ = make_manager(frames_per_state=3)
    for _ in range(2):
        policy = ScriptedPolicy()
        results, _ = manager.rollout(straight, policy)
        kept = results["frames"]
        assert kept.shape[1:] == (1, 8, 16)
        for t in range(len(policy.seen)):
            image, _ = policy.seen[t]
            expected = np.concatenate([kept[max(t - back, 0)] for back in (2, 1, 0)])
            np.testing.assert_array_equal(image, expected)
