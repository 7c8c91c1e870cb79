"""The examples of other libraries run, and every example says the command that runs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
SCRIPTS = {
    "torchrl_ppo.py": ("torchrl", "--frames 200 --games 2 --steps 50", r"200 frames, -?\d"),
    "sb3_ppo.py": ("stable_baselines3", "--timesteps 64 --games 2", r"driven greedily: \d+ m"),
    "rllib_ppo.py": ("ray.rllib", "--timesteps 300 --batch 256 --games 2", r"driven greedily: -?\d+ m"),
    "sb3_qrdqn.py": ("sb3_contrib", "--timesteps 120 --learning-starts 60", r"driven greedily: return -?\d"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_learns_a_little(name: str, repository_root: Path) -> None:
    library, options, printed = SCRIPTS[name]
    # ray without what RLlib needs is no missing module, but fails as it is imported
    pytest.importorskip(library, reason=f"{library} is not installed, see examples/{name}", exc_type=ImportError)
    ran = subprocess.run(
        [sys.executable, f"examples/{name}", *options.split()],
        cwd=repository_root,
        env=os.environ | {"PYTHONPATH": str(repository_root)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(printed, ran.stdout)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_it_is_short_and_says_how_it_is_run(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert re.search(rf"python (examples/{file.name}|scripts/train\.py .*examples\.{file.stem}:)", docstring, re.DOTALL)
