"""Commands: exit codes, errors, interruptions, streams, presets and the version."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trackmania_rl.cli import (
    add_configuration_arguments,
    command,
    preset_files,
    worker_token,
)
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.paths import git_revision, program_version
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers.launcher import PortInUseError
from trackmania_rl.tmi_interaction.tminterface2 import GameTimeoutError


@pytest.mark.parametrize(("returned", "exit_code"), [(None, 0), (0, 0), (5, 5)])
def test_the_value_that_a_command_returns_is_its_exit_code(returned, exit_code, capsys):
    @command
    def main(words, shift=0):
        assert (words, shift) == (["a"], 2)
        return returned

    assert main(["a"], shift=2) == exit_code
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (GameTimeoutError("port 1 is silent"), 1, "error: port 1 is silent\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PassingError("port 1 is taken"), 75, "error: port 1 is taken\n"),
        (PortInUseError("port 1 is taken"), 75, "error: port 1 is taken\n"),
        (UserError("port 1 is taken"), 78, "error: port 1 is taken\n"),
    ],
)
def test_an_error_for_the_user_is_one_line_and_an_exit_code(error, exit_code, said, capsys):
    @command
    def main():
        raise error

    assert main() == exit_code
    assert capsys.readouterr() == ("", said)


def test_a_bug_is_not_hidden():
    @command
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main()


def test_names_that_the_terminal_cannot_show_end_nothing():
    script = "from trackmania_rl.cli import command; command(lambda: print('caf\\udce9'))()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout == "caf\\udce9\n", ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word():
    script = "from trackmania_rl.cli import command; command(lambda: print('x' * 10**6))()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="shells close streams otherwise there")
def test_closed_standard_streams_end_nothing_and_no_file_takes_their_place():
    script = (
        "import os; from trackmania_rl.cli import command\n"
        "main = command(lambda: print('out', open(os.devnull).fileno() > 2 or 1 / 0))\n"
        "raise SystemExit(main())"
    )
    closed = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, script]
    assert subprocess.run(closed).returncode == 0


@pytest.fixture
def parser(repository_root):
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    add_configuration_arguments(parser, repository_root / "config_files")
    return parser


def test_a_preset_is_a_configuration_that_ships(parser, repository_root, capsys):
    folder = repository_root / "config_files"
    assert parser.parse_args([]).config == parser.parse_args(["--preset", "default"]).config == folder / "config.py"
    assert parser.parse_args(["--preset", "lidar"]).config == folder / "config_lidar.py"
    assert parser.parse_args(["--config", "mine.py", "--set", "seed=1"]).config == Path("mine.py")
    text = parser.format_help()
    for name, file in preset_files(folder).items():
        load_settings(file)
        assert f"\n  {name} " in text
    assert "sac           Soft actor-critic with analog actions" in text
    for wrong in (["--preset", "atlantis"], ["--preset", "sac", "--config", "mine.py"]):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
    said = capsys.readouterr().err
    assert "'atlantis' is none of default, cartpole" in said
    assert "not allowed with" in said


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_tokens_of_workers_are_long_and_for_one_user(tmp_path, caplog):
    file = tmp_path / "token"
    for text in ("", "x", "x" * 15):
        file.write_text(text)
        with pytest.raises(UserError, match=f"has {len(text)} letters"):
            worker_token(file)
    file.write_text("x" * 16)
    file.chmod(0o600)
    caplog.clear()
    assert worker_token(file) == "x" * 16
    assert not caplog.records
    file.chmod(0o640)
    worker_token(file)
    assert "other users of this machine can read the token" in caplog.text


def test_the_version_and_the_commit_are_told(repository_root):
    assert f'version = "{program_version()}"' in (repository_root / "pyproject.toml").read_text()


def test_a_copy_without_pyproject_has_the_installed_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trackmania_rl.paths.SHIPPED_FOLDER", tmp_path)
    assert program_version.__wrapped__()  # a checkpoint of that copy names one, "unknown" if there is none
    revision = git_revision()
    assert revision is None or re.fullmatch(r"[0-9a-f]{40,64}(-changed)?", revision)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("--lr 1e-3", "--set lr_schedule=1e-3"),
        ("batch_size=64 --n-step=4", "--set batch_size=64 --set n_steps=4"),
        ("--set seed=3 --constant-reward-per-ms -0.5", "--set seed=3 --set constant_reward_per_ms=-0.5"),
        ("--total-timesteps 1000", "--max-frames 1000"),
        ("save/mine", "--config {0}/save/mine/settings.toml --output-folder {0} --set run_name=mine"),
        ("--resume save/mine", "--config {0}/save/mine/settings.toml --output-folder {0} --set run_name=mine"),
        ("--resume", "same command resumes a run; train.py save/RUN does, too"),
        ("--n-envs 4", "--n-envs: no option, setting or run folder; did you mean n_collectors x games_per_collector?"),
        ("--max-farmes 4", "did you mean --max-frames?"),
        ("save/other", "save/other: there is no such run folder"),
    ],
)  # fmt: skip
def test_train_takes_words_of_plain_meaning_or_says_the_way(words, same, script_module, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "save" / "mine").mkdir(parents=True)
    (tmp_path / "save" / "mine" / "settings.toml").touch()

    def parsed(text):
        monkeypatch.setattr(sys, "argv", ["train.py", *text.split()])
        return script_module("train").parse_arguments()

    if same.startswith("--") and "; " not in same:
        assert parsed(words) == parsed(same.format(tmp_path))
    else:
        with pytest.raises(UserError, match=re.escape(same)):
            parsed(words)


def test_demonstrations_may_be_for_a_map_of_the_command(script_module, monkeypatch, tmp_path):
    inputs = tmp_path / "kart.inputs"
    inputs.touch()
    demonstrations = f"demonstrations=({{'map_name': 'kart', 'inputs': {str(inputs)!r}}},)"
    monkeypatch.setattr(sys, "argv", ["train.py", "--map", "kart", "--set", demonstrations])
    train = script_module("train")
    arguments = train.Arguments(**vars(train.parse_arguments())).with_run_name().with_maps()
    [demonstration] = load_settings(arguments.config, arguments.set).game.demonstrations
    assert demonstration.map_name == "kart"
