"""Cost of the live page for a training.

python -m benchmarks.live_page                           # about 12 minutes: one training, three ways in turns

One training of the default configuration with its page. In turns of half a minute the page is stopped (SIGSTOP), has
no viewer, or is shown by headless Chromium. Two trainings of the same seed differ by more than the page costs, so turns
of one training are compared, in an order that changes from round to round.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.training_command import FIRST_RACE_WITHIN_S, TrainCommand

WAYS: Final = ("page stopped", "page", "page and browser")
NOWHERE: Final = "about:blank"
SETTLED_AFTER_S: Final = 20.0
TURN_SETTLES_S: Final = 5.0


class Turn(NamedTuple):
    """Rates of one turn by the wall clock: frames, and processor seconds of training, page and browser."""

    frames_per_s: float
    training: float
    page: float
    browser: float

    @property
    def frames_per_processor_s(self) -> float:
        """Frames per second of the training's own processor time."""
        return self.frames_per_s / self.training


@contextlib.contextmanager
def training_with_browser() -> Iterator[tuple[TrainCommand, str, Any]]:
    """Start a training and headless Chromium on its page; yield the training, the page's address and the driver.

    The environment variables CHROMIUM and CHROMEDRIVER name the programs (default: on the PATH).
    """
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(os.environ.get("CHROMIUM", "chromium")) or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        training = closing.enter_context(TrainCommand(folder, {"terminal_view": "plain"}, ("--dashboard",)))
        address = training.page_address()
        driver = webdriver.Chrome(options, Service(shutil.which(os.environ.get("CHROMEDRIVER", "chromedriver"))))
        closing.callback(driver.quit)

        def is_open() -> bool:
            try:
                driver.get(address)
            except WebDriverException as error:
                if "ERR_CONNECTION_REFUSED" not in str(error):
                    raise
                return False
            return True

        training.wait_for(is_open, "page", FIRST_RACE_WITHIN_S)
        training.wait_for_races()
        training.watch(SETTLED_AFTER_S)
        yield training, address, driver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=6, help="turns of each kind (default %(default)s)")
    add("--seconds", type=float, default=30.0, help="length of each turn (default %(default)s)")
    asked = parser.parse_args()
    print_turns(measure(asked.rounds, asked.seconds))
    return 0


def measure(rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """Train, and measure the three ways in turns."""
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    with training_with_browser() as (training, address, driver):
        page, chromium = training.page(), psutil.Process(driver.service.process.pid)
        for number in range(rounds):
            for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
                driver.get(address if way == "page and browser" else NOWHERE)
                with contextlib.ExitStack() as closing:
                    if way == "page stopped":
                        page.suspend()
                        closing.callback(page.resume)
                    training.watch(TURN_SETTLES_S)
                    before = _amounts(training, page, chromium)
                    training.watch(seconds)
                    after = _amounts(training, page, chromium)
                elapsed_s, *amounts = (late - early for early, late in zip(before, after, strict=True))
                turns[way].append(Turn(*(amount / elapsed_s for amount in amounts)))
                print(f"round {number + 1}, {way}: {turns[way][-1]}", flush=True)
    return turns


def _amounts(training: TrainCommand, page: psutil.Process, chromium: psutil.Process) -> tuple[float, ...]:
    """Return time in s, frames, and processor time in s of training, page and browser."""
    family = [psutil.Process(training.process.pid), *training.children("")]
    processor_s = (
        _processor_s([process for process in family if process.pid != page.pid]),
        _processor_s([page]),
        _processor_s([chromium, *chromium.children(recursive=True)]),
    )
    return (*training.frames(), *processor_s)


def _processor_s(processes: list[psutil.Process]) -> float:
    total_s = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total_s += sum(process.cpu_times()[:2])
    return total_s


def print_turns(turns: dict[str, list[Turn]]) -> None:
    """Print medians, and medians over the rounds of each way's share of the first way's rate in the same round."""
    table = Table("", "frames/s", "of it", "frames per processor second", "of it", "page, s/s", "browser, s/s")
    first = turns[WAYS[0]]
    for way, of_way in turns.items():
        row = [way]
        for name in ("frames_per_s", "frames_per_processor_s"):
            shares = [getattr(turn, name) / getattr(beside, name) for turn, beside in zip(of_way, first, strict=True)]
            median = statistics.median(getattr(turn, name) for turn in of_way)
            row += [f"{median:.0f}", f"{100 * statistics.median(shares):.1f} %"]
        row += [f"{statistics.median(getattr(turn, name) for turn in of_way):.3f}" for name in ("page", "browser")]
        table.add_row(*row)
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
