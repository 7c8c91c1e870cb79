"""Taking Python texts apart, from any thread."""

from __future__ import annotations

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()
"""Before 3.11.8 and 3.12.2 Python counts the depth of all threads' trees together, and fails by a SystemError where two
of them parse (gh-106905): the page's threads do."""


def parse_python(text: str | bytes) -> ast.Module:
    """Parse a text as `ast.parse` does.

    Raises:
        SyntaxError: if it is no Python.
        ValueError: if it holds null bytes.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(text)
