"""Names of runs, maps and drivers are files' names on Linux and Windows alike."""

from pathlib import Path

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.files import as_file_name, check_file_name, require_short_paths, require_utf8, same_on_windows
from trackmania_rl.settings import MapEntry, SettingsError, load_settings

GOOD = ["valley", "v1.2", "A01-Race", "a b", "x" * 80, "nullable", "console.1", "com10", "7"]
DEVICES = ["nul", "NUL", "con", "aux", "prn", "com1", "LPT9", "nul.driver", "con.a.b", "nul .txt"]
NONE = ["v1.", "a ", " a", ".", "..", "", "x" * 81, *(f"a{letter}b" for letter in ':*?"<>|/\\\0\n\t\x1f')]


def test_a_folder_that_is_not_utf8_is_told():
    require_utf8(Path("größe"))
    with pytest.raises(UserError, match="the folder's path is not UTF-8"):
        require_utf8(Path("x\udcff"))


@pytest.mark.parametrize("name", GOOD)
def test_good_names_stay(name):
    assert check_file_name(name) == name


@pytest.mark.parametrize("name", [*DEVICES, *NONE])
def test_a_bad_name_is_refused_as_a_name_of_a_run_and_of_a_map(name, repository_root):
    told = "is a device, not a file" if name in DEVICES else "no name of a file on all systems"
    with pytest.raises(ValueError, match=told):
        check_file_name(name)
    with pytest.raises(SettingsError, match="run_name = "):
        load_settings(repository_root / "config_files" / "config.py", {"run_name": name})
    with pytest.raises(ValueError, match="map_name"):
        MapEntry(map_name=name, is_explo=True, fill_buffer=True)


def test_maps_that_windows_takes_for_one_are_refused(repository_root):
    cycle = [
        {"map_name": name, "map_path": "valley.toml", "reference_line": "valley_0.5m.npy"}
        | {"is_explo": True, "fill_buffer": True}
        for name in ("Valley", "kart", "valley")
    ]
    with pytest.raises(SettingsError, match="'Valley' and 'valley', which Windows takes for the same name"):
        load_settings(repository_root / "config_files" / "config.py", {"map_cycle": cycle})
    assert same_on_windows(["a", "b", "a"]) is None


def test_any_text_becomes_a_name_or_none():
    assert as_file_name(" Mäp: <1>. ") == "M-p-1"
    assert as_file_name("x" * 79 + "..y") == "x" * 79
    assert as_file_name("nul") is None
    assert as_file_name("?") is None


def test_paths_that_windows_does_not_take_are_told_early():
    deep = Path("/" + "x" * 180)
    require_short_paths([deep], ["valley"], platform="linux")
    require_short_paths([deep], ["valley"], platform="win32", takes_long_ones=True)
    require_short_paths([Path("/short")], ["valley"], platform="win32", takes_long_ones=False)
    with pytest.raises(UserError, match=r"paths of 273 letters, and Windows takes 259"):
        require_short_paths([deep], ["a name of some length"], platform="win32", takes_long_ones=False)
