"""Settings taken over from a Linesight configuration that is parsed, not run."""

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.migration.linesight_config import read_linesight_config, settings_from_linesight
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
    assert len(problems) == 1
    assert "iqn_n" in problems[0]
    assert settings_from_flat(base.flat() | taken).game.map_cycle[0].map_name == "map5"
    assert not (folder / "was_run").exists()


def test_the_published_defaults_change_nothing(full_size_config, tmp_path):
    file = tmp_path / "config.py"
    file.write_text(
        "batch_size = 512\nroad_width = 90\ngamma_schedule = [(0, 0.999), (1_500_000, 0.999), (2_500_000, 1)]"
    )
    assert settings_from_linesight(read_linesight_config(file), load_settings(full_size_config)) == ({}, [])


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
    assert load_settings(output / "config" / "config.py").replay.batch_size == 333


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory_size_schedule = [(0, (100_000, 75_000))]", {"size": 100_000, "start": 75_000}),
        ("memory_size_schedule = [(0, (15_000, 5_000))]", {"size": 15_000, "start": 5_000}),
    ],
)
def test_settings_that_go_only_together_are_taken_together(full_size_config, tmp_path, text, expected):
    (tmp_path / "config.py").write_text(text)
    taken, problems = settings_from_linesight(
        read_linesight_config(tmp_path / "config.py"), load_settings(full_size_config)
    )
    assert problems == []
    assert taken["memory_size_schedule"] == ((0, expected["size"]),)
    assert taken["memory_size_start_learn_schedule"] == ((0, expected["start"]),)
