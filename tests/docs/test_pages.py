"""Files, links, pictures, names and settings that the pages name exist; see test_commands.py for commands."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

PAGES = ("README.rst", "docs/*.rst", "research/**/*.rst")
ROOMS = ("trackmania_rl", "scripts", "examples", "config_files", "benchmarks", "research", "docs", "tests", "drivers")
FILE = re.compile(rf"(?<![\w./-])(?:{'|'.join(ROOMS)})/[\w./*{{}}-]*\w")
"""A path from the project's folder."""
MODULE_FILE = re.compile(r"``((?:\w+/)*\w+\.py)``")
"""A Python file by its name alone, or by the end of its path."""
NAME = re.compile(r"``((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:_|[a-z][A-Z])\w*)(?:\(\))?``")
"""A name of the code: words joined by underscores or capitals, with or without the modules that hold it."""
LINK = re.compile(r"<([^<>:]+)>`_")
PICTURE = re.compile(r"^\.\. image:: (\S+)$", re.MULTILINE)
OF_OTHERS = {"STEAM_COMPAT_CLIENT_INSTALL_PATH", "STEAM_COMPAT_DATA_PATH"}
SOURCES = {".py", ".toml", ".as", ".cpp", ".h", ".sh"}
OF_USERS = {"best/best.py", "config/config.py", "my_hooks.py", "my_parts.py", "other.py"}
WRITTEN = {"config_files/config_simulated.py"}
"""By a command of the page."""
OF_LINESIGHT = "coming_from.rst"
"""Names files of that project as well, as the table of its figures on another page does."""
TABLE_OF_LINESIGHT = "Names of Linesight's charts\n"


@pytest.fixture(scope="module")
def texts(repository_root: Path) -> dict[Path, str]:
    """Every page's text by its path."""
    return {file: file.read_text("utf-8") for pattern in PAGES for file in sorted(repository_root.glob(pattern))}


def missing(texts: dict[Path, str], pattern: re.Pattern[str], is_there: Callable[[Path, str], bool]) -> set[str]:
    """Names that a pattern finds on the pages and that do not exist."""
    found = {(page, name) for page, text in texts.items() for name in pattern.findall(text)}
    assert found
    return {f"{page.name}: {name}" for page, name in found if not is_there(page, name)}


def test_paths_exist(texts: dict[Path, str], repository_root: Path) -> None:
    joined = {page: re.sub(r"\n +", " ", text) for page, text in texts.items()}

    def is_there(_: Path, path: str) -> bool:
        return path in WRITTEN or any(repository_root.glob(re.sub(r"\{\w+\}", "*", path.rstrip("."))))

    assert not missing(joined, FILE, is_there)


def test_python_files_that_are_named_without_a_path_exist(texts: dict[Path, str], repository_root: Path) -> None:
    files = [f"/{file.as_posix()}" for room in ROOMS for file in (repository_root / room).rglob("*.py")]

    def is_there(page: Path, name: str) -> bool:
        return page.name == OF_LINESIGHT or name in OF_USERS or any(file.endswith(f"/{name}") for file in files)

    assert not missing(texts, MODULE_FILE, is_there)


def test_names_of_the_code_are_in_the_code(texts: dict[Path, str], repository_root: Path) -> None:
    sources = (file for room in ROOMS for file in (repository_root / room).rglob("*") if file.suffix in SOURCES)
    words = {word for file in sources for word in re.findall(r"\w+", file.read_text("utf-8"))}
    named = {
        (page.name, name)
        for page, text in texts.items()
        for name in NAME.findall(text.partition(TABLE_OF_LINESIGHT)[0])
        if page.name != OF_LINESIGHT and page.parent.name == "docs"
    }
    assert len(named) > 200
    assert not {f"{page}: {name}" for page, name in named if not {*name.split(".")} <= words | OF_OTHERS}


@pytest.mark.parametrize("pattern", [LINK, PICTURE], ids=["links", "pictures"])
def test_links_and_pictures_lead_to_files(texts: dict[Path, str], pattern: re.Pattern[str]) -> None:
    assert not missing(texts, pattern, lambda page, target: (page.parent / target.split("#")[0]).is_file())


def test_each_promise_to_users_of_other_systems_has_its_test(repository_root: Path) -> None:
    text = (repository_root / "docs" / "coming_from.rst").read_text("utf-8")
    rows = [line.strip().split(" | ") for line in text.splitlines() if line.startswith("   ") and " | " in line]
    assert len(rows) > 100
    missing_tests = [row for row in rows if not (repository_root / row[-1].strip("`")).is_file()]
    assert not missing_tests
    assert {len(row) for row in rows} == {3}
