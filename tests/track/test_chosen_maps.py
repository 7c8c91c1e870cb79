"""`train.py --map`: names become a map cycle, and a name of the run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.track.chosen_maps import overrides_for_maps


def chosen(repository_root: Path, maps_folder: Path, *names: str, config: str = "config.py") -> Settings:
    """What a command with these maps trains with, through the texts that the command line makes of them."""
    config_file = repository_root / "config_files" / config
    overrides: dict[str, Any] = overrides_for_maps(load_settings(config_file), maps_folder, names)
    return load_settings(config_file, [f"{name}={value!r}" for name, value in overrides.items()])


def kinds(settings: Settings) -> list[tuple[str, bool, int]]:
    return [(entry.map_name, entry.is_explo, entry.repeat) for entry in settings.game.map_cycle]


@pytest.fixture
def own_maps(tmp_path: Path) -> Path:
    """A maps folder with a line, and a map of the real game with its line."""
    line_m = np.arange(0.0, 60.0, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0)
    for name in ("my line", "mine_0.5m"):
        np.save(tmp_path / f"{name}.npy", line_m)
    (tmp_path / "mine.Challenge.Gbx").write_bytes(b"GBX")
    return tmp_path


def test_a_shipped_track_is_explored_and_measured(repository_root: Path) -> None:
    settings = chosen(repository_root, repository_root / "maps", "kart")
    assert settings.run.run_name == "simulated_kart"
    assert kinds(settings) == [("kart", True, 4), ("kart", False, 1)]
    assert {entry.map_path for entry in settings.game.map_cycle} == {"kart.toml"}
    assert {entry.reference_line for entry in settings.game.map_cycle} == {"kart_0.5m.npy"}


def test_a_file_elsewhere_keeps_its_whole_path(repository_root: Path, own_maps: Path) -> None:
    settings = chosen(repository_root, repository_root / "maps", str(own_maps / "my line.npy"), "ring")
    assert settings.run.run_name == "simulated_my-line_ring"
    assert settings.game.map_cycle[0].map_path == str(own_maps / "my line.npy")
    assert [name for name, _, _ in kinds(settings)] == ["my line", "my line", "ring", "ring"]


@pytest.mark.parametrize(
    ("name", "map_name", "last_seed"),
    [("generated:0.5:7", "generated_0.500_7", 7), ("generated:0.5:7-9", "generated_0.500_7-9", 9)],
)
def test_a_generated_track(repository_root: Path, name: str, map_name: str, last_seed: int) -> None:
    settings = chosen(repository_root, repository_root / "maps", name)
    generator = settings.game.map_cycle[0].generator
    assert kinds(settings) == [(map_name, True, 4), (map_name, False, 1)]
    assert generator is not None
    assert (generator.first_seed, generator.last_seed, generator.difficulty) == (7, last_seed, 0.5)
    assert generator.is_one_track == (last_seed == 7)


def test_maps_of_the_configuration_keep_their_races(repository_root: Path) -> None:
    settings = chosen(repository_root, repository_root / "maps", "unseen", config="config_many_tracks.py")
    assert kinds(settings) == [("unseen", False, 1)]
    assert settings.run.run_name == "many_tracks_unseen"


@pytest.mark.parametrize("name", ["mine", "mine.Challenge.Gbx"])
def test_a_map_of_the_real_game(repository_root: Path, own_maps: Path, name: str) -> None:
    entry = chosen(repository_root, own_maps, name, config="config_tmnf.py").game.map_cycle[0]
    assert (entry.map_name, entry.map_path, entry.reference_line) == ("mine", "mine.Challenge.Gbx", "mine_0.5m.npy")


@pytest.mark.parametrize(
    ("config", "name", "told"),
    [
        (
            "config.py",
            "cart",
            r"--map cart: no such track file \(did you mean kart\?\); .*kart\.toml.*valley.*maps\.py add",
        ),
        ("config.py", "my.Challenge.Gbx", r"real game becomes a track with python scripts/tools/maps\.py add"),
        ("config.py", "generated:2:1", "difficulty = 2"),
        ("config_tmnf.py", "kart", r"--map kart: not among .*\(hock\).*no .*kart\.Challenge\.Gbx.*maps\.py add"),
        ("config_cartpole.py", "kart", "this configuration has no maps"),
    ],
)
def test_what_is_no_map_is_told(repository_root: Path, config: str, name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        chosen(repository_root, repository_root / "maps", name, config=config)
