"""What the live page costs a training, and whether its memory is flat.

python -m benchmarks.live_page                           # some 12 minutes: one training, three ways in turns
python -m benchmarks.live_page --memory-minutes 10       # one training with a browser, then ten tabs come and go

One training of the default configuration with its page: in turns of half a minute the page is stopped (SIGSTOP),
looked at by nobody, and shown by Chromium (without a window, on the same processor, which draws by software). Two
trainings of the same seed differ by more than a page costs, as a machine's speed does from one minute to the next: so
what is compared are turns that follow each other, their order changed from round to round. Frames are counted by
races.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from trackmania_rl.telemetry.learning_summary import iterate_races

PROJECT: Final = Path(__file__).resolve().parent.parent
WAYS: Final = ("page stopped", "page", "page and browser")
NOWHERE: Final = "about:blank"
PAGE_MODULE: Final = "trackmania_rl.telemetry.page.command"
ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+/")
BEGINS_WITHIN_S: Final = 300.0
SETTLED_AFTER_S: Final = 20.0
TURN_SETTLES_S: Final = 5.0
TABS_STAY_S: Final = 30.0
READ_EVERY_S: Final = 10.0
N_TABS: Final = 10


@dataclass(frozen=True)
class Turn:
    """One way for half a minute.

    Attributes:
        frames_per_s: by the wall clock.
        training_s: processor time of learner and collectors for each second.
        page_s: of the page, for each second.
        browser_s: of the browser, for each second.
    """

    frames_per_s: float
    training_s: float
    page_s: float
    browser_s: float

    @property
    def frames_per_processor_s(self) -> float:
        """Frames for each second of the training's own processor time."""
        return self.frames_per_s / self.training_s


class Training:
    """A training of the default configuration with its live page; a context manager.

    Args:
        folder: for all that it writes.
    """

    def __init__(self, folder: Path) -> None:
        self._races = folder / "save" / "measured" / "races.jsonl"
        self._log = folder / "output.txt"
        command = [sys.executable, str(PROJECT / "scripts" / "train.py"), "--output-folder", str(folder)]
        command += ["--dashboard", "--set", "run_name=measured", "--set", "terminal_view=plain"]
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()

    def address(self) -> str:
        """Wait for the page's address.

        Raises:
            RuntimeError: if the training ends, or does not begin.
        """
        self._wait(lambda: ADDRESS.search(self._log.read_text()) is not None)
        return ADDRESS.findall(self._log.read_text())[0]

    def settle(self, seconds: float) -> None:
        """Wait for the first race, and then for so long.

        Raises:
            RuntimeError: if the training ends, or does not begin.
        """
        self._wait(lambda: self._races.is_file() and self._races.stat().st_size > 0)
        self.go_on(seconds)

    def go_on(self, seconds: float) -> None:
        """Wait for so long.

        Raises:
            RuntimeError: if the training ends meanwhile.
        """
        ends_s = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= ends_s, seconds + BEGINS_WITHIN_S)

    def frames(self) -> tuple[float, int]:
        """Return the time and the count of frames, as of the newest race."""
        *_, newest = iterate_races(self._races)
        return newest["wall_s"], newest["frames_total"]

    def processor_s(self) -> tuple[float, float]:
        """Processor time so far: of learner and collectors, and of the page."""
        main, page = psutil.Process(self._process.pid), self.page()
        others = [child for child in main.children() if child.pid != page.pid]
        return _processor_s(main) + sum(map(_processor_s, others)), _processor_s(page)

    def page(self) -> psutil.Process:
        """Find the page's process."""
        children = psutil.Process(self._process.pid).children()
        return next(child for child in children if PAGE_MODULE in child.cmdline())

    def _wait(self, is_so: Callable[[], bool], within_s: float = BEGINS_WITHIN_S) -> None:
        gives_up_s = time.monotonic() + within_s
        while not is_so():
            if self._process.poll() is not None or time.monotonic() > gives_up_s:
                raise RuntimeError(f"the training has ended, or does not begin: {self._log.read_text()[-2000:]}")
            time.sleep(0.1)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Open Chromium without a window; it and its driver are named by CHROMIUM and CHROMEDRIVER, or on the PATH."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(os.environ.get("CHROMIUM", "chromium")) or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, Service(shutil.which(os.environ.get("CHROMEDRIVER", "chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def _open(driver: Any, address: str) -> None:
    """Open a page that may not listen yet: it is told of as soon as its process is started."""
    from selenium.common.exceptions import WebDriverException

    gives_up_s = time.monotonic() + BEGINS_WITHIN_S
    while True:
        try:
            return driver.get(address)
        except WebDriverException as error:
            if "ERR_CONNECTION_REFUSED" not in str(error) or time.monotonic() > gives_up_s:
                raise
            time.sleep(0.5)


def main() -> int:
    arguments = parse_arguments()
    if arguments.memory_minutes > 0:
        watch_memory(arguments.memory_minutes)
        return 0
    print_turns(measure(arguments.rounds, arguments.seconds))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=6, help="turns of each kind (default %(default)s)")
    add("--seconds", type=float, default=30.0, help="how long each is counted (default %(default)s)")
    add("--memory-minutes", type=float, default=0.0, help="watch the page's memory for so long instead")
    return parser.parse_args()


def measure(rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """Train, and count the three ways in turns."""
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        training = closing.enter_context(Training(folder))
        address, driver = training.address(), closing.enter_context(browser())
        _open(driver, address)
        training.settle(SETTLED_AFTER_S)
        for number in range(rounds):
            for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
                turns[way].append(_turn(way, training, driver, address, seconds))
                print(f"round {number + 1}, {way}: {turns[way][-1]}", flush=True)
    return turns


def _turn(way: str, training: Training, driver: Any, address: str, seconds: float) -> Turn:
    """Bring one way about, and count for so long."""
    page, chromium = training.page(), psutil.Process(driver.service.process.pid)
    driver.get(address if way == "page and browser" else NOWHERE)
    with contextlib.ExitStack() as closing:
        if way == "page stopped":
            page.suspend()
            closing.callback(page.resume)
        training.go_on(TURN_SETTLES_S)
        before = (*training.frames(), *training.processor_s(), _family_s(chromium))
        training.go_on(seconds)
        after = (*training.frames(), *training.processor_s(), _family_s(chromium))
    elapsed_s, *amounts = (late - early for early, late in zip(before, after, strict=True))
    return Turn(*(amount / elapsed_s for amount in amounts))


def watch_memory(minutes: float) -> None:
    """Print the memory of a page that a browser shows for so long, then of one that ten tabs come to and leave."""
    console = Console()
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        training = closing.enter_context(Training(folder))
        address, driver = training.address(), closing.enter_context(browser())
        page = training.page()
        _open(driver, address)
        training.settle(SETTLED_AFTER_S)
        readings = []
        for _ in range(round(60 * minutes / READ_EVERY_S)):
            training.go_on(READ_EVERY_S)
            readings.append(page.memory_info().rss / 1e6)
        by_minute = [f"{statistics.median(readings[start:][:6]):.1f}" for start in range(0, len(readings), 6)]
        console.print(f"the page's memory in MB, the median of each minute: {', '.join(by_minute)}")
        first = driver.current_window_handle
        for _ in range(N_TABS):
            driver.switch_to.new_window("window")
            driver.get(address)
        training.go_on(TABS_STAY_S)
        open_mb, open_files = page.memory_info().rss / 1e6, page.num_fds()
        for handle in driver.window_handles:
            if handle != first:
                driver.switch_to.window(handle)
                driver.close()
        driver.switch_to.window(first)
        training.go_on(TABS_STAY_S)
        console.print(
            f"{N_TABS} more tabs: {open_mb:.0f} MB and {open_files} open files; closed again: "
            f"{page.memory_info().rss / 1e6:.0f} MB and {page.num_fds()} open files"
        )


def print_turns(turns: dict[str, list[Turn]]) -> None:
    """Print medians, and the median over the rounds of each way's share of the first one's rate in the same round."""
    table = Table("", "frames/s", "of it", "frames per processor second", "of it", "page, s/s", "browser, s/s")
    first = turns[WAYS[0]]
    for way, of_way in turns.items():
        row = [way]
        for name in ("frames_per_s", "frames_per_processor_s"):
            shares = [getattr(turn, name) / getattr(beside, name) for turn, beside in zip(of_way, first, strict=True)]
            row += [f"{_median(of_way, name):.0f}", f"{100 * statistics.median(shares):.1f} %"]
        table.add_row(*row, f"{_median(of_way, 'page_s'):.3f}", f"{_median(of_way, 'browser_s'):.3f}")
    Console(width=110).print(table)


def _median(turns: list[Turn], name: str) -> float:
    return statistics.median(getattr(turn, name) for turn in turns)


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _family_s(process: psutil.Process) -> float:
    """Processor time of a process and of all below it."""
    total_s = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total_s += _processor_s(one)
    return total_s


if __name__ == "__main__":
    sys.exit(main())
