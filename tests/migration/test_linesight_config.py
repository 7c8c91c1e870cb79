"""Settings taken over from a Linesight configuration that is parsed, not run."""

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.migration.linesight_config import (
    NAMES_HERE,
    read_linesight_config,
    settings_from_linesight,
)
from trackmania_rl.settings import load_settings, settings_from_flat

CONFIG = '''
"""A configuration as that program has it."""
import os
from itertools import repeat
from config_files.user_config import *
os.system("touch {folder}/was_run")

W_downsized = 96
H_downsized = W_downsized * 3 // 4
run_name = "theirs"
tm_engine_step_per_action = 5
ms_per_tm_engine_step = 10
ms_per_action = ms_per_tm_engine_step * tm_engine_step_per_action
temporal_mini_race_duration_ms = 5000
temporal_mini_race_duration_actions = temporal_mini_race_duration_ms // ms_per_action
cutoff_rollout_if_race_not_finished_within_duration_ms = 120_000
global_schedule_speed = 2
epsilon_schedule = [(0, 1), (50_000, 1), (300_000 * global_schedule_speed, 0.1)]
memory_size_schedule = [(0, (40_000, 10_000)), (5_000_000 * global_schedule_speed, (90_000, 70_000))]
constant_reward_per_ms = -6 / 4000
prio_alpha = np.float32(0.2)
gpu_collectors_count = 3
reset_every_n_frames_generated = 400_000_00000000
use_ddqn = True
iqn_n = 7
n_steps = open("/etc/passwd").read()
batch_size = 100
batch_size = unknown_name
deck_height = -np.inf
float_hidden_dim = 128
map_cycle = []
map_cycle += [
    repeat(("map5", '"My Challenges\\\\Map5.Challenge.Gbx"', "map5_0.5m_cl.npy", True, True), 4),
    repeat(("map5", f'"My Challenges\\\\Map5.Challenge.Gbx"', "map5_0.5m_cl.npy", False, True), 1),
]
'''


PUBLISHED = """
from itertools import repeat
batch_size = 512
road_width = 90
gamma_schedule = [(0, 0.999), (1_500_000, 0.999), (2_500_000, 1)]
temporal_mini_race_duration_ms = 7000
temporal_mini_race_duration_actions = temporal_mini_race_duration_ms // 50
min_horizon_to_update_priority_actions = temporal_mini_race_duration_actions - 40
engineered_close_to_vcp_reward_schedule = [(0, 0)]
engineered_reward_min_dist_to_cur_vcp = 5
engineered_reward_max_dist_to_cur_vcp = 25
final_speed_reward_as_if_duration_s = 0
final_speed_reward_per_m_per_s = 5 / 500 * final_speed_reward_as_if_duration_s
apply_randomcrop_augmentation = False
n_pixels_to_crop_on_each_side = 2
global_schedule_speed = 1
tensorboard_suffix_schedule = [
    (0, ""),
    (6_000_000 * global_schedule_speed, "_2"),
    (15_000_000 * global_schedule_speed, "_3"),
    (30_000_000 * global_schedule_speed, "_4"),
    (45_000_000 * global_schedule_speed, "_5"),
    (80_000_000 * global_schedule_speed, "_6"),
    (150_000_000 * global_schedule_speed, "_7"),
]
single_reset_flag = 0
max_allowable_distance_to_virtual_checkpoint = np.sqrt(road_width)
frames_before_save_best_runs = 1_500_000
n_transitions_to_plot_in_distribution_curves = 1000
max_rollout_queue_size = 1
threshold_to_save_all_runs_ms = 53700
deck_height = -np.inf
sync_virtual_and_real_checkpoints = True
"""


def taken_over(text, config, folder, overrides=()):
    """Return the changes by a configuration of this text, and the messages."""
    file = folder / "config.py"
    file.write_text(text)
    return settings_from_linesight(read_linesight_config(file), load_settings(config, overrides))


@pytest.fixture
def changes(tmp_path, full_size_config):
    file = tmp_path / "config_copy.py"
    file.write_text(CONFIG.format(folder=tmp_path))
    base = load_settings(full_size_config)
    return *settings_from_linesight(read_linesight_config(file), base), base, tmp_path


def test_what_differs_is_taken_over(changes):
    taken, problems, base, folder = changes
    map5 = {
        "map_name": "map5",
        "map_path": "My Challenges\\Map5.Challenge.Gbx",
        "reference_line": "map5_0.5m_cl.npy",
        "fill_buffer": True,
    }
    assert taken == {
        "image_width_px": 96,
        "image_height_px": 72,
        "temporal_mini_race_duration_actions": 100,
        "cutoff_race_longer_than_ms": 120_000,
        "epsilon_schedule": ((0, 1), (50_000, 1), (600_000, 0.1)),
        "memory_size_schedule": ((0, 40_000), (10_000_000, 90_000)),
        "memory_size_start_learn_schedule": ((0, 10_000), (10_000_000, 70_000)),
        "constant_reward_per_ms": -6 / 4000,
        "prio_alpha": 0.2,
        "n_collectors": 3,
        "use_ddqn": True,
        "float_hidden_dim": 128,
        "map_cycle": (map5 | {"is_explo": True, "repeat": 4}, map5 | {"is_explo": False, "repeat": 1}),
    }
    refused, *not_run = problems
    assert "iqn_n = 7" in refused
    assert not_run == [f"{name}: its value takes code, which is not run" for name in ("n_steps", "batch_size")]
    assert settings_from_flat(base.flat() | taken).game.map_cycle[0].map_name == "map5"
    assert not (folder / "was_run").exists()


def test_the_published_defaults_change_nothing(full_size_config, tmp_path):
    assert taken_over(PUBLISHED, full_size_config, tmp_path) == (
        {"threshold_to_save_all_runs_ms": 53700},
        [],
    )


def test_what_published_configurations_name_is_a_setting(full_size_config, tmp_path):
    theirs = {"timeout_during_run_ms": 9000, "timeout_between_runs_ms": 9, "game_camera_number": 1}
    theirs |= {
        "game_reboot_interval": 60,
        "clip_grad_value": 5,
        "adam_beta1": 0.8,
        "adam_beta2": 0.99,
        "prio_beta": 0.5,
    }
    theirs |= {"prio_alpha": 0.3, "prio_epsilon": 0.1, "overall_reset_mul_factor": 0.2, "last_layer_reset_factor": 0.3}
    theirs |= {"additional_transition_after_reset": 7, "margin_to_announce_finish_meters": 500}
    theirs |= {"distance_between_checkpoints": 1.0, "road_width": 60}
    text = "".join(f"{name} = {value}\n" for name, value in theirs.items())
    ours = {NAMES_HERE.get(name, name): value for name, value in theirs.items()}
    assert taken_over(text, full_size_config, tmp_path) == (ours, [])


def test_actions_are_taken_over_whole_or_refused(full_size_config, tmp_path):
    ours = load_settings(full_size_config).game.inputs
    theirs = [keys.model_dump() for keys in (*ours[6:], *ours[:6], ours[0])]
    text = f"inputs = {theirs!r}\naction_forward_idx = 12"
    taken, problems = taken_over(text, full_size_config, tmp_path)
    assert (list(taken["inputs"]), taken["action_forward_idx"], problems) == (theirs, 12, [])
    for damaged in (text.replace("12", "13"), text.replace("False", "no"), text + "\ninputs.reverse()"):
        with pytest.raises(UserError, match="the network would press other keys"):
            taken_over(damaged, full_size_config, tmp_path)


@pytest.mark.parametrize("text", ["def (", "\0", "x = " + "(" * 5000, "a" * 10 + "=" + "-" * 100_000 + "1"])
def test_no_python_is_told(tmp_path, text):
    (tmp_path / "config.py").write_text(text)
    with pytest.raises(UserError, match=r"is no Python file"):
        read_linesight_config(tmp_path / "config.py")
    with pytest.raises(UserError, match="No such file"):
        read_linesight_config(tmp_path / "absent.py")


def test_the_import_takes_the_runs_own_configuration(small_run, tmp_path, tool):
    sizes = "W_downsized = 19\nH_downsized = 17\nfloat_hidden_dim = 11\ndense_hidden_dimension = 14\n"
    (small_run.folder / "config_copy.py").write_text(sizes + "iqn_embedding_dimension = 9\nbatch_size = 333\n")
    words = ("--set", "conv_channels=(3, 5)", "--set", "conv_kernel_sizes=(4, 3)", "--set", "conv_strides=(2, 1)")
    output = tmp_path / "save" / "mine"
    assert tool("import_linesight", small_run.folder, "--output", output, *words) == 0
    assert load_settings(output / "settings.toml").replay.batch_size == 333


@pytest.mark.parametrize(
    "statement",
    [
        "batch_size *= 2",
        "batch_size = other = 3",
        "if is_linux:\n    batch_size = 3",
        "batch_size[0] = 3",
    ],
)
def test_a_value_that_another_statement_may_change_is_told_not_taken(full_size_config, tmp_path, statement):
    assert taken_over(f"batch_size = 9\n{statement}", full_size_config, tmp_path) == (
        {},
        ["batch_size: its value takes code, which is not run"],
    )
