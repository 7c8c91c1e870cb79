"""Tables of the documentation that are made from the code."""

from __future__ import annotations

import ast
from pathlib import Path

from trackmania_rl.settings import COMPANION_FILES, NEEDS_RESTART, describe_range, describe_unit, load_settings
from trackmania_rl.settings.groups import groups

LONGEST_VALUE = 60


def settings_rst(config_file: Path) -> str:
    """Describe every setting of a configuration in reStructuredText: a list for each group.

    Args:
        config_file: has the values, and a comment above each setting.
    """
    settings, comments = load_settings(config_file), {}
    for file in (*(config_file.parent / name for name in COMPANION_FILES), config_file):
        comments |= comments_above(file)
    values = settings.flat()
    lines: list[str] = []
    for group, model in groups().items():
        title = (model.__doc__ or group).strip().splitlines()[0].rstrip(".")
        lines += ["", f".. rubric:: {title}", ""]
        for name in model.model_fields:
            value = repr(values[name]) if isinstance(values[name], str) else str(values[name])
            value = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..."
            unit = f" {describe_unit(name)}" if describe_unit(name) else ""
            restart = "; takes effect when the run is started again" if name in NEEDS_RESTART else ""
            lines += [f":code:`{_escaped(f'{name} = {value}')}`{unit}", ""]
            lines += [f"    {line}" for line in comments.get(name, "").splitlines()]
            lines += ["", f"    *Allowed:* {_escaped(describe_range(name))}{restart}.", ""]
    return "\n".join(lines)


def comments_above(config_file: Path) -> dict[str, str]:
    """Collect the comment above each assignment of a Python file, one line each, as plain text that is safe in rst."""
    lines = config_file.read_text(encoding="utf-8").splitlines()
    comments = {}
    for node in ast.parse("\n".join(lines)).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        first = node.lineno - 1
        while first > 0 and lines[first - 1].startswith("#"):
            first -= 1
        comment = " ".join(line.lstrip("# ").rstrip() for line in lines[first : node.lineno - 1])
        comments[node.targets[0].id] = _escaped(comment)
    return comments


def _escaped(text: str) -> str:
    """Write text so that rst takes none of it for markup."""
    return "".join(f"\\{letter}" if letter in "*`_|\\<>" else letter for letter in text)
