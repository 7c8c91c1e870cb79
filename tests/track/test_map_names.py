"""Maps as a user names them: for a training (`overrides_for_maps`), and for everything else (`map_entries`)."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.track.named_maps import map_entries, overrides_for_maps


def chosen(repository_root, maps_folder, *names, config="config.py"):
    """Return the map cycle of a command with these maps, through the texts that the command line makes of them."""
    config_file = repository_root / "config_files" / config
    overrides = overrides_for_maps(load_settings(config_file), maps_folder, names)
    return load_settings(config_file, [f"{name}={value!r}" for name, value in overrides.items()])


def kinds(settings):
    return [(entry.map_name, entry.is_explo, entry.repeat) for entry in settings.game.map_cycle]


@pytest.fixture
def own_maps(tmp_path):
    """A maps folder with a line, and a map of the real game with its line."""
    line_m = np.arange(0.0, 60.0, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0)
    for name in ("my line", "mine_0.5m"):
        np.save(tmp_path / f"{name}.npy", line_m)
    (tmp_path / "mine.Challenge.Gbx").write_bytes(b"GBX")
    return tmp_path


def test_a_shipped_track_is_explored_and_measured(repository_root):
    settings = chosen(repository_root, repository_root / "maps", "kart")
    assert settings.run.run_name == "simulated_kart"
    assert kinds(settings) == [("kart", True, 4), ("kart", False, 1)]
    assert {entry.map_path for entry in settings.game.map_cycle} == {"kart.toml"}
    assert {entry.reference_line for entry in settings.game.map_cycle} == {"kart_0.5m.npy"}


@pytest.mark.parametrize(
    ("name", "map_name", "last_seed"),
    [("generated:0.5:7", "generated_0.500_7", 7), ("generated:0.5:7-9", "generated_0.500_7-9", 9)],
)
def test_a_generated_track(repository_root, name, map_name, last_seed):
    settings = chosen(repository_root, repository_root / "maps", name)
    generator = settings.game.map_cycle[0].generator
    assert kinds(settings) == [(map_name, True, 4), (map_name, False, 1)]
    assert (generator.first_seed, generator.last_seed, generator.difficulty) == (7, last_seed, 0.5)
    assert generator.is_one_track == (last_seed == 7)


def test_an_environment_has_no_maps(repository_root, own_maps):
    cartpole = load_settings(repository_root / "config_files" / "config_cartpole.py")
    with pytest.raises(UserError, match=r"cartpole: no map, but .*GymnasiumGames.*; only races are driven"):
        map_entries(cartpole, own_maps)


@pytest.mark.parametrize("name", ["mine", "mine.Challenge.Gbx"])
def test_a_map_of_the_real_game(repository_root, own_maps, name):
    entry = chosen(repository_root, own_maps, name, config="config_tmnf.py").game.map_cycle[0]
    assert (entry.map_name, entry.map_path, entry.reference_line) == ("mine", "mine.Challenge.Gbx", "mine_0.5m.npy")


@pytest.mark.parametrize(
    ("config", "name", "told"),
    [
        ("config.py", "cart", r"--map cart: no such track file \(did you mean kart\?\); .*kart\.toml.*maps\.py add"),
        (
            "config.py",
            "my.Challenge.Gbx",
            r"with python scripts/tools/maps\.py add my\.Challenge\.Gbx REPLAY\.Replay\.Gbx --name my, and",
        ),
        ("config_tmnf.py", "kart", r"--map kart: not among .*\(hock\).*no .*kart\.Challenge\.Gbx.*maps\.py add"),
        ("config_cartpole.py", "kart", "this configuration has no maps"),
    ],
)
def test_an_unknown_map_to_train_on_is_refused(repository_root, config, name, told):
    with pytest.raises(UserError, match=told):
        chosen(repository_root, repository_root / "maps", name, config=config)


@pytest.fixture
def settings(repository_root):
    """A map cycle of one map, `bend`."""
    entry = {"map_name": "bend", "map_path": "my line.npy", "reference_line": "my line.npy", "fill_buffer": True}
    cycle = tuple(entry | {"is_explo": is_explo} for is_explo in (True, False))
    return load_settings(repository_root / "config_files" / "config.py", [f"map_cycle={cycle!r}"])


def test_maps_are_those_of_the_run_or_track_files(settings, own_maps, repository_root):
    assert [entry.map_name for entry in map_entries(settings, own_maps)] == ["bend"]
    kart, bend, line = map_entries(settings, repository_root / "maps", ["kart", "bend", str(own_maps / "my line.npy")])
    assert kart.map_path == str(repository_root / "maps" / "kart.toml")
    assert kart.reference_line == str(repository_root / "maps" / "kart_0.5m.npy")
    assert bend.map_path == "my line.npy"
    assert (line.map_name, line.map_path) == ("my line", line.reference_line)


def test_generated_tracks_are_named_by_difficulty_and_seeds(settings, tmp_path):
    entries = map_entries(settings, tmp_path, ["generated:0.5:1000-1001", "generated:1:7", "bend"], tmp_path)
    names = ["generated_0.500_1000", "generated_0.500_1001", "generated_1.000_7", "bend"]
    assert [entry.map_name for entry in entries] == names
    assert all(Path(entry.map_path).parent == tmp_path for entry in entries[:3])
    generator = {"difficulty": (0.1, 0.3), "first_seed": 5, "last_seed": 7}
    made = MapEntry(map_name="made", generator=generator, is_explo=False, fill_buffer=False)
    game = settings.game.model_copy(update={"map_cycle": (made,)})
    entries = map_entries(settings.model_copy(update={"game": game}), tmp_path, (), tmp_path)
    names = ["generated_0.100_5", "generated_0.200_6", "generated_0.300_7"]
    assert [entry.map_name for entry in entries] == names


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("generated:hard:1-2", "write generated:DIFFICULTY:FIRST_SEED-LAST_SEED"),
        ("generated:0.5:0-5000", "1000 tracks at most"),
        ("absent", "bend"),
        ("_line.npy", "rename it"),
    ],
)
def test_a_name_of_no_map_is_refused(settings, own_maps, name, told):
    (own_maps / "_line.npy").write_bytes((own_maps / "my line.npy").read_bytes())
    with pytest.raises(UserError, match=told):
        map_entries(settings, own_maps, [str(own_maps / name) if name == "_line.npy" else name], own_maps)
