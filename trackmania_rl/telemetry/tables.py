"""Terminal output for commands: text as it is, and tables without cut cells at any width."""

from __future__ import annotations

import os
from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST: Final = 100_000


class PlainConsole(Console):
    """Console that prints text as it is: brackets and colons in names and messages are no markup and no emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def print_sentence(self, text: str) -> None:
        """Print a line; a terminal breaks it between words, a file or pipe does not."""
        self.print(text, soft_wrap=not self.is_terminal)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table without cutting off cells.

    In a terminal, or with COLUMNS, long cells are wrapped. In a file or a pipe each row is one line, except for columns
    with a `max_width`.
    """
    console = console or PlainConsole()
    for column in table.columns:
        column.overflow = "fold"  # rich would cut a word that is too long
    width = console.width
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = max(width, _measured(table, console).maximum)
    elif _measured(table, console).minimum > width:
        for column in table.columns:
            column.no_wrap = False
    console.print(table)
    console.width = width


def _measured(table: Table, console: Console) -> Measurement:
    return Measurement.get(console, console.options.update(max_width=WIDEST), table)
