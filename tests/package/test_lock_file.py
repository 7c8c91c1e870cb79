"""The lock file holds all that is tested together, each package at one version with its hashes, from any index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IN_REPOSITORY = {"trackmania-rl", "python-lzo"}
TESTED_AS = {"mlflow": "mlflow-skinny"}
"""An extra's package, and the smaller one that is tested in its place."""
NOT_TESTED = {"trackio"}
AGAIN = "requirements-lock.txt has to be made again: CONTRIBUTING.rst has the command"


def requirements_in(file: Path) -> list[Requirement]:
    lines = (line.split(" #")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-", "./"))]


@pytest.fixture(scope="module")
def locked(repository_root: Path) -> dict[str, str]:
    """The lock file: each package's version."""
    text = (repository_root / "requirements-lock.txt").read_text(encoding="utf-8")
    entries = [" ".join(entry.split()) for entry in re.split(r"\n(?=\w)", text.replace("\\\n", " "))]
    versions = {}
    for entry in entries:
        if entry.startswith("#"):
            continue
        before, *hashes = entry.split(" --hash=")
        requirement = Requirement(before)
        [pin] = requirement.specifier
        assert pin.operator == "==", entry[:100]
        assert "*" not in pin.version
        assert hashes, f"{requirement.name} has no hash"
        assert all(re.match(r"sha256:[0-9a-f]{64}\b", one) for one in hashes), entry[:100]
        versions[canonicalize_name(requirement.name)] = pin.version
    return versions


def test_it_names_no_place(repository_root: Path) -> None:
    text = (repository_root / "requirements-lock.txt").read_text(encoding="utf-8")
    assert not re.search(r"https?:|file:|--index|--extra|--find|\s@\s|(?m:^[./-])", text)


def test_pinned_versions_are_locked(repository_root: Path, locked: dict[str, str]) -> None:
    files = [file for file in repository_root.glob("requirements*.txt") if file.name != "requirements-lock.txt"]
    pinned = [requirement for file in files for requirement in requirements_in(file)]
    assert len(pinned) > 40
    for requirement in pinned:
        name = canonicalize_name(requirement.name)
        assert str(requirement.specifier) == f"=={locked.get(name)}", f"{requirement}: {AGAIN}"


def test_requirements_are_locked_within_their_bounds(repository_root: Path, locked: dict[str, str]) -> None:
    project = tomllib.loads((repository_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        name = canonicalize_name(requirement.name)
        if name in NOT_TESTED:
            continue
        version = locked.get(TESTED_AS.get(name, name))
        assert version is not None, f"{name}: {AGAIN}"
        assert requirement.specifier.contains(version), f"{requirement}: {version} is locked; {AGAIN}"


def test_it_holds_nothing_of_the_repository_itself(locked: dict[str, str]) -> None:
    assert len(locked) > 150
    assert not IN_REPOSITORY & locked.keys()
