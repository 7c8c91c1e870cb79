"""Tables of the documentation that are made from the code."""

from __future__ import annotations

from pathlib import Path

from trackmania_rl.settings import load_settings
from trackmania_rl.settings.descriptions import OTHER_WORDS, settings_rows
from trackmania_rl.settings.groups import groups

LONGEST_VALUE = 60


def settings_rst(config_file: Path) -> str:
    """Describe every setting of a configuration in reStructuredText: a section for each group, an anchor for each one.

    The site's search finds a setting by its name and by the words of other libraries.

    Args:
        config_file: has the values.
    """
    rows = settings_rows(load_settings(config_file), has_private=True)
    lines: list[str] = []
    for group, model in groups().items():
        title = (model.__doc__ or group).strip().splitlines()[0].rstrip(".")
        lines += ["", title, "-" * len(title), ""]
        for row in rows:
            if row["group"] == group:
                value = row["value"]
                value = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..."
                unit = f" {row['unit']}" if row["unit"] else ""
                restart = "; takes effect when the run is started again" if row["restart"] else ""
                assignment = _escaped(f"{row['name']} = {value}")
                words = [word.replace("_", " ") for word, ours in OTHER_WORDS.items() if row["name"] in ours.split()]
                lines += [
                    f".. index:: {', '.join(f'! {word}' for word in (row['name'], *words))}",
                    f"   :name: {row['name']}",
                    "",
                ]
                lines += [f":code:`{assignment}`{unit}", "", f"    {_escaped(row['about'])}"]
                lines += ["", f"    *Allowed:* {_escaped(row['range'])}{restart}.", ""]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Write text so that rst takes none of it for markup."""
    return "".join(f"\\{letter}" if letter in "*`_|\\<>" else letter for letter in text)
