"""Races through `rollout()` on the simulated game, through real processes and sockets."""

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

from ..scripted_policies import playing, random_actions
from .conftest import LINE_M


@pytest.fixture(scope="module")
def managers(settings, settings_without_image, maps_folder):
    """Managers of games with and without image."""
    made = []
    for one in (settings, settings_without_image):
        game = one.game.model_copy(update={"game": "simulated", "maps_folder": str(maps_folder)})
        launcher = SimulatedGameLauncher(find_free_port(), maps_folder)
        made.append(GameInstanceManager(game, one.observation, launcher))
    yield made
    for manager in made:
        manager.close()


def test_same_actions_give_the_same_bytes_with_and_without_image(managers, straight):
    first, without_image, again = (
        manager.rollout(straight, playing(random_actions(1)))[0] for manager in (managers[0], managers[1], managers[0])
    )
    for other in (without_image, again):
        assert other["race_time"] == first["race_time"]
        assert other["state_float"].tobytes() == first["state_float"].tobytes()
    assert again["frames"].tobytes() == first["frames"].tobytes()
    assert first["frames"].std() > 5


@pytest.mark.parametrize("seed", range(3))
def test_the_input_script_plays_the_race_again_to_the_millisecond(managers, maps_folder, straight, seed):
    results, stats = managers[1].rollout(straight, playing(random_actions(seed)))
    race = SimulatedRace(load_track(maps_folder / "straight.npy"))
    race.play_script(parse_input_script(stats["inputs"]))
    while not race.is_finished and race.race_time_ms < 60_000:
        race.advance()
    assert stats["race_finished"]
    assert stats["meters"] == pytest.approx(LINE_M, abs=1)
    assert stats["checkpoint_times_ms"] == [results["race_time"]]
    assert len(results["actions"]) == -(-results["race_time"] // 50)
    assert race.checkpoint_times_ms[-1] == results["race_time"]


@pytest.mark.parametrize(("name", "content"), [("absent.toml", None), ("damaged.toml", "name = "), ("bad.npy", "x")])
def test_a_map_that_the_game_cannot_load_is_named_before_it_is_asked(managers, maps_folder, straight, name, content):
    if content is not None:
        (maps_folder / name).write_text(content)
    with pytest.raises(UserError, match=name):
        managers[0].rollout(straight.model_copy(update={"map_path": name}), playing([]))
