"""The code of docs/library.rst, run as it stands there."""

import re
import textwrap
from pathlib import Path

CODE = re.compile(r"\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)")


def test_the_code_of_the_page_runs(repository_root: Path, run_folder: Path, capsys) -> None:
    page = (repository_root / "docs" / "library.rst").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in CODE.findall(page)]
    assert len(blocks) == page.count("code-block:: python") == 4
    names: dict = {}
    for block in blocks:
        exec(block.replace("save/simulated", str(run_folder)), names)
    assert "bend: finished True" in capsys.readouterr().out
