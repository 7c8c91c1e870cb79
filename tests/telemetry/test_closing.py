"""The closing text of a training, and tables in terminals and pipes."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from tests.telemetry.conftest import race_of, race_record
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.tables import PlainConsole, print_table
from trackmania_rl.telemetry.terminal_view import closing_text


def text(*records, drivers=(), **times):
    figures = TrainingStatistics(lambda: 0.0)
    figures.reference_times = times
    for one in records:
        figures.add(race_of(one))
    return closing_text(figures, "save/tested", "python scripts/evaluate.py", drivers)


def test_it_names_best_time_folder_and_next_command():
    driven = [
        race_record(23_000, map_name="valley"),
        race_record(21_350, map_name="valley", is_explo=False),
        race_record(map_name="kart"),
    ]
    drivers = ["save/tested/best_runs/valley_21350/valley_21350.driver"]
    assert text(*driven, drivers=drivers, valley=MedalTimes.of_author(20_300)).splitlines() == [
        "3 races, 3,000 frames",
        "valley: best time 0:21.350 (gold)",
        "kart: 812 m, not finished yet",
        "run folder: save/tested",
        "evaluate and film: python scripts/evaluate.py save/tested",
        "the best evaluation race again: python scripts/evaluate.py " + drivers[0],
        "resume training: repeat the training command",
    ]
    assert text().splitlines() == [
        "0 races, 0 frames",
        "run folder: save/tested",
        "resume training: repeat the training command",
    ]
    resume = closing_text(TrainingStatistics(), "save/x", "", resume_by=["--set=run_name=x"]).splitlines()[-1]
    assert resume == "resume training: repeat the training command with --set=run_name=x"


def test_medals_are_those_of_the_game():
    assert MedalTimes.of_author(55_100) == MedalTimes(55_100, 59_000, 67_000, 83_000)  # as the game's map has them
    assert MedalTimes.of_author(50_000) == MedalTimes(50_000, 53_000, 60_000, 75_000)


@pytest.mark.parametrize(("is_terminal", "columns"), [(True, 40), (False, 80), (False, None)])
def test_no_cell_of_a_table_is_cut(is_terminal, columns, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    cells = ["save/a_run_with_a_very_long_name_" + "x" * 60, " ".join(f"0:{k}.000" for k in range(10, 40)), "0:21.350"]
    table = Table("run", "times", "best")
    table.columns[2].no_wrap = True
    table.add_row(*cells)
    console = Console(file=io.StringIO(), force_terminal=is_terminal, color_system=None)
    print_table(table, console)
    lines = console.file.getvalue().splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in lines if line.startswith("│")]
    assert ["".join("".join(column).split()) for column in zip(*rows, strict=True)] == [
        "".join(c.split()) for c in cells
    ]
    if columns is None:
        assert rows == [cells], "one line a row"
    else:
        assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("is_terminal", [True, False])
def test_sentences_break_between_words_in_a_terminal_only(is_terminal):
    sentence = "to beat on valley: author 0:20.300, gold 0:22.000, silver 0:25.000, bronze 0:31.000"
    console = PlainConsole(file=io.StringIO(), force_terminal=is_terminal, color_system=None, width=80)
    console.print_sentence(sentence)
    lines = console.file.getvalue().splitlines()
    assert (" ".join(line.strip() for line in lines), len(lines)) == (sentence, 1 + is_terminal)


def test_consoles_print_text_as_it_is(repository_root):
    """Brackets and colons in the names and messages of others are no markup."""
    odd = 'pip install "gymnasium[classic-control]" :car: [/x] [bold]'
    console, table = PlainConsole(file=io.StringIO(), width=200), Table(odd, title=odd)
    table.add_row(odd)
    print_table(table, console)
    console.print(odd)
    assert console.file.getvalue().count(odd) == 4
    sources = [file for folder in ("scripts", "trackmania_rl") for file in (repository_root / folder).rglob("*.py")]
    assert not [file for file in sources if re.search(r"\bConsole\(", file.read_text("utf-8"))]
