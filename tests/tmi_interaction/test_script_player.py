"""Input scripts on the simulated game: they arrive when the races did that they were made of."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import MessageId
from trackmania_rl.protocol.state_blob import STATE_HEAD_DTYPE, StateView, new_state_blob
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction import script_player
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.script_player import PATIENCE_MS, Filming, ScriptPlayer
from trackmania_rl.tmi_interaction.transport import GameEvent

VALLEY = MapEntry(
    map_name="valley", map_path="valley.toml", reference_line="valley_0.5m.npy", is_explo=True, fill_buffer=True
)
MOSTLY_FORWARD = (0, 0, 0, 1, 2)


@pytest.fixture(scope="module")
def player(repository_root):
    with ScriptPlayer(SimulatedGameLauncher(find_free_port(), repository_root / "maps")) as player:
        yield player


@pytest.fixture(scope="module")
def random_races(settings_without_image, repository_root, tmp_path_factory):
    """Three races of a random policy as (inputs file, end_race_stats); some end at a wall long before the finish."""
    folder = tmp_path_factory.mktemp("random races")
    launcher = SimulatedGameLauncher(find_free_port(), repository_root / "maps")
    manager = GameInstanceManager(settings_without_image.game, settings_without_image.observation, launcher)
    races = []
    for seed in range(3):
        rng = np.random.default_rng(seed)

        def policy(frame, floats, rng=rng):
            return PolicyDecision(int(rng.choice(MOSTLY_FORWARD)), True, np.zeros(12, dtype=np.float32))

        stats = manager.rollout(VALLEY, policy)[1]
        file = folder / f"race {seed}.inputs"
        file.write_text(stats["inputs"])
        races.append((file, stats))
    manager.close()
    return races


def test_an_analog_race_arrives_again_to_the_millisecond(player, settings_without_image, repository_root, tmp_path):
    game = settings_without_image.game.model_copy(update={"actions": "analog"})
    launcher = SimulatedGameLauncher(find_free_port(), repository_root / "maps")
    manager = GameInstanceManager(game, settings_without_image.observation, launcher)
    rng = np.random.default_rng(0)

    def policy(frame, floats):
        action = np.array([rng.normal(0, 0.2), 1.0, rng.random() - 0.95], dtype=np.float32)
        return PolicyDecision(action, True, np.zeros(1, dtype=np.float32))

    results, stats = manager.rollout(VALLEY, policy)
    manager.close()
    file = tmp_path / "analog.inputs"
    file.write_text(stats["inputs"])
    positions_m = []
    race = player.play(
        "valley.toml",
        file,
        until_ms=None if stats["race_finished"] else stats["race_time_ms"],
        on_state=lambda state: positions_m.append(state.position_m.copy()),
    )
    assert race.checkpoint_times_ms == tuple(stats["checkpoint_times_ms"])
    n = min(len(positions_m), len(results["position_m"]))
    assert n > 20
    np.testing.assert_array_equal(positions_m[:n], results["position_m"][:n])


def test_random_races_arrive_again_to_the_millisecond(player, random_races):
    for file, stats in random_races:
        race = player.play("valley.toml", file, until_ms=None if stats["race_finished"] else stats["race_time_ms"])
        assert race.checkpoint_times_ms == tuple(stats["checkpoint_times_ms"])
        assert race.is_finished == stats["race_finished"]
        if race.is_finished:
            assert race.race_time_ms == stats["race_time_ms"]
    assert any(stats["checkpoint_times_ms"] for _, stats in random_races)


def test_filming_changes_nothing_and_shows_every_50_ms(player, random_races):
    file, stats = random_races[0]
    until_ms = min(stats["race_time_ms"], 12_000)
    shapes = []
    filmed = player.play("valley.toml", file, Filming((40, 30), lambda frame: shapes.append(frame.shape)), until_ms)
    assert filmed == player.play("valley.toml", file, until_ms=until_ms)
    assert set(shapes) == {(30, 40, 4)}
    assert len(shapes) == pytest.approx(until_ms / 50, abs=1.1)


def test_an_idle_car_is_given_up(player, tmp_path):
    (tmp_path / "idle.inputs").write_text("")
    race = player.play("valley.toml", tmp_path / "idle.inputs")
    assert not race.is_finished
    assert race.checkpoint_times_ms == ()
    assert race.race_time_ms == PATIENCE_MS


@pytest.mark.parametrize(("name", "told"), [("absent.inputs", "cannot be read"), ('a".inputs', "double quote")])
def test_a_file_that_cannot_be_played_is_told(player, tmp_path, name, told):
    (tmp_path / 'a".inputs').write_text("0.00 press up\n")
    with pytest.raises(UserError, match=told):
        player.play("valley.toml", tmp_path / name)


def test_a_game_that_cannot_start_leaves_nothing_behind(repository_root):
    launcher = SimulatedGameLauncher(find_free_port(), repository_root / "no such folder")
    with pytest.raises(Exception, match="no such folder"), ScriptPlayer(launcher):
        pass
    assert not launcher.is_alive()


class RestartingGame:
    """A game whose script gives up at 50 ms, and which then plays it again, for ever."""

    def __init__(self, state):
        self._times_ms = itertools.cycle((-50, 0, 50))
        self.get_state = lambda: state

    def next_event(self):
        return GameEvent(MessageId.RUN_STEP, race_time_ms=next(self._times_ms))

    def answer(self, event):
        pass


def test_a_script_that_gives_up_and_begins_again_is_not_watched_for_ever(repository_root):
    state = SimulatedRace(load_track(repository_root / "maps" / "valley.toml")).save_state()
    race = script_player._watch(RestartingGame(state), (), None, 1_000, None, 1.0)
    assert (race.is_finished, race.race_time_ms) == (False, 50)


class WatchedGame:
    """A game whose race finishes at 40 ms, as told in a step's midst; it keeps the commands that it is given."""

    def __init__(self, times_ms=(30, 40)):
        self.commands = []
        blob = new_state_blob(2, 2)
        np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)[0]["race_time_ms"] = 40
        StateView(blob).checkpoint_times_ms[:] = times_ms
        self.get_state = lambda: bytes(blob)
        self.command = self.commands.append
        events = [GameEvent(MessageId.ON_CONNECT), *(GameEvent(MessageId.RUN_STEP, time_ms) for time_ms in (-50, 0))]
        self._events = iter((*events, GameEvent(MessageId.CHECKPOINT_COUNT_CHANGED, current=2, target=2)))
        self.next_event = lambda: next(self._events)
        self.answer = self.set_speed = self.set_step_period = lambda _: None

    def close(self):
        pass


@pytest.fixture
def play_on(monkeypatch, tmp_path):
    """`play_on(game, game)` plays a script on each connection's game, as to one new game instance."""
    (tmp_path / "race.inputs").write_text("0.00 press up\n")

    def play(*games, commands_on_connect=(), map_argument=str):
        waiting = iter(games)
        monkeypatch.setattr(script_player, "TMInterface", lambda *_: next(waiting))
        launcher = SimpleNamespace(
            port=9999,
            commands_on_connect=commands_on_connect,
            check_map=lambda map_path: None,
            map_argument=map_argument,
            show_window=lambda: None,
        )
        player = ScriptPlayer(launcher)
        return [player.play("my map.Challenge.Gbx", tmp_path / "race.inputs") for _ in games]

    return play


def test_a_new_game_is_greeted_once_however_many_scripts_it_plays(play_on):
    games = [WatchedGame() for _ in range(3)]
    greeting = ("toggle_console", "set autologin pilot")
    play_on(*games, commands_on_connect=greeting)
    assert games[0].commands[:2] == list(greeting)
    told = [command for game in games for command in game.commands]
    assert [told.count(command) for command in greeting] == [1, 1]


def test_the_game_is_told_a_map_as_its_launcher_says(play_on):
    game = WatchedGame()
    play_on(game, map_argument=str.upper)
    assert 'map "MY MAP.CHALLENGE.GBX"' in game.commands


@pytest.mark.parametrize("times_ms", [(30, 40), (30, -1), (-1, -1)])
def test_a_finish_whose_time_the_game_has_not_written_yet_is_timed_by_the_clock(play_on, times_ms):
    (race,) = play_on(WatchedGame(times_ms))
    assert race.is_finished
    assert race.race_time_ms == 40
    assert race.checkpoint_times_ms == tuple(time_ms for time_ms in times_ms if time_ms >= 0)
