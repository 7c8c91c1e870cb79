"""Every command that README, the other pages and the examples print is accepted by its own program.

The rule: each program of this project reads its printed arguments in this process, up to the end of its own parser.
Of a training the settings are validated as well, its maps are looked up, and its parts are made, all before the first
process of a run. A training is not run here: tests/examples trains with the examples' printed settings at small sizes,
and tests/tools/test_tutorial_own_map.py and the notebooks run whole pages.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import os
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch

from benchmarks.driving.variants import Variant, read_variants
from trackmania_rl.__main__ import SCRIPTS
from trackmania_rl.agents.builder import check_decision, make_agent_builder
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.track.game_map import load_reference_lines
from trackmania_rl.track.named_maps import overrides_for_maps
from trackmania_rl.training.building import make_hooks, make_reward

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.rst",
    ROOT / "CONTRIBUTING.rst",
    *(ROOT / "docs").glob("*.rst"),
    *(ROOT / "research").rglob("*.rst"),
]
PROGRAM = re.compile(
    r"(?<![\w/])python (?:-m )?(?:scripts/|examples/|benchmarks[./]|research[./]|trackmania_rl\b)"
    r"|\btrackmania-(?!rl\b)[a-z]"
)
MENTIONED = {
    "python scripts/tools/maps.py COMMAND",
    "trackmania-maps add",
    "python -m benchmarks.performance ...",
}
"""Programs that a sentence names without the arguments that they need."""
MADE_BY_THE_PAGE = {"config_files/config_simulated.py", "search6/best/best.py"}
"""Configurations that an earlier command of the page writes."""


class Printed(NamedTuple):
    """A command, and the text of its page before it."""

    page: Path
    command: str
    before: str


def commands_in(page: Path) -> list[Printed]:
    """Commands in a page's blocks and literals, or in a module's docstring; those of several lines joined."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    text = re.sub(r"\\\n\s*", "", text)
    literals = re.compile(r"``([^`]+)``" if page.suffix == ".rst" else r"`([^`]+)`")
    pieces = [(m.start(), " ".join(m.group(1).split())) for m in literals.finditer(text)]
    pieces += [(m.start(), m.group()) for m in re.finditer(r"(?m)^ +[^`\n]*$", text)]
    printed = []
    for place, piece in sorted(pieces):
        for part in re.split(r"&& |; (?=python)", piece.split(" #")[0]):
            if (found := PROGRAM.search(part)) and "$" not in part:  # "$": variables of the page's shell
                printed.append(Printed(page, part[found.start() :].strip(), text[:place]))
    return printed


ALL = [printed for page in (*PAGES, *sorted((ROOT / "examples").glob("*.py"))) for printed in commands_in(page)]


class ParsedError(BaseException):
    """Carries what a program's parser has read, in place of the program's work."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments


def program_and_arguments(command: str) -> list[str]:
    """Split a command; the program is a script's file, or a module by its dotted name."""
    _, *words = shlex.split(command.replace("trackmania-", "python -m trackmania_rl "))
    if words[0] == "-m":
        words = words[1:]
    if words[0] == "trackmania_rl" and words[1:] and words[1] in SCRIPTS:
        words = [f"scripts/{SCRIPTS[words[1]][0]}", *words[2:]]
    return words


def parse(words: list[str]) -> argparse.Namespace | None:
    """Let a program read its arguments; None if it ends by itself, as for --help."""
    run: Callable[..., Any] = runpy.run_path
    if not words[0].endswith(".py"):
        run = functools.partial(runpy.run_module, alter_sys=True)
    read = argparse.ArgumentParser.parse_args

    def read_only(parser: argparse.ArgumentParser, *arguments: Any) -> argparse.Namespace:
        raise ParsedError(read(parser, *arguments))

    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.object(sys, "path", [*sys.path]),
        mock.patch.dict(os.environ),
        mock.patch.object(argparse.ArgumentParser, "parse_args", read_only),
    ):
        try:
            run(words[0], run_name="__main__")
        except ParsedError as parsed:
            return parsed.arguments
        except SystemExit as end:
            if end.code and words[1:]:  # a sentence may name a program that needs arguments
                raise
    return None


@functools.cache
def make_parts(config: Path, overrides: tuple[str, ...]) -> Settings:
    """Validate settings and make the parts of a run, as a training does before it starts anything."""
    settings = load_settings(config, overrides)
    seeds = SeedTree(0)
    spaces = make_games_builder(settings).spaces
    builder = make_agent_builder(settings, spaces, seeds)
    check_decision(builder.make_actor(builder.make_network(), torch.device("cpu"), seeds.rng("check")), spaces)
    make_reward(settings, spaces, seeds)
    make_hooks(settings)
    return settings


def check_training(arguments: argparse.Namespace, before: str) -> None:
    overrides = tuple(arguments.set)
    settings = make_parts(arguments.config, overrides)
    maps_folder = ROOT / settings.game.maps_folder
    made_before = re.findall(r"maps\.py add .*--name (\S+)|--output maps/(\S+)", before)
    to_find = [name for name in arguments.map if not {name, f"{name}.toml"} & {*itertools.chain(*made_before)}]
    if settings.game.game != "simulated":
        assert ".Challenge.Gbx" in before, "the page must say first where the real game's map comes from"
    elif to_find:
        chosen = overrides_for_maps(settings, maps_folder, to_find)
        settings = load_settings(
            arguments.config, (*(f"{name}={value!r}" for name, value in chosen.items()), *overrides)
        )
        load_reference_lines(settings, maps_folder)


def check_variants(arguments: argparse.Namespace) -> None:
    for text in arguments.variant + [text for file in arguments.variants for text in read_variants(file)]:
        variant = Variant.read(text, arguments.config, arguments.set)
        if str(variant.config_file) not in MADE_BY_THE_PAGE:
            make_parts(variant.config_file, variant.overrides)


@pytest.mark.parametrize(
    "page", sorted({printed.page for printed in ALL}), ids=lambda page: str(page.relative_to(ROOT))
)
def test_its_commands_are_accepted(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    wrong = []
    for _, command, before in [printed for printed in ALL if printed.page == page and printed.command not in MENTIONED]:
        try:
            words = program_and_arguments(command)
            arguments = parse(words)
            if arguments is None or any(file in command for file in MADE_BY_THE_PAGE):
                continue
            if words[0] == "scripts/train.py":
                check_training(arguments, before)
            elif hasattr(arguments, "variant"):
                check_variants(arguments)
        except (Exception, SystemExit) as error:
            wrong.append(f"{command}: {error} {capsys.readouterr().err}")
    assert not wrong, "\n".join(wrong)


def test_the_commands_are_found() -> None:
    assert len(ALL) > 150
