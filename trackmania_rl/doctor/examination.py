"""The whole examination: Python and packages, the check table, and a test drive."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from trackmania_rl.doctor.checks import ALL_CHECKS, CHECKS_OF_PLAYING
from trackmania_rl.doctor.findings import Check, Context, Finding, Level, ok, problem, warning
from trackmania_rl.doctor.play import SHIPPED_MAP, check_play
from trackmania_rl.paths import DISTRIBUTION, IS_CHECKOUT
from trackmania_rl.settings import SettingsError, load_settings
from trackmania_rl.start import INSTALL

MAY_BE_MISSING: Final = frozenset({"pywin32", "python-xlib"})
"""Packages for the game's window only."""
USES_OF_EXTRAS: Final = {
    "dashboard": "live page",
    "datasets": "Minari data sets",
    "wandb": "Weights & Biases",
    "mlflow": "MLflow",
    "trackio": "Trackio",
    "onnx": "export of drivers",
    "hub": "drivers on the Hugging Face Hub",
    "cluster": "Ray cluster and search over settings",
    "worker": "workers on other machines",
    "realtime": "rtgym",
    "sb3": "Stable-Baselines3",
    "window": "human view of the environments",
    "game-window": "window of the real game",
}


def examine(
    config_file: Path, overrides: Sequence[str], output_folder: Path, project: Path, picture_file: Path | None = None
) -> Iterator[Finding]:
    """Run all checks on a configuration with overrides. With a picture file, a game is played for some seconds."""
    yield ok(Check.PYTHON, f"Python {platform.python_version()}")
    if IS_CHECKOUT:
        yield from check_packages(pinned(project / "requirements.txt"))
    else:
        yield from check_distribution(importlib.metadata.distribution(DISTRIBUTION))
    try:
        settings = load_settings(config_file, overrides)
    except SettingsError as error:
        yield problem(Check.CONFIGURATION, error)
        return
    yield ok(Check.CONFIGURATION, f"{config_file} is valid")
    context = Context(settings, output_folder, project)
    can_play = True
    for check in ALL_CHECKS:
        for finding in check(context):
            yield finding
            can_play &= finding.level is not Level.PROBLEM or check not in CHECKS_OF_PLAYING
    if picture_file is None:
        return
    if not can_play:
        is_real = settings.game.game != "simulated"
        wanted = "the real game" if is_real else "this configuration"
        driven = "the simulated game" if is_real else f"the shipped track {SHIPPED_MAP.map_name}"
        text = f"{wanted} cannot be played yet, because of the problems above; {driven} is driven in its place"
        yield warning(Check.GAME, text)
        changes = {"game": "simulated", "game_transport": "socket", "map_cycle": (SHIPPED_MAP,), "maps_folder": "maps"}
        game = settings.game.model_copy(update={**changes, "games_are_kept": False})
        context = replace(context, settings=settings.model_copy(update={"game": game}))
    yield from check_play(context, picture_file)


def check_packages(wanted_packages: Iterable[Requirement]) -> Iterator[Finding]:
    """Compare the installed packages with the versions tested together, or with a wheel's bounds."""
    wanted_packages = list(wanted_packages)
    are_pinned = all(str(wanted.specifier).startswith("==") for wanted in wanted_packages)
    n_right = 0
    for wanted in wanted_packages:
        installed = _installed_version(wanted.name)
        if installed is None:
            finding = warning if wanted.name in MAY_BE_MISSING else problem
            yield finding(Check.PACKAGES, f"{wanted.name} is not installed: {INSTALL}")
        elif not wanted.specifier.contains(installed, prereleases=True):
            needed = f"{str(wanted.specifier).removeprefix('==')} is {'tested' if are_pinned else 'needed'}"
            yield warning(Check.PACKAGES, f"{wanted.name} is {installed}, and {needed}: {INSTALL}")
        else:
            n_right += 1
    versions = "the tested versions" if are_pinned else "versions within the bounds"
    yield ok(Check.PACKAGES, f"{n_right} packages have {versions}")


def check_distribution(distribution: Distribution) -> Iterator[Finding]:
    """Check the packages that an installed wheel requires, and name missing extras."""
    declared = [Requirement(text) for text in distribution.requires or ()]
    yield from check_packages([package for package in declared if _is_needed(package)])
    missing = [
        extra
        for extra in distribution.metadata.get_all("Provides-Extra", [])
        if extra != "test"
        and any(
            not _is_needed(package) and _is_needed(package, extra) and _installed_version(package.name) is None
            for package in declared
        )
    ]
    if missing:
        uses = ", ".join(f"{extra} ({USES_OF_EXTRAS.get(extra, 'no description')})" for extra in missing)
        command = f'to install the first: python -m pip install "{DISTRIBUTION}[{missing[0]}]"'
        yield ok(Check.PACKAGES, f"extras that are not installed: {uses}; {command}")


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pinned(requirements: Path) -> list[Requirement]:
    """Return the requirements `name==version` that apply to this system."""
    found = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        try:
            requirement = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:  # a comment, a folder or an option
            continue
        if len(requirement.specifier) == 1 and _is_needed(requirement):
            found.append(requirement)
    return found


def _is_needed(package: Requirement, extra: str = "") -> bool:
    return package.marker is None or package.marker.evaluate({"extra": extra})
