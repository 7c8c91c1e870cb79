"""Input scripts on the simulated game: they arrive at the time of the races that they were made of."""

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.race.actions import PolicyDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.script_player import PATIENCE_MS, ScriptPlayer

VALLEY = MapEntry(
    map_name="valley", map_path="valley.toml", reference_line="valley_0.5m.npy", is_explo=True, fill_buffer=True
)


@pytest.fixture(scope="module")
def player(repository_root):
    with ScriptPlayer(SimulatedGameLauncher(find_free_port(), repository_root / "maps")) as player:
        yield player


def keys(rng):
    return int(rng.choice((0, 0, 0, 1, 2)))


def wheel_and_pedals(rng):
    return np.array([rng.normal(0, 0.2), 1.0, rng.random() - 0.95], dtype=np.float32)


@pytest.fixture(scope="module", params=["keys", "analog"])
def random_race(request, settings_without_image, repository_root, tmp_path_factory):
    """(inputs file, rollout_results, end_race_stats) of a random policy."""
    game = settings_without_image.game.model_copy(update={"actions": request.param})
    launcher = SimulatedGameLauncher(find_free_port(), repository_root / "maps")
    manager = GameInstanceManager(game, settings_without_image.observation, launcher)
    rng = np.random.default_rng(0)
    draw = keys if request.param == "keys" else wheel_and_pedals
    results, stats = manager.rollout(
        VALLEY, lambda frame, floats: PolicyDecision(draw(rng), True, np.zeros(12, dtype=np.float32))
    )
    manager.close()
    file = tmp_path_factory.mktemp("races") / "random.inputs"
    file.write_text(stats["inputs"])
    return file, results, stats


def test_a_random_race_arrives_again_to_the_millisecond(player, random_race):
    file, results, stats = random_race
    positions_m = []
    race = player.play(
        "valley.toml",
        file,
        until_ms=None if stats["race_finished"] else stats["race_time_ms"],
        on_state=lambda state: positions_m.append(state.position_m.copy()),
    )
    assert race.checkpoint_times_ms == tuple(stats["checkpoint_times_ms"])
    assert race.is_finished == stats["race_finished"]
    n = min(len(positions_m), len(results["position_m"]))
    assert n > 20
    np.testing.assert_array_equal(positions_m[:n], results["position_m"][:n])


def test_an_idle_car_is_given_up(player, tmp_path):
    (tmp_path / "idle.inputs").write_text("")
    race = player.play("valley.toml", tmp_path / "idle.inputs")
    assert (race.is_finished, race.checkpoint_times_ms, race.race_time_ms) == (False, (), PATIENCE_MS)


@pytest.mark.parametrize(("name", "told"), [("absent.inputs", "cannot be read"), ('a".inputs', "double quote")])
def test_a_file_that_cannot_be_played_is_named(player, tmp_path, name, told):
    (tmp_path / 'a".inputs').write_text("0.00 press up\n")
    with pytest.raises(UserError, match=told):
        player.play("valley.toml", tmp_path / name)
