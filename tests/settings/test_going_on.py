"""A run goes on: settings that it lacks are as they ship, and none may change what the network means."""

import json
import re
import shutil
from pathlib import Path

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.parts import load_part
from trackmania_rl.runs.snapshot import (
    RunConfiguration,
    changes_of_meaning,
    changes_since,
    edit_setting,
    read_snapshot,
    require_accepted,
    require_known,
)
from trackmania_rl.settings import SettingsError, load_settings, settings_from_flat
from trackmania_rl.settings.loading import stored_settings


@pytest.fixture
def settings(config):
    return load_settings(config)


def changed(settings, **values):
    return settings_from_flat(settings.flat() | values)


def refused(settings, new):
    stored = json.loads(json.dumps(stored_settings(settings)))  # as a manifest has them
    return [change.name for change in changes_of_meaning(changes_since(stored, new))]


def test_a_checkpoint_tells_nobodys_paths_and_names(settings):
    private = {"username", "game_command", "trackmania_base_path", "tmloader_path", "tmloader_profile_name"}
    assert stored_settings(settings).keys() == settings.flat().keys() - private


CHANGES_OF_MEANING = {
    "constant_reward_per_ms": -0.5,
    "engine_ticks_per_action": 7,
    "temporal_mini_race_duration_actions": 99,
    "n_prev_actions_in_inputs": 4,
    "expected_reward_per_action": -0.25,
}


def test_changes_of_meaning_are_refused_unless_accepted(settings, tmp_path):
    settings = changed(settings, temporal_mini_race_duration_actions=100)
    for name, value in CHANGES_OF_MEANING.items():
        new = changed(settings, **{name: value})
        assert refused(settings, new) == [name]
        changes = changes_since(stored_settings(settings), new)
        require_accepted(changes, [name], tmp_path)
        with pytest.raises(UserError) as caught:
            require_accepted(changes, [], tmp_path)
        assert f"{name} = {value} (was {settings.flat()[name]})" in str(caught.value)
        assert str(caught.value).endswith(f"or accept it: --accept-change {name}")
        assert str(tmp_path / "settings.toml") in str(caught.value)


def test_other_maps_and_actions_in_another_order_are_refused_but_not_maps_in_another_order(settings):
    (first, second) = settings.game.map_cycle
    other = first.model_copy(update={"map_name": "kart", "map_path": "kart.toml", "reference_line": "kart_0.5m.npy"})
    assert refused(settings, changed(settings, map_cycle=(first, second, other))) == ["map_cycle"]
    assert refused(settings, changed(settings, map_cycle=(other,))) == ["map_cycle"]
    more = first.model_copy(update={"repeat": 9, "map_name": "my valley"})
    assert refused(settings, changed(settings, map_cycle=(second, more))) == []
    assert refused(settings, changed(settings, inputs=settings.game.inputs[::-1])) == ["inputs"]


def test_other_changes_are_listed_and_new_settings_are_none(settings):
    stored = stored_settings(changed(settings, batch_size=77))
    del stored["n_collectors"]
    (change,) = changes_since(stored, changed(settings, n_collectors=3))
    assert str(change) == f"batch_size = {settings.replay.batch_size} (was 77)"
    require_accepted([change], [], Path())
    assert json.dumps(stored_settings(changed(settings, hooks=(complex,)))["hooks"])
    require_known(["inputs", "map_cycle"])
    with pytest.raises(UserError, match="--accept-change input: there is no such setting"):
        require_known(["inputs", "input"])


def begin(config, root, *overrides, update=False):
    """Read and write a run's settings as a training does."""
    configuration = RunConfiguration(config, root, overrides, update)
    settings = configuration.read()
    configuration.write()
    assert stored_settings(load_settings(configuration.folder.settings)) == stored_settings(settings)
    return settings


def test_the_settings_of_a_run_are_those_that_it_began_with(config, tmp_path):
    first = begin(config, tmp_path, "seed=3", "schedule_stretch=0.5", "random_action_throttle_probability=None")
    assert first == load_settings(config, ["seed=3", "schedule_stretch=0.5", "random_action_throttle_probability=None"])
    text = (tmp_path / "save" / "simulated" / "settings.toml").read_text()
    assert 'random_action_throttle_probability = "none"\n' in text
    assert "schedule_stretch = 0.5\n" in text
    assert "epsilon_schedule = [[0, 1.0], [2000, 1.0], [50000, 0.1], [400000, 0.03]]\n" in text, "not yet stretched"
    assert (
        "# Actions that one transition spans.\n# Unit: actions. Allowed: whole number > 0; restart.\nn_steps = 3"
        in text
    )
    assert 'map_name = "valley", map_path = "valley.toml"' in text
    assert max(map(len, (line for line in text.splitlines() if line.startswith("#")))) <= 120
    assert begin(config, tmp_path) == first
    with_set = begin(config, tmp_path, "batch_size=32", "lr_schedule=0.5")
    assert (with_set.replay.batch_size, with_set.agent.lr_schedule, with_set.run.seed) == (32, ((0, 0.5),), 3)
    assert begin(config, tmp_path) == with_set, "--set changed the file"
    assert begin(config, tmp_path, update=True) == load_settings(config)


@pytest.mark.parametrize("name", ["config_tmnf.py", "config_many_tracks.py", "config_real_time.py", "config_lidar.py"])
def test_every_kind_of_value_is_written_and_read(config, tmp_path, name):
    assert begin(config.with_name(name), tmp_path) == load_settings(config.with_name(name))


def test_settings_that_were_given_are_stretched_once(config, tmp_path):
    given = load_settings(config, ["schedule_stretch=0.5"])
    begin(given, tmp_path)
    own = begin(given, tmp_path)
    assert own.exploration == given.exploration
    assert own.run.schedule_stretch == 1.0


def test_differences_to_the_request_are_told(config, tmp_path, caplog):
    begin(config, tmp_path, "seed=3", "n_steps=2")
    begin(config, tmp_path, "seed=3")
    assert "settings.toml, which differs from" in caplog.text
    assert "in: n_steps (--update-config applies that)" in caplog.text


def test_settings_that_lack_one_are_restored_or_replaced(config, tmp_path):
    begin(config, tmp_path, "seed=3")
    run = tmp_path / "save" / "simulated"
    whole = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(re.sub(r"^pictures_interval_s = .*$", "", whole, flags=re.MULTILINE))
    with pytest.raises(SettingsError, match=r"sets no pictures_interval_s: restore the file .* --update-config"):
        read_snapshot(run)
    begin(config, tmp_path, "seed=3", update=True)
    assert (run / "settings.toml").read_text() == whole


def test_a_part_with_an_object_is_recorded_by_name_and_needs_its_configuration(config, tmp_path):
    shutil.copytree(config.parent, tmp_path / "mine")
    text = "from functools import partial\nfrom fractions import Fraction\nbased_on = 'config.py'\n"
    text += "memory = partial(Fraction, {1})\nhooks = (partial(Fraction, 3), Fraction)\n"
    (mine := tmp_path / "mine" / "mine.py").write_text(text)
    configuration = RunConfiguration(mine, tmp_path)
    configuration.write()
    run = configuration.folder
    assert 'memory = "fractions:Fraction(...)"\n' in run.settings.read_text()
    assert RunConfiguration(mine, tmp_path).read() == load_settings(mine)
    shown = read_snapshot(run.path)  # such as by the page, which has no configuration
    assert edit_setting(run.path, "batch_size", "32") == {"batch_size": (64, 32)}
    with pytest.raises(SettingsError, match=r"memory = .* is recorded by name.*--config"):
        load_part(shown.replay.memory, "memory")
    assert RunConfiguration(config, tmp_path).read().replay.memory == shown.replay.memory


def test_a_run_called_auto_has_a_new_name_at_each_start_which_its_settings_keep(config, tmp_path):
    runs = [RunConfiguration(config, tmp_path, ["run_name=auto"]) for _ in range(2)]
    names = [run.read().run.run_name for run in runs]
    assert len({*names, "auto"}) == 3
    runs[0].write()
    assert read_snapshot(tmp_path / "save" / names[0]).run.run_name == names[0]
