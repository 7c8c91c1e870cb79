"""Configurations by short names, on the command line."""

import argparse
from pathlib import Path

import pytest

from trackmania_rl.argument_types import add_configuration_arguments
from trackmania_rl.presets import preset_files
from trackmania_rl.settings import load_settings


@pytest.fixture
def parser(repository_root: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    add_configuration_arguments(parser, repository_root / "config_files")
    return parser


def test_a_preset_is_a_configuration_that_ships(parser: argparse.ArgumentParser, repository_root: Path) -> None:
    folder = repository_root / "config_files"
    assert parser.parse_args([]).config == parser.parse_args(["--preset", "default"]).config == folder / "config.py"
    assert parser.parse_args(["--preset", "lidar"]).config == folder / "config_lidar.py"
    assert parser.parse_args(["--config", "mine.py", "--set", "seed=1"]).config == Path("mine.py")
    for file in preset_files(folder).values():
        load_settings(file)


def test_the_help_lists_all(
    parser: argparse.ArgumentParser, repository_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = parser.format_help()
    for name in preset_files(repository_root / "config_files"):
        assert f"\n  {name} " in text
    assert "sac           Soft actor-critic with analog actions" in text
    for wrong in (["--preset", "atlantis"], ["--preset", "sac", "--config", "mine.py"]):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
    said = capsys.readouterr().err
    assert "'atlantis' is none of default, cartpole" in said
    assert "not allowed with" in said


def test_a_users_own_file_may_be_wrong(repository_root: Path, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text('"""The usual one."""\n')
    (tmp_path / "config_broken.py").write_text("a = = 1")
    parser = argparse.ArgumentParser()
    add_configuration_arguments(parser, tmp_path)
    assert parser.epilog is not None
    assert "default  The usual one." in parser.epilog
    assert parser.parse_args(["--preset", "broken"]).config == tmp_path / "config_broken.py"
