"""What happens in a training can be read in pieces that fit on a screen."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

MOST_LINES = 60
TRAINING_PATH = (
    "run.py",
    "training",
    "agents",
    "channels",
    "games",
    "multiprocess",
    "experience_replay",
    "buffer_management.py",
    "buffer_utilities.py",
)
UPDATE = {
    "Transitions.from_batch",
    "target_returns",
    "quantile_huber_loss",
    "IQNLoss.forward",
    "IQNLoss.compute_losses",
    "GradientStep.__call__",
    "GradientStep.clip_gradient",
}


def _functions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, inside)


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """A function's statements without its docstring."""
    return function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body


def _n_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of signature and body; those of the docstring do not count."""
    signature = function.body[0].lineno - function.lineno
    body = _body(function)
    return signature + (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else signature


def _n_lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Lines of the body that are neither empty nor comments."""
    body = _body(function)
    text = lines[body[0].lineno - 1 : body[-1].end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text)


def test_no_function_of_the_training_path_is_long(repository_root: Path) -> None:
    package = repository_root / "trackmania_rl"
    files = [
        file
        for name in TRAINING_PATH
        for file in ([package / name] if name.endswith(".py") else sorted((package / name).rglob("*.py")))
    ]
    assert len(files) > 40
    long = {
        f"{file.relative_to(package)}: {name}": n_lines
        for file in files
        for name, function in _functions(ast.parse(file.read_text(encoding="utf-8")))
        if (n_lines := _n_lines(function)) > MOST_LINES
    }
    assert not long


def test_a_whole_update_is_sixty_lines_of_code(repository_root: Path) -> None:
    text = (repository_root / "trackmania_rl" / "agents" / "iqn.py").read_text(encoding="utf-8")
    functions = {name: function for name, function in _functions(ast.parse(text)) if name in UPDATE}
    assert functions.keys() == UPDATE
    n_lines = {name: _n_lines_of_code(function, text.splitlines()) for name, function in functions.items()}
    assert sum(n_lines.values()) <= MOST_LINES, n_lines


@pytest.mark.parametrize(
    ("text", "expected"), [("def f(\n    a,\n):\n    '''A\n    B.'''\n\n    x = 1\n    return x", 5)]
)
def test_docstrings_do_not_count(text: str, expected: int) -> None:
    [(_, function)] = _functions(ast.parse(text))
    assert _n_lines(function) == expected
