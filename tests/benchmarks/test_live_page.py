"""The benchmark of the live page compares turns of one training, with the page and without it."""

import shutil
import sys

import pytest

pytest.importorskip("fastapi", reason="the live page's packages are not installed: pip install fastapi uvicorn")


def test_medians_are_compared_with_those_of_the_first_way(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.live_page import Turn, print_turns

    alone = [Turn(frames, 2.0, 0.0, 0.0) for frames in (1000.0, 3000.0, 2000.0)]
    page = [Turn(frames, 2.0, 0.0, 0.0) for frames in (990.0, 2970.0, 1700.0)]
    seen = [Turn(0.9 * turn.frames_per_s, 1.8, 0.05, 0.15) for turn in alone]
    print_turns({"page stopped": alone, "page": page, "page and browser": seen})
    printed = capsys.readouterr().out
    assert "99.0 %" in printed, "of the turn beside it, not of another one"
    assert "90.0 %" in printed, "frames by the wall clock"
    assert "100.0 %" in printed, "frames by processor time"
    assert "0.150" in printed


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="Chromium and its driver are not here"
)
def test_a_training_with_page_and_browser_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("selenium")
    from benchmarks import live_page

    monkeypatch.setattr(live_page, "SETTLED_AFTER_S", 2.0)
    arguments = ["--rounds", "1", "--seconds", "8"]
    monkeypatch.setattr(sys, "argv", ["live_page", *arguments])
    assert live_page.main() == 0
    assert "frames/s" in capsys.readouterr().out
