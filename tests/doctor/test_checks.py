"""Each check on a machine that is made up."""

import dataclasses
import socket
from importlib.metadata import Distribution
from pathlib import Path

import pytest
import torch

from trackmania_rl.doctor import examination, run_checks
from trackmania_rl.doctor.examination import check_start, examine
from trackmania_rl.doctor.findings import Check, Context, Level, System
from trackmania_rl.doctor.game_checks import (
    check_game,
    check_game_command,
    check_game_documents,
    check_login,
    check_plugin,
    check_tmloader,
    check_window,
    check_wine,
)
from trackmania_rl.doctor.machine_checks import (
    check_disk,
    check_distribution,
    check_folder,
    check_gpu,
    check_machine,
    check_memory,
    check_packages,
    check_python,
    pinned,
)
from trackmania_rl.doctor.run_checks import check_maps, check_ports
from trackmania_rl.errors import UserError
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers.game_windows import NoWindows
from trackmania_rl.tmi_interaction.launchers.kept_game import lock_of_kept_game
from trackmania_rl.tmi_interaction.launchers.plugin_files import PLUGIN_FILE, PLUGIN_NAME
from trackmania_rl.tmi_interaction.transport import GameConnectionError

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


@pytest.fixture
def system(tmp_path):
    """A Linux machine on which all is well."""
    return System(
        platform="linux",
        name="Linux 6.1",
        n_cores=4,
        python=(3, 11, 9),
        home=tmp_path,
        installed_version={"numpy": "2.4.6", "torch": "2.13.0+cpu"}.get,
        total_memory_bytes=lambda: 96 << 30,
        available_memory_bytes=lambda: 64 << 30,
        free_disk_bytes=lambda folder: 100 << 30,
        which=lambda program: f"/usr/bin/{program}" if program in ("wine", "sh") else None,
        gpu_name=lambda: None,
        gpu_memory_bytes=lambda: None,
        open_windows=lambda: object(),
    )


@pytest.fixture
def context(system, tmp_path, repository_root):
    """Of the default configuration, with changes."""

    def make(*overrides, config="config.py", project=repository_root, **of_system):
        settings = load_settings(repository_root / "config_files" / config, overrides)
        return Context(settings, tmp_path, project, dataclasses.replace(system, **of_system))

    return make


def only(findings):
    assert len(findings) == 1, findings
    assert "\n" not in findings[0].text
    return findings[0].level, findings[0].text


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10, 4), PROBLEM), ((3, 11, 0), OK), ((3, 12, 9), OK), ((3, 13, 0), WARNING)]
)
def test_python(system, version, level):
    found, text = only(check_python(dataclasses.replace(system, python=version)))
    assert found is level
    assert ".".join(map(str, version)) in text


def test_packages(system, tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# two that fit\ntorch==2.13.0\nnumpy==2.4.6  # here\n./third_party/x\n-e .\n"
        'pywin32==312; sys_platform == "no such system"\n'
    )
    assert only(check_packages(system, pinned(file))) == (OK, "2 packages have the tested versions")
    file.write_text("torch==2.12.0\nrich==15.0.0\npython-xlib==0.33\n")
    found = check_packages(system, pinned(file))
    assert [finding.level for finding in found] == [WARNING, PROBLEM, WARNING, OK]
    assert "torch is 2.13.0+cpu, and 2.12.0 is what is tested: python -m pip install" in found[0].text
    assert "rich is not installed" in found[1].text
    assert "python-xlib is not installed" in found[2].text


def test_packages_of_a_wheel(system, tmp_path):
    """The declared dependencies, and extras by name in place of a file that an installed package lacks."""
    (tmp_path / "METADATA").write_text(
        "Name: trackmania-rl\nVersion: 1\nProvides-Extra: dashboard\nProvides-Extra: test\nProvides-Extra: fast\n"
        "Requires-Dist: torch>=2.12,<2.15\nRequires-Dist: numpy>=3\nRequires-Dist: fastapi; extra == 'dashboard'\n"
        "Requires-Dist: pytest; extra == 'test'\nRequires-Dist: numpy; extra == 'fast'\n"
    )
    found = check_distribution(system, Distribution.at(tmp_path))
    assert [finding.level for finding in found] == [WARNING, OK, OK]
    assert "numpy is 2.4.6, and >=3 is what is tested" in found[0].text
    assert found[1].text == "1 packages have the tested versions"
    assert found[2].text.startswith("extras that are not installed: dashboard; ")
    assert found[2].text.endswith('python -m pip install "trackmania-rl[dashboard]"')


def test_gpu(context):
    small, large = context("torch_device=cpu"), context("torch_device=cpu", config="config_tmnf.py")
    assert only(check_gpu(small.settings, small.system))[0] is OK
    level, text = only(check_gpu(large.settings, large.system))
    assert level is WARNING
    assert "much slower than on a GPU" in text
    assert "GPU or no GPU" in text
    level, text = only(check_gpu(context("torch_device=cuda:99").settings, large.system))
    assert level is PROBLEM
    assert "cuda:99" in text
    level, text = only(check_gpu(context("collector_device=cuda:98").settings, large.system))
    assert level is PROBLEM
    assert 'collector_device = "cuda:98" cannot be used here' in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a GPU that torch cannot use")
def test_a_gpu_that_does_not_work_is_told(context):
    unusable = context("torch_device=auto", gpu_name=lambda: "GTX 1050")
    level, text = only(check_gpu(unusable.settings, unusable.system))
    assert level is WARNING
    assert "GTX 1050 cannot be used: " in text


def test_memory(context):
    for gib, level in ((2, WARNING), (64, OK)):
        large = context(config="config_tmnf.py", available_memory_bytes=lambda gib=gib: gib << 30)
        found, text = only(check_memory(large.settings, large.system))
        assert found is level
        # 200,000 transitions of 184 floats, 160 x 120 pixels, 16 bytes in other columns and 16 in lists: 3.72 GiB
        assert "3.7 GiB of it for the replay memory" in text


@pytest.mark.parametrize(
    ("config", "gpu", "told"),
    [
        ("config.py", None, ("64.0 GiB available), 100.0 GiB of disk free, no GPU", "a GPU is not needed")),
        ("config_tmnf.py", "RTX 4070", ("RTX 4070, 12.0 GiB; this", "a GPU is advised, as the network sees images")),
    ],
)
def test_what_the_machine_has_beside_what_is_needed(context, config, gpu, told):
    made = context(config=config, gpu_name=lambda: gpu, gpu_memory_bytes=lambda: gpu and 12 << 30)
    level, text = only(check_machine(made))
    assert level is OK
    assert text.startswith("Linux 6.1, 4 cores, 96.0 GiB of memory (64.0 GiB available), ")
    assert all(words in text for words in told), text


def test_more_collectors_than_cores_are_a_warning(context):
    assert only(check_machine(context("n_collectors=4")))[0] is OK
    level, text = only(check_machine(context("n_collectors=5"))[1:])
    assert level is WARNING
    assert "n_collectors = 5, but there are 4 cores" in text


def test_folder_and_disk(context, tmp_path):
    assert only(check_folder(tmp_path))[0] is OK
    level, text = only(check_folder(tmp_path / "absent" / "too"))
    assert level is OK
    assert text.endswith("too will be made")
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        level, text = only(check_folder(folder))
        assert level is PROBLEM
        assert str(folder) in text
    assert only(check_disk(context()))[0] is OK
    absent = dataclasses.replace(
        context(free_disk_bytes=System().free_disk_bytes), output_folder=tmp_path / "absent" / "too"
    )
    assert only(check_disk(absent))[0] is OK
    level, text = only(
        check_disk(context("checkpoint_holds_replay=True", config="config_tmnf.py", free_disk_bytes=lambda _: 2 << 30))
    )
    assert level is WARNING
    assert "2,048 MB free, and checkpoints with a full replay memory take up to 1" in text
    assert "checkpoint_holds_replay = False" in text
    level, text = only(check_disk(context(free_disk_bytes=lambda folder: 150 << 20)))
    assert level is PROBLEM
    assert "150 MB free, less than minimum_free_disk_mb = 200" in text


def test_maps(context, tmp_path):
    assert only(check_maps(context()))[0] is OK
    level, text = only(check_maps(context(f"maps_folder={tmp_path}")))
    assert level is PROBLEM
    assert text.startswith("map valley: ")


def test_maps_of_the_real_game(context, tmp_path):
    challenges = tmp_path / "Tracks" / "Challenges"
    challenges.mkdir(parents=True)
    real = context('game="tmnf"', f"trackmania_base_path={tmp_path}")  # whose map cycle asks for valley.toml
    line, of_game = check_maps(real)
    assert line.level is OK
    assert of_game.level is PROBLEM
    assert "the game has no such map" in of_game.text
    (challenges / "valley.toml").touch()
    assert only(check_maps(real))[0] is OK


def test_ports(context):
    class Records:
        def left_behind(self, port):
            return process

    process = None
    assert only(check_ports(context().settings))[0] is OK
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = context("game_transport=socket", f"base_tmi_port={port}", "games_per_collector=1").settings
        assert only(check_ports(settings, Records()))[0] is PROBLEM
        process = type("Process", (), {"pid": 77})
        level, text = only(check_ports(settings, Records()))
        assert level is WARNING
        assert "process 77" in text
    assert only(check_ports(settings))[0] is OK


def test_kept_games_greet(context, monkeypatch):
    """One that does not fails alone; where none does, nothing can be driven."""

    def greet(port, within_s):
        if port in absent:
            raise GameConnectionError("nobody listens")

    monkeypatch.setattr(run_checks, "greet", greet)
    kept = "game_transport=socket", "games_are_kept=True", "games_per_collector=2", "base_tmi_port=23456"
    real = "game=tmnf", "games_are_kept=True", "n_collectors=2", "games_per_collector=1", "base_tmi_port=23456"
    absent = ()
    for asked_for in (context(*kept), context(*real, platform="darwin")):
        assert only(check_ports(asked_for.settings)) == (OK, "the kept games at 23456 to 23457 greet")
        assert only(check_game(asked_for)) == (OK, "kept by scripts/keep_games.py, on this machine or another one")
    absent = (23457,)
    level, text = only(check_ports(context(*kept).settings))
    assert level is WARNING
    assert text.startswith("no kept game greets at port 23457 (nobody listens)")
    absent = (23456, 23457)
    level, text = only(check_ports(context(*kept).settings))
    assert level is PROBLEM
    assert "python scripts/keep_games.py --ports 23456" in text
    with lock_of_kept_game(23456):
        level, text = only(check_ports(context(*kept).settings))
    assert level is PROBLEM
    assert "another collector of this machine plays on the kept game at port 23456" in text


def test_the_simulated_game_needs_nothing(context):
    assert only(check_game(context(platform="darwin")))[0] is OK


def test_a_system_that_the_real_game_does_not_know(context):
    level, text = only(check_game(context('game="tmnf"', platform="darwin")))
    assert level is PROBLEM
    assert "darwin" in text


def test_tmloader(context, tmp_path):
    assert only(check_tmloader(context()))[0] is PROBLEM
    program = tmp_path / "AppData" / "Local" / "TMLoader" / "TMLoader.exe"
    program.parent.mkdir(parents=True)
    program.touch()
    assert only(check_tmloader(context())) == (OK, str(program))
    assert only(check_tmloader(context("tmloader_path=/no/TMLoader.exe")))[0] is PROBLEM


def test_game_command_and_wine(context):
    level, text = only(check_game_command(context()))
    assert level is PROBLEM
    assert "launcher" in text
    assert only(check_game_command(context("game_command=sh start.sh {port}"))) == (OK, "sh start.sh {port}")
    assert only(check_wine(context())) == (OK, "found wine")
    assert only(check_wine(context(which=lambda program: None)))[0] is WARNING


def test_game_documents(context, tmp_path):
    assert only(check_game_documents(context()))[0] is WARNING
    (tmp_path / "OneDrive" / "Documents" / "TrackMania" / "Tracks" / "Challenges").mkdir(parents=True)
    assert "OneDrive" in only(check_game_documents(context()))[1]
    folder = tmp_path / "OneDrive" / "Documents" / "TrackMania"
    assert only(check_game_documents(context(f"trackmania_base_path={folder}")))[0] is OK
    assert only(check_game_documents(context(f"trackmania_base_path={folder.parent}")))[0] is PROBLEM


def test_plugin_is_put_in_place_and_nothing_is_lost(context, tmp_path):
    assert only(check_plugin(context()))[0] is WARNING  # no folder, and none is named
    assert only(check_plugin(context(f"trackmania_base_path={tmp_path / 'elsewhere' / 'TrackMania'}")))[0] is PROBLEM
    plugin = tmp_path / "Documents" / "TMInterface" / "Plugins" / PLUGIN_NAME
    plugin.parent.mkdir(parents=True)
    level, text = only(check_plugin(context()))
    assert level is OK
    assert "installed" in text
    assert plugin.read_bytes() == PLUGIN_FILE.read_bytes()
    assert "up to date" in only(check_plugin(context()))[1]
    plugin.write_text("somebody else's plugin")
    level, text = only(check_plugin(context()))
    assert level is WARNING
    assert "what was there before is in" in text
    assert only(check_plugin(context()))[0] is OK
    newer = PLUGIN_FILE.read_text().replace("const int LINK_VERSION = ", "const int LINK_VERSION = 9")
    plugin.write_text(newer)
    assert only(check_plugin(context()))[0] is WARNING
    assert plugin.read_text() == newer


@pytest.mark.parametrize(("name", "level"), [("", WARNING), ("pilot_7.x", OK), ("a; quit", PROBLEM), ("é", PROBLEM)])
def test_login(context, name, level):
    assert only(check_login(context(f"username={name!r}")))[0] is level


def test_window(context):
    assert only(check_window(context()))[0] is OK
    level, text = only(check_window(context(open_windows=lambda: NoWindows("there is no screen"))))
    assert level is WARNING
    assert "there is no screen" in text


def test_a_run_starts_only_without_problems_and_hears_warnings(context, caplog):
    check_start(context())
    with pytest.raises(UserError) as caught:
        check_start(context('game="tmnf"', free_disk_bytes=lambda folder: 0))
    assert "minimum_free_disk_mb" in str(caught.value)
    assert "; and game_command is empty" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "username is empty" in caplog.text
    assert "(docs/troubleshooting.rst, login)" in caplog.text


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_everything_is_checked(context, repository_root, tmp_path, platform):
    config = repository_root / "config_files" / "config_tmnf.py"
    system = dataclasses.replace(context().system, platform=platform)
    found = list(examine(config, [], tmp_path, repository_root, None, system))
    of_system = {"linux": {Check.TMLOADER, Check.PROFILE}, "win32": {Check.GAME_COMMAND, Check.WINE}}[platform]
    played = {check for check in Check if check.value.startswith("play-")}
    assert {finding.check for finding in found} == set(Check) - of_system - played - {Check.CLUSTER}


def test_a_wrong_configuration_ends_the_examination(system, repository_root, tmp_path):
    *_, last = examine(Path("nowhere.py"), [], tmp_path, repository_root, None, system)
    assert last.check is Check.CONFIGURATION
    assert last.level is PROBLEM


@pytest.mark.parametrize("is_there", [True, False])
def test_without_the_real_game_the_simulated_one_is_played(context, repository_root, tmp_path, monkeypatch, is_there):
    played = []
    monkeypatch.setattr(examination, "check_play", lambda of, file: played.append(of.settings.game) or [])
    system = context().system
    overrides = ["game_command=sh start.sh {port}"] if is_there else []
    config = _tmnf(repository_root, tmp_path)
    found = list(examine(config, overrides, tmp_path, repository_root, Path("a.png"), system))
    assert [game.game for game in played] == (["tmnf"] if is_there else ["simulated"])
    assert not played[0].is_in_process
    told = [finding.text for finding in found if (finding.check, finding.level) == (Check.GAME, WARNING)]
    assert ["driven in its place" in text for text in told] == ([] if is_there else [True])


def _tmnf(repository_root, tmp_path):
    """The real game's configuration with a map whose line is there."""
    folder = tmp_path / "config"
    folder.mkdir()
    for file in (repository_root / "config_files").glob("*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    entry = {"map_name": "m", "map_path": "m.Challenge.Gbx", "reference_line": "valley_0.5m.npy"}
    cycle = ({**entry, "is_explo": True, "fill_buffer": True},)
    (folder / "mine.py").write_text(f'based_on = "config_tmnf.py"\nmap_cycle = {cycle!r}\n')
    return folder / "mine.py"
