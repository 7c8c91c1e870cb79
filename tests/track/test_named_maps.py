"""Maps as a user names them: of the map cycle, track files, generated tracks."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, Settings, load_settings
from trackmania_rl.track.named_maps import map_entries


@pytest.fixture
def maps_folder(tmp_path: Path) -> Path:
    """`curve.npy`, a line that can be driven."""
    folder = tmp_path / "maps with spaces"
    folder.mkdir()
    np.save(folder / "curve.npy", np.arange(0.0, 60.0, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0))
    return folder


@pytest.fixture
def settings(repository_root: Path) -> Settings:
    """A map cycle of one map, `bend`."""
    entry = {"map_name": "bend", "map_path": "curve.npy", "reference_line": "curve.npy", "fill_buffer": True}
    cycle = tuple(entry | {"is_explo": is_explo} for is_explo in (True, False))
    return load_settings(repository_root / "config_files" / "config.py", [f"map_cycle={cycle!r}"])


def test_maps_are_those_of_the_run_or_track_files(settings: Settings, maps_folder: Path, repository_root: Path) -> None:
    assert [entry.map_name for entry in map_entries(settings, maps_folder)] == ["bend"]
    kart, bend, line = map_entries(settings, repository_root / "maps", ["kart", "bend", str(maps_folder / "curve.npy")])
    assert kart.map_path == str(repository_root / "maps" / "kart.toml")
    assert kart.reference_line == str(repository_root / "maps" / "kart_0.5m.npy")
    assert bend.map_path == "curve.npy"
    assert (line.map_name, line.map_path) == ("curve", line.reference_line)


def test_an_environment_has_no_maps(repository_root: Path, maps_folder: Path) -> None:
    cartpole = load_settings(repository_root / "config_files" / "config_cartpole.py")
    with pytest.raises(UserError, match=r"cartpole: no map, but .*GymnasiumGames.*; only races are driven"):
        map_entries(cartpole, maps_folder)


def test_generated_tracks_are_named_by_difficulty_and_seeds(
    settings: Settings, maps_folder: Path, tmp_path: Path
) -> None:
    names = ["generated:0.5:1000-1002", "generated:1:7", "bend"]
    entries = map_entries(settings, maps_folder, names, tmp_path)
    assert [entry.map_name for entry in entries] == [
        *(f"generated_0.500_{seed}" for seed in (1000, 1001, 1002)),
        *("generated_1.000_7", "bend"),
    ]
    assert all(Path(entry.map_path).parent == tmp_path for entry in entries[:4])
    generator = {"difficulty": (0.1, 0.3), "first_seed": 5, "last_seed": 7}
    made = MapEntry(map_name="made", generator=generator, is_explo=False, fill_buffer=False)
    game = settings.game.model_copy(update={"map_cycle": (made,)})
    generated = settings.model_copy(update={"game": game})
    assert [entry.map_name for entry in map_entries(generated, maps_folder, (), tmp_path)] == [
        "generated_0.100_5",
        "generated_0.200_6",
        "generated_0.300_7",
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("generated:0.5", "write generated:DIFFICULTY:FIRST_SEED-LAST_SEED"),
        ("generated:hard:1-2", "write generated:DIFFICULTY:FIRST_SEED-LAST_SEED"),
        ("generated:1.5:1-2", "difficulty = 1.5"),
        ("generated:0.5:9-8", "the first seed comes first"),
        ("generated:0.5:0-5000", "1000 tracks at most"),
    ],
)
def test_generated_tracks_that_cannot_be_are_told(
    settings: Settings, maps_folder: Path, tmp_path: Path, name: str, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        map_entries(settings, maps_folder, [name], tmp_path)


@pytest.mark.parametrize(("name", "told"), [("absent", "bend"), ("README.rst", "no such track file")])
def test_an_unknown_map_is_told_with_those_that_there_are(
    settings: Settings, maps_folder: Path, name: str, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        map_entries(settings, maps_folder, [name])


def test_a_track_file_whose_name_cannot_name_a_map_is_told(
    settings: Settings, maps_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "_curve.npy").write_bytes((maps_folder / "curve.npy").read_bytes())
    with pytest.raises(UserError, match="rename it"):
        map_entries(settings, maps_folder, [str(tmp_path / "_curve.npy")])
