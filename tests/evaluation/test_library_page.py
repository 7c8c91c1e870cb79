"""The code of docs/library.rst, run as it stands there."""

import re
import textwrap
from pathlib import Path

import pytest

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY_ROOT / "docs" / "library.rst").read_text(encoding="utf-8")
CODE = re.compile(r"\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)")
BLOCKS = [textwrap.dedent(block) for block in CODE.findall(PAGE)]
PRINTED = [
    r"",  # a training, below its guard: see tests/end_to_end/test_run_call.py
    r"'map': 'valley'",
    r"\(64, 184\) -?\d",
    r"ep_rew_mean",
    r"time_step_duration",
    r"bend: finished True",
    r"0 cars",
    r"(\d+ m driven, \d+ transitions to learn from\n){3}",
    r"tensor\(-?\d",
    r"torch\.Size\(\[8, 60, 1\]\)",
]


assert PAGE.count("code-block:: python") == len(BLOCKS) == len(PRINTED)


@pytest.mark.parametrize(("block", "printed"), list(zip(BLOCKS, PRINTED, strict=True)), ids=range(1, len(BLOCKS) + 1))
def test_a_block_can_be_copied_alone(block, printed, run_folder, monkeypatch, capsys):
    for package, imported in {"rtgym": "RealTime-v0", "stable_baselines3": "stable_baselines3"}.items():
        if imported in block:
            pytest.importorskip(package, reason=f"python -m pip install {package}")
    monkeypatch.chdir(REPOSITORY_ROOT)
    exec(block.replace("save/simulated", str(run_folder)), {})
    assert re.search(printed, capsys.readouterr().out)
