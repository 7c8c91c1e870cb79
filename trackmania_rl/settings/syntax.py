"""Parsing of Python texts, from any thread, and the places of their parts."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

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


class ParsedText:
    """Python text, parsed, with the place of each node.

    Places are offsets into `content`, the text in UTF-8: `ast` counts columns in bytes, and its lines end at the line
    breaks of `bytes.splitlines`. `str.splitlines` also breaks at form feeds and U+2028, and must not be used here.

    Args:
        text: of a Python file.

    Raises:
        SyntaxError: if it is no Python.
        ValueError: if it holds null bytes.
    """

    def __init__(self, text: str) -> None:
        self.tree = parse_python(text)
        self.content = text.encode()
        self.lines = self.content.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self.lines))]

    def span(self, node: ast.expr | ast.stmt) -> slice:
        """Return the place of a node in `content`."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return slice(
            self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset
        )

    def source(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        return self.content[self.span(node)].decode()

    def ends_its_line(self, node: ast.expr | ast.stmt) -> bool:
        """Return whether nothing, not even a comment, follows a node in its last line."""
        assert node.end_lineno is not None
        return not self.lines[node.end_lineno - 1][node.end_col_offset :].strip()

    def with_replaced(self, replacements: Iterable[tuple[ast.expr | ast.stmt, str]]) -> str:
        """Return the text with other texts in the places of some nodes, none of which holds another."""
        content = self.content
        for node, text in sorted(replacements, key=lambda one: self.span(one[0]).start, reverse=True):
            place = self.span(node)
            content = content[: place.start] + text.encode() + content[place.stop :]
        return content.decode()
