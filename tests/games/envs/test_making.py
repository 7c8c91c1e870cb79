"""From arguments to environments: configuration, overrides, maps; and what stays behind when it fails."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import RaceEnv, make_race_env
from trackmania_rl.settings import MapEntry

MakeEnv = Callable[..., RaceEnv]


def entry(name: str, **changes) -> MapEntry:
    files = {"map_path": f"{name}.toml", "reference_line": f"{name}.npy"}
    return MapEntry(**({"map_name": name, "is_explo": True, "fill_buffer": True} | files | changes))


def test_overrides_are_values_of_any_kind(make_env: MakeEnv, tracks: dict[str, str]) -> None:
    folder = Path(tracks["lane"]).parent
    overrides = {
        "map_cycle": [entry("lane", reference_line="lane_0.5m.npy")],
        "maps_folder": folder,
        "image_width_px": np.int64(40),
        "image_height_px": np.uint8(30),
        "cutoff_progress_m": np.float32(6.5),
        "epsilon_schedule": np.array([[0, 1], [100, 0]]),
    }
    env = make_env(overrides=overrides)
    assert env.reset()[1]["map"] == "lane"
    assert env.settings.game.maps_folder == str(folder)
    assert (env.settings.game.image_width_px, env.settings.game.image_height_px) == (40, 30)
    assert env.settings.game.cutoff_progress_m == 6.5
    assert env.settings.exploration.epsilon_schedule == ((0, 1.0), (100, 0.0))


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"batch_sise": 8}, "with overrides: batch_sise is no known setting; did you mean batch_size"),
        ({"batch_size": np.int32(-8)}, "with overrides: batch_size = -8: "),
        ({"map_cycle": [{"map_name": "x", "map_path": Path("x")}]}, "with overrides: map_cycle"),
    ],
)
def test_a_wrong_override_is_told(make_env: MakeEnv, overrides: dict, told: str) -> None:
    with pytest.raises(UserError, match=told) as refused:
        make_env("straight", overrides=overrides)
    assert "--set" not in str(refused.value)


def test_a_relative_configuration_lies_here_or_in_the_project(
    make_env: MakeEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository_root: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_env("straight", config="config_files/config.py").settings.game.cutoff_progress_m == 6.0
    shutil.copytree(repository_root / "config_files", "config_files", ignore=shutil.ignore_patterns("__pycache__"))
    with Path("config_files/config.py").open("a") as config:
        config.write("cutoff_progress_m = 5.5\n")
    assert make_env("straight", config="config_files/config.py").settings.game.cutoff_progress_m == 5.5
    with pytest.raises(UserError, match=r"config = 'absent\.py': there is no such file here, nor in"):
        make_env("straight", config="absent.py")


def test_without_maps_they_are_drawn_as_often_as_in_the_map_cycle(make_env: MakeEnv, tracks: dict[str, str]) -> None:
    folder = Path(tracks["lane"]).parent
    lines = {name: f"{name}_0.5m.npy" for name in ("lane", "straight")}
    cycle = [
        entry("lane", reference_line=lines["lane"], repeat=3),
        entry("straight", reference_line=lines["straight"]),
        entry("elsewhere", is_explo=False, repeat=100),
    ]
    env = make_env(overrides={"map_cycle": cycle, "maps_folder": folder})
    assert env.map_names == ("lane", "straight")
    drawn = [env.reset(seed=1 if race == 0 else None)[1]["map"] for race in range(200)]
    assert drawn.count("lane") == pytest.approx(150, abs=20)


def test_two_maps_of_the_same_name_are_refused(make_env: MakeEnv, tracks: dict[str, str], tmp_path: Path) -> None:
    for file in Path(tracks["lane"]).parent.glob("lane*"):
        shutil.copy(file, tmp_path)
    other = str(tmp_path / "lane.toml")
    with pytest.raises(UserError, match="are both named lane") as refused:
        make_env("lane", other)
    assert tracks["lane"] in str(refused.value)
    assert other in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"maps": ["generated:0.2:7", "absent"]},
        {"maps": "generated:0.2:7", "render_mode": "ansi"},
        {"maps": "generated:0.2:7", "reward": "score"},
    ],
)
def test_an_environment_that_cannot_be_made_leaves_nothing_behind(
    arguments: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError):
        make_race_env(**arguments)
    assert not list(tmp_path.iterdir())


def test_importing_the_package_registers_the_environments_without_their_code() -> None:
    code = (
        "import sys, gymnasium, trackmania_rl as t; "
        "print([gymnasium.spec(id).id for id in (t.RACE_ID, t.ANALOG_RACE_ID, t.REAL_TIME_RACE_ID)]); "
        "print(sorted({'torch', 'numba', 'trackmania_rl.games'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [
        "['TrackMania/Race-v0', 'TrackMania/RaceAnalog-v0', 'TrackMania/RealTime-v0']",
        "[]",
    ]
