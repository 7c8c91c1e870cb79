"""Python texts are taken apart from any thread."""

from __future__ import annotations

import ast
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trackmania_rl.settings.syntax import parse_python


@pytest.fixture
def slow_collection() -> Iterator[None]:
    """Let other threads go on whenever garbage is collected, as hypothesis' callback and finalizers do."""

    def callback(*_: object) -> None:
        sum(range(2000))

    gc.callbacks.append(callback)
    yield
    gc.callbacks.remove(callback)


def test_threads_that_parse_at_once_do_not_disturb_each_other(slow_collection: None, repository_root: Path) -> None:
    text = (repository_root / "config_files" / "config.py").read_text()
    expected = ast.dump(ast.parse(text))
    parsed: list[str] = []

    def parse_repeatedly() -> None:
        parsed.extend(ast.dump(parse_python(text)) for _ in range(20))

    threads = [threading.Thread(target=parse_repeatedly) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parsed == [expected] * 60


def test_what_is_no_python_is_told_as_python_does() -> None:
    with pytest.raises(SyntaxError):
        parse_python("a = = 1")
