"""`scripts/tools/driver.py` and what takes its files, as their users meet them."""

import json
import shutil
from pathlib import Path

import pytest

from trackmania_rl.settings import DRIVER_SETTINGS, Settings, load_settings

from .conftest import MakeScript


def test_a_run_is_packed_shown_and_driven_elsewhere(
    script: MakeScript, run_folder: Path, maps_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = script("tools/driver", "pack", run_folder)
    assert (code, err, out) == (0, "", "wrote simulated.driver (0.0 MB)\n")
    code, out, err = script("tools/driver", "show", "simulated.driver")
    assert (code, err) == (0, "")
    for told in ("bend not finished", "1,234 frames, 9.5 minutes", "184 floats in 16 blocks, no image", "every 50 ms"):
        assert told in " ".join(out.split())
    code, out, err = script(
        *("evaluate", "simulated.driver", "--map", maps_folder / "curve.npy", "--no-video", "--json", "r.json")
    )
    assert (code, err) == (0, "")
    report = json.loads(Path("r.json").read_text())
    assert report["maps"][0]["finish_rate"] == 1
    assert (report["run"], report["checkpoint"]) == ("simulated.driver", "simulated.driver")
    assert Path(report["maps"][0]["inputs_file"]).parent == Path("evaluation/simulated")


def test_its_settings_become_a_configuration(
    script: MakeScript, driver_file: Path, run_settings: Settings, repository_root: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository_root / "config_files", tmp_path / "config_files")
    file = tmp_path / "config_files" / "config_bend.py"
    code, out, err = script("tools/driver", "configuration", driver_file, "-o", file)
    assert (code, err) == (0, "")
    assert f"--config {file} --weights-from {driver_file}" in out
    written, packed = load_settings(file).flat(), run_settings.flat()
    assert {name: written[name] for name in DRIVER_SETTINGS} == {name: packed[name] for name in DRIVER_SETTINGS}
    code, _, err = script("tools/driver", "configuration", driver_file, "-o", file)
    assert (code, err) == (1, f"error: {file} is there already: name another file with --output\n")


def test_packing_says_which_code_a_driver_needs(
    script: MakeScript, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_folder, "run")
    with Path("run/config/config.py").open("a") as config:
        config.write('network = "network_of_mine:Network"\n')
    Path("network_of_mine.py").write_text("from trackmania_rl.agents.iqn import IQN_Network as Network\n")
    code, out, err = script("tools/driver", "pack", "run", "-o", "own.driver")
    assert (code, err) == (0, "")
    assert "who drives it needs this code of yours as well: network: network_of_mine:Network" in out
    code, _, err = script("evaluate", "own.driver", "--no-video")
    assert code == 1
    assert err.startswith("error: own.driver: its setting network names code that does not ship")
    code, out, _ = script("tools/driver", "show", "own.driver")
    assert "network_of_mine:Network" in out


def test_mistakes_are_told_in_one_line(script: MakeScript, driver_file: Path, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short.driver").write_bytes(driver_file.read_bytes()[:2000])
    cases = {
        "no such run folder": ("tools/driver", "pack", tmp_path / "absent"),
        "is called NAME.driver": ("tools/driver", "pack", run_folder, "-o", tmp_path / "a.pt"),
        "absent.driver: cannot be read": ("tools/driver", "show", tmp_path / "absent.driver"),
        "is damaged, or no driver": ("evaluate", tmp_path / "short.driver"),
        "leave --checkpoint out": ("evaluate", driver_file, "--checkpoint", run_folder / "checkpoints" / "000001"),
        "curve.npy": ("evaluate", driver_file),  # its track did not come with it
    }
    for told, command in cases.items():
        code, _, err = script(*command)
        assert code == 1, command
        assert err.startswith("error: ")
        assert told in err
        assert err.count("\n") == 1, err
