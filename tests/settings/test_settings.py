"""Settings of users: read, checked and explained."""

import pickle
import re
import shutil
from pathlib import Path

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import (
    DRIVER_SETTINGS,
    NEEDS_RESTART,
    ExplorationSettings,
    ObservationSettings,
    SettingsError,
    changed_settings,
    load_settings,
    parse_override,
    settings_from_flat,
)
from trackmania_rl.settings.descriptions import settings_list, settings_rows
from trackmania_rl.settings.groups import DEFAULTS

CONFIG_FILES = sorted(file.name for file in (Path(__file__).parents[2] / "config_files").glob("config*.py"))


@pytest.mark.parametrize("name", CONFIG_FILES)
def test_shipped_configurations_load_are_frozen_and_picklable_and_are_listed_within_80_columns(config, name):
    settings = load_settings(config.with_name(name))
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(ValueError, match="frozen"):
        settings.replay.batch_size = 3
    text = settings_list(settings)
    assert max(map(len, text.splitlines())) <= 80
    assert not set("^$") & set(text), "no regular expressions"
    assert re.findall(r"^[* ] (\w+) =", text, re.MULTILINE) == list(settings.flat())


def test_a_configuration_may_be_based_on_another(config, tmp_path):
    shutil.copytree(config.parent, tmp_path, dirs_exist_ok=True)
    short, shorter = tmp_path / "short.py", tmp_path / "shorter.py"
    short.write_text("seed = 3")
    assert load_settings(short) == load_settings(config, ["seed=3"]), "what differs is enough"
    short.write_text('"""Mine."""\n\f\n# \u2028\nbased_on = "config_many_tracks.py"\nn_steps = 5\nseed = 3\n')
    shorter.write_text('seed = 7\nbased_on = "short.py"')
    expected = load_settings(tmp_path / "config_many_tracks.py", ["n_steps=5", "seed=7"])
    assert load_settings(shorter) == expected
    for text, message in (
        ('based_on = "short.py"', "that file is based on this one"),
        ('based_on = "other.py"', "short.py: based_on = 'other.py': there is no such file beside it or in /"),
        ("based_on = 3", "based_on = 3: there is no such file beside it"),
        ('based_on = "config_tmnf.py"\nsead = 3', "sead is no known setting"),
    ):
        short.write_text(text)
        with pytest.raises(SettingsError, match=message):
            load_settings(short)


def test_a_configuration_may_be_in_any_folder(config, tmp_path):
    """Companions and base come from its folder, else from the shipped ones."""
    mine = tmp_path / "mine.py"
    mine.write_text('based_on = "config_many_tracks.py"\nseed = 3')
    assert load_settings(mine) == load_settings(config.with_name("config_many_tracks.py"), ["seed=3"])
    (tmp_path / "user_config.py").write_text('game_command = "mine {port}"')
    assert load_settings(mine).user.game_command == "mine {port}"


_GENERATOR = {"difficulty": 0.5, "first_seed": 0, "last_seed": 9}
_FILES = {"map_path": "valley.toml", "reference_line": "valley_0.5m.npy"}


def test_generators_have_names_of_their_own_and_the_simulated_game(config):
    flags = {"map_name": "m", "is_explo": True, "fill_buffer": True}
    generator = flags | {"generator": _GENERATOR | {"difficulty": (0.2, 0.6)}}
    (entry,) = load_settings(config, [f"map_cycle=({generator!r},)"]).game.map_cycle
    assert entry.generator.difficulty_range == (0.2, 0.6)
    with pytest.raises(SettingsError, match="'m' for a map and for a generator"):
        load_settings(config, [f"map_cycle=({generator!r}, {flags | _FILES!r})"])
    with pytest.raises(SettingsError, match="only the simulated game drives generated tracks"):
        load_settings(config.with_name("config_tmnf.py"), [f"map_cycle=({generator!r},)"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch_sise=3", "did you mean batch_size?"),
        ("learning_rte=3", "did you mean lr_schedule?"),
        ("n_envs=3", "did you mean n_collectors x games_per_collector?"),
        ("total_timesteps=3", "did you mean --max-frames?"),
        ("target_update=3", "did you mean number_memories_trained_on_between_target_network_updates (in"),
        ("gamma=0.9", "did you mean gamma_schedule?"),
        ("epsilon=0.1", "did you mean epsilon_schedule?"),
        ("buffer_size=9", "did you mean memory_size_schedule?"),
        ("batch=3", "did you mean batch_size?"),
        ("tau=0.1", "did you mean soft_update_tau?"),
        ("n_step=3", "did you mean n_steps?"),
        ("train_freq=4", "did you mean number_times_single_memory_is_used_before_discard (uses"),
        ("learning_starts=9", "did you mean memory_size_start_learn_schedule?"),
        ("batch_size=many", "batch_size = 'many': input should be a valid integer, unable to parse"),
        ("lr_schedule=fast", "lr_schedule = 'fast': input should be a valid tuple"),
    ],
)  # fmt: skip
def test_an_error_suggests_the_setting_and_shows_what_is_allowed(config, override, message):
    with pytest.raises(SettingsError) as caught:
        load_settings(config, [override])
    assert message in str(caught.value)


def test_the_default_configuration_shows_defaults_and_every_setting_is_described(config):
    flat = load_settings(config).flat()
    assert {name: value for name, value in DEFAULTS.items() if flat[name] != value} == {}
    assert flat.keys() - DEFAULTS.keys() == {
        "inputs",
        "action_forward_idx",
        "state_normalization",
    }
    rows = settings_rows(load_settings(config), has_private=True)
    assert [row["name"] for row in rows if not row["about"].endswith(".")] == []


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([("clone", {}, {}), ("iqn", {}, {})], "stages: clone never ends: give it max_updates or max_frames"),
        ([("iqn", {}, {"max_frames": 9}), ("iqn", {}, {})], "stages: two of iqn, iqn have the same name"),
        ([("clone", {"batch_sise": 3}, {"max_frames": 9})], "stages: clone has batch_sise, which is no setting of"),
        ([("clone", {"run_name": "mine"}, {"max_frames": 9})], "stages: clone has run_name, which is no setting of"),
        ([("clone", {}, {"max_update": 9})], "stages.0.2.max_update = 9: extra inputs are not permitted"),
        ([("clone", {})], "stages.0.2 = ('clone', {}): field required; allowed: ((at most"),
        ([("in/folder", {}, {"max_frames": 9})], "stages.0.0 = 'in/folder': string should match"),
    ],
)
def test_stages_have_names_limits_and_settings(config, stages, message):
    with pytest.raises(SettingsError) as caught:
        load_settings(config, {"stages": stages})
    assert message in str(caught.value)


def test_a_number_is_a_constant_schedule(config):
    numbers = ["lr_schedule=1e-3", "gamma_schedule=1", "memory_size_schedule=5000", "schedule_stretch=0.5"]
    settings = load_settings(config, numbers)
    assert settings.agent.lr_schedule == ((0, 1e-3),)
    assert settings.agent.gamma_schedule == ((0, 1.0),)
    assert settings.replay.memory_size_schedule == ((0, 5000),)


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(SettingsError, match=r"/config\.py: no such configuration file"):
        load_settings(tmp_path / "config.py")
    (tmp_path / "config.py").write_text("seed = 1")
    assert load_settings(tmp_path / "config.py").run.seed == 1
    (tmp_path / "inputs_list.py").write_text("inputs = (")
    with pytest.raises(SettingsError, match=r"inputs_list\.py: SyntaxError"):
        load_settings(tmp_path / "config.py")
    (tmp_path / "inputs_list.py").write_bytes("# réglages\n".encode("cp1252"))
    with pytest.raises(SettingsError, match=r"inputs_list\.py: is not UTF-8 text"):
        load_settings(tmp_path / "config.py")


def test_a_configuration_is_python_or_toml_and_sets_something(config, tmp_path):
    flat = tmp_path / "mine.toml"
    flat.write_text('based_on = "config_tmnf.py"\nseed = 3\nlr_schedule = [[0, 1e-3]]')
    assert load_settings(flat) == load_settings(config.with_name("config_tmnf.py"), ["seed=3", "lr_schedule=1e-3"])
    for name, text, message in (
        ("config.yaml", "batch_size: 3", r"config\.yaml: a configuration is a Python file, NAME\.py, or a TOML file"),
        ("config.json", '{"batch_size": 3}', "a configuration is a Python file"),
        ("config.py", "batch_size: 3", r"config\.py sets nothing: write name = value"),
        ("empty.toml", "", "sets nothing"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(SettingsError, match=message):
            load_settings(tmp_path / name)


def test_overrides_are_literals_or_text(config):
    assert parse_override("seed=3") == ("seed", 3)
    assert parse_override("run_name = fast") == ("run_name", "fast")
    assert parse_override("lr_schedule=((0, 1e-3),)") == ("lr_schedule", ((0, 1e-3),))
    with pytest.raises(SettingsError, match="name=value"):
        parse_override("seed")
    old, new = load_settings(config), load_settings(config, ["n_steps=5"])
    assert changed_settings(old, new) == {"n_steps": (3, 5)}
    assert changed_settings(old, old) == {}


def test_schedules_are_stretched_once(config):
    plain, stretched = (
        load_settings(config, ["schedule_stretch=1.0"]).flat(),
        load_settings(config, ["schedule_stretch=1.5"]).flat(),
    )
    for name, value in plain.items():
        if name.endswith("_schedule"):
            assert stretched[name] == tuple((round(frames * 1.5), entry) for frames, entry in value), name
        elif name != "schedule_stretch":
            assert stretched[name] == value, name
    assert settings_from_flat(stretched).flat() == stretched
    for override, message in (("schedule_stretch=0", "schedule_stretch = 0"), ("lr_schedule=x", "lr_schedule = 'x'")):
        with pytest.raises(SettingsError, match=message):
            load_settings(config, [override])


def test_settings_that_shape_networks_buffers_or_processes_need_a_restart():
    assert {"seed", "n_collectors", "network", "hooks", "iqn_k", "n_steps", "username"} <= NEEDS_RESTART
    assert {"inputs", "temporal_mini_race_duration_actions", *ObservationSettings.model_fields} <= DRIVER_SETTINGS
    assert DRIVER_SETTINGS < NEEDS_RESTART
    assert DRIVER_SETTINGS.isdisjoint({"seed", "username", "maps_folder", "reward", "memory"})
    assert NEEDS_RESTART.isdisjoint({"batch_size", "lr_schedule", "map_cycle", "schedule_stretch", "running_speed"})


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("learning_rate", {"lr_schedule"}),
        ("Huber", {"iqn_kappa"}),
        ("exploration", set(ExplorationSettings.model_fields)),
    ],
)
def test_settings_are_listed_with_unit_and_range_or_by_a_word(config, word, names):
    settings = load_settings(config, ["batch_size=17"])
    for entry in (
        "* batch_size = 17 transitions\n      Transitions in one batch.\n"
        "      Allowed: whole number > 0, <= 1000000.\n",
        "  n_steps = 3 actions\n      Actions that one transition spans.\n"
        "      Allowed: whole number > 0; a change waits for the next start.\n",
    ):
        assert entry in settings_list(settings)
    assert names <= set(re.findall(r"^[* ] (\w+) =", settings_list(settings, word), re.MULTILINE))
    with pytest.raises(UserError, match="--list-settings atlantis: no setting has this word"):
        settings_list(settings, "atlantis")


def map_cycle(**entry):
    return [f"map_cycle=({ {'map_name': 'm', 'is_explo': True, 'fill_buffer': True, **entry}!r},)"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["batch_size=0"], r"batch_size = 0: input should be greater than 0"),
        (["batch_size=many"], r"batch_size = 'many': input should be a valid integer"),
        (["loggers=csvs"], "loggers.0 = 'csvs': input should be 'tensorboard', 'csv', 'wandb', 'mlflow' or 'trackio'"),
        (["torch_device=gpu"], r"torch_device = 'gpu': string should match pattern"),
        (["iqn_n=7"], r"iqn_n = 7: input should be a multiple of 2"),
        (["batch_size=100_000_000"], r"batch_size = 100000000: input should be less than or equal to 1000000"),
        (["n_steps=0"], "n_steps = 0: input should be greater than 0"),
        (["image_width_px=33"], r"both 0 \(no image\) or both positive"),
        (["lr_schedule=((5, 0.1),)"], r"lr_schedule = .*a schedule starts at frame 0"),
        (["epsilon_schedule=((0, 1.5),)"], r"epsilon_schedule.* = 1\.5: input should be less than or equal to 1"),
        (["memory_size_schedule=((0, 10),)"], r"learning would never start"),
        (["action_forward_idx=99"], r"no index into the 12 inputs"),
        (["run_name=../elsewhere"], r"run_name = '../elsewhere': string should match pattern"),
        ([f"batch_size={10**30}"], r"batch_size = 10+: input should be less than or equal to 1000000"),
        (
            [f"memory_size_schedule={10**30}"],
            r"memory_size_schedule.*: input should be less than or equal to 9223372036854775807",
        ),
        (["frames_per_state=2"], r"frames_per_state = 2 needs an image"),
        (
            ["sampling=alternating", "games_per_collector=1"],
            r'"alternating" is for two halves .*: set games_per_collector',
        ),
        (["sampling=sync"], r"sampling = 'sync': input should be 'asynchronous', 'synchronous' or 'alternating'"),
        (["horizon=0"], r"horizon = 0: input should be greater than 0"),
        (["running_speed=1e39"], r"running_speed = 1e\+39"),
        (["n_zone_centers_in_inputs=1", "shaped_reward_point_to_vcp_ahead=0.1"], r"of 2 or more, or leave the reward"),
        (["demonstrations_margin=0.1"], "demonstrations_margin needs demonstrations_share above 0"),
        (["conv_channels=(3,)"], "have one entry for each convolution"),
        (["games_are_kept=True", "game_transport=in_process"], "games_are_kept = True is for games that"),
        (["gamma_schedule=((0, 1.01),)"], r"gamma_schedule.*less than or equal to 1"),
        (["lr_schedule=((0, -1e-3),)"], r"lr_schedule.*greater than or equal to 0"),
        (map_cycle(), "give map_path and reference_line, or a generator"),
        (map_cycle(**_FILES, generator=_GENERATOR), "give map_path and reference_line, or a generator"),
        (map_cycle(map_path="valley.toml"), "give map_path and reference_line, or a generator"),
        (map_cycle(generator=_GENERATOR | {"difficulty": 1.5}), "difficulty"),
        (map_cycle(generator=_GENERATOR | {"difficulty": (0.6, 0.2)}), "lower end of the range comes first"),
        (map_cycle(generator=_GENERATOR | {"first_seed": 10}), "first_seed = 10 is above last_seed = 9"),
        (map_cycle(generator=_GENERATOR | {"first_seed": -1}), "first_seed"),
        (map_cycle(generator=_GENERATOR | {"last_seed": 2**63}), "last_seed"),
        (map_cycle(generator=_GENERATOR | {"sead": 1}), "sead"),
        (map_cycle(generator=_GENERATOR | {"races_per_track": 0}), "races_per_track"),
    ],
)
def test_a_wrong_or_contradictory_value_is_refused_by_name(config, overrides, message):
    with pytest.raises(SettingsError, match=message):
        load_settings(config, overrides)
