"""Mutation check of the tests: seeded small changes of the code, and how many of them the tests notice.

    python -m research.mutations choose mutations.json --rooms agents race --count 40 --seed 14
    python -m research.mutations run research/mutations.json --coverage .coverage --output caught.json

research/mutations.json holds 42 mutations chosen on commit af03dca. `result` is that of its 4,772 tests,
`result_of_seam_tests` that of the 2,400 tests which replaced them (commit ee43a44, and two tests that were added for
mutations 28 and 37). Many of the files have been merged into others since.

`choose` picks statements and operators at random. `run` applies one mutation at a time to a copy of the repository and
runs the tests that execute the mutated line, by the contexts of a coverage file (`pytest --cov --cov-context=test`).
For a line that coverage.py cannot record (in a function compiled by numba) it runs the tests folder of that name.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "trackmania_rl"
TEST_TIMEOUT_S = 240
MOST_TESTS = 120
SWAPS: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Add, ast.Mod: ast.Add,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A replacement of one expression or statement inside one function."""

    file: str
    function: str
    line: int
    before: str
    after: str
    occurrence: int
    """Index of `before` among its occurrences in the function's source."""


def _replacements(node: ast.AST) -> Iterator[str]:
    """Yield the source texts that may replace a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        swapped = ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
        yield f"({ast.unparse(swapped)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield f"({ast.unparse(ast.BinOp(node.left, SWAPS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.BoolOp):
        yield f"({ast.unparse(ast.BoolOp(SWAPS[type(node.op)](), node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"bool({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield str(node.value + 1)
    elif (
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript))
    ):
        yield "pass"


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a function without annotations, decorators, error messages and calls of a logger."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr):
                continue
            if isinstance(child, ast.Expr) and "log" in ast.unparse(child)[:12]:
                continue
            yield child
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _statements(child)


def _functions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield all functions with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield inside + child.name, child
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from _functions(child, f"{inside}{child.name}.")


def mutations_of(root: Path, file: Path) -> list[Mutation]:
    """Return all mutations of one file that keep it valid Python."""
    text = file.read_text(encoding="utf-8")
    found = []
    for function, node in _functions(ast.parse(text)):
        source = ast.get_source_segment(text, node) or ""
        for child in _statements(node):
            if not isinstance(child, ast.expr | ast.stmt):
                continue
            before = ast.get_source_segment(text, child) or ""
            # Occurrences are counted by offset: the same text may appear several times in a function.
            lines = source.splitlines(keepends=True)[: child.lineno - node.lineno]
            offset = sum(map(len, lines)) + child.col_offset - (0 if lines else node.col_offset)
            occurrence = source[:offset].count(before)
            for after in _replacements(child):
                mutation = Mutation(str(file.relative_to(root)), function, child.lineno, before, after, occurrence)
                try:
                    ast.parse(mutated(text, mutation)[0])
                except (SyntaxError, LookupError):
                    continue
                found.append(mutation)
    return found


def mutated(text: str, mutation: Mutation) -> tuple[str, int]:
    """Return a file's text with one mutation, and the line where it is now.

    Raises:
        LookupError: the function, or the text to replace, is not in the file.
    """
    node = dict(_functions(ast.parse(text)))[mutation.function]
    source = ast.get_source_segment(text, node) or ""
    place = -1
    for _ in range(mutation.occurrence + 1):
        place = source.find(mutation.before, place + 1)
        if place < 0:
            raise LookupError(f"{mutation.file}: {mutation.function} has no {mutation.before!r}")
    changed = source[:place] + mutation.after + source[place + len(mutation.before) :]
    return text.replace(source, changed, 1), node.lineno + source[:place].count("\n")


def choose(root: Path, rooms: list[str], count: int, seed: int) -> list[Mutation]:
    """Draw `count` mutations, the same number from each room, at most one from each function."""
    rng = random.Random(seed)
    chosen: list[Mutation] = []
    for i, room in enumerate(rooms):
        path = root / PACKAGE / room
        files = sorted(path.rglob("*.py")) if path.is_dir() else sorted(path.parent.glob(path.name))
        candidates = [mutation for file in files for mutation in mutations_of(root, file)]
        rng.shuffle(candidates)
        seen: set[tuple[str, str]] = set()
        wanted = (count * (i + 1)) // len(rooms) - (count * i) // len(rooms)
        for mutation in candidates:
            if (mutation.file, mutation.function) not in seen and wanted:
                seen.add((mutation.file, mutation.function))
                chosen.append(mutation)
                wanted -= 1
    return chosen


def tests_of(
    mutation: Mutation, line: int, coverage_file: Path, root: Path, durations_s: dict[str, float]
) -> list[str]:
    """Return the tests that execute a line, shortest first; the tests folder of the same name where none is known."""
    import coverage

    data = coverage.CoverageData(str(coverage_file))
    data.read()
    contexts = data.contexts_by_lineno(mutation.file).get(line, [])
    names = {context.split("|")[0].split("[")[0] for context in contexts if "::" in context}
    tests = sorted(names, key=lambda test: durations_s.get(test, 0.0))
    tests = [test for test in tests if (root / test.split("::")[0]).is_file()]
    if tests:
        return tests[:MOST_TESTS]
    parts = Path(mutation.file).parts[1:]
    folder = root / "tests" / parts[0]
    return [str(folder.relative_to(root))] if folder.is_dir() else [f"tests/test_{Path(parts[-1]).stem}.py"]


def check(root: Path, mutation: Mutation, coverage_file: Path, durations_s: dict[str, float]) -> dict[str, object]:
    """Run the tests of one mutation in a copy of the repository and return the result as a row."""
    row: dict[str, object] = dataclasses.asdict(mutation)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".git", ".venv", "save", "tensorboard"))
        file = copy / mutation.file
        text = file.read_text(encoding="utf-8")
        try:
            changed, line = mutated(text, mutation)
        except LookupError as error:
            return {**row, "result": "gone", "why": str(error)}
        file.write_text(changed, encoding="utf-8")
        tests = tests_of(mutation, line, coverage_file, copy, durations_s)
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TEST_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return {**row, "result": "caught", "by": "time limit", "n_tests": len(tests)}
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        result = "survived" if done.returncode == 0 else "caught" if done.returncode in (1, 2) else "error"
        return {**row, "result": result, "by": failed[:1], "n_tests": len(tests), "tail": done.stdout[-300:]}


def main() -> None:
    """Choose mutations, or run the tests against them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("choose", "run"))
    parser.add_argument("mutations", type=Path)
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--rooms", nargs="+")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--coverage", type=Path)
    parser.add_argument("--durations", type=Path, help="log of pytest --durations=0")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1))
    arguments = parser.parse_args()
    if arguments.action == "choose":
        chosen = choose(arguments.root, arguments.rooms, arguments.count, arguments.seed)
        arguments.mutations.write_text(json.dumps([dataclasses.asdict(m) for m in chosen], indent=1))
        return
    durations_s: dict[str, float] = {}
    for line in arguments.durations.read_text().splitlines() if arguments.durations else ():
        fields = line.split()
        if len(fields) >= 3 and fields[0].endswith("s") and fields[1] in ("call", "setup"):
            name = fields[2].split("[")[0]
            durations_s[name] = durations_s.get(name, 0.0) + float(fields[0][:-1])
    rows = []
    for i, fields in enumerate(json.loads(arguments.mutations.read_text())):
        if i % arguments.part[1] != arguments.part[0]:
            continue
        names = [field.name for field in dataclasses.fields(Mutation)]
        mutation = Mutation(**{name: fields[name] for name in names})
        row = check(arguments.root.resolve(), mutation, arguments.coverage, durations_s)
        rows.append(row)
        print(i, row["result"], row["file"], row["line"], row["before"], "->", row["after"], row.get("by"), flush=True)
        arguments.output.write_text(json.dumps(rows, indent=1))
    print(sum(row["result"] == "caught" for row in rows), "of", len(rows), "caught")


if __name__ == "__main__":
    main()
