"""Tables keep what is in them, in narrow terminals and in pipes."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from trackmania_rl.telemetry.tables import print_table

LONG = "save/a_run_with_a_very_long_name_indeed_" + "x" * 60
TIMES = " ".join(f"0:{k}.000" for k in range(10, 40))


def printed(*, is_terminal: bool, width: int | None = None) -> str:
    table = Table("run", "times", "best")
    table.columns[2].no_wrap = True
    table.add_row(LONG, TIMES, "0:21.350")
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=width, color_system=None)
    before = console.width
    print_table(table, console)
    assert console.width == before
    return output.getvalue()


def test_in_a_pipe_each_row_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    (row,) = [line for line in printed(is_terminal=False).splitlines() if "0:21.350" in line]
    assert LONG in row
    assert TIMES in row


@pytest.mark.parametrize("width", [80, 40, 20])
def test_in_a_narrow_terminal_nothing_is_cut(width: int) -> None:
    text = printed(is_terminal=True, width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    columns = list(zip(*(line.split("│")[1:4] for line in text.splitlines() if line.startswith("│")), strict=True))
    cells = ["".join("".join(column).split()) for column in columns]
    assert cells == [LONG, TIMES.replace(" ", ""), "0:21.350"]


def test_a_pipe_that_is_told_its_width_keeps_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(is_terminal=False)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
