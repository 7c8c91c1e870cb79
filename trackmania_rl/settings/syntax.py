"""Taking Python texts apart, from any thread."""

from __future__ import annotations

import ast

ATTEMPTS = 50
"""Before 3.11.8 and 3.12.2 Python counts the depth of all threads' trees together (gh-106905): where garbage is
collected in the midst of one and another thread parses meanwhile, as numpy does an array's header, the text fails."""


def parse_python(text: str | bytes) -> ast.Module:
    """Parse a text as `ast.parse` does.

    Raises:
        SyntaxError: if it is no Python.
        ValueError: if it holds null bytes.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)
