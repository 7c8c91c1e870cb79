"""Record the live page as a moving picture, with Chromium: start a training with --dashboard, then run this beside it.

  python scripts/tools/record_page.py http://127.0.0.1:8600/ page.webp
  python scripts/tools/record_page.py http://127.0.0.1:8600/ phone.webp --size 390x844

It needs selenium (python -m pip install selenium), and Chromium with its driver (apt-get install chromium
chromium-driver).
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout that is not installed

from trackmania_rl.cli import command, new_file, size_px, whole_number
from trackmania_rl.errors import UserError

PROGRAMS: Final = ("chromium", "chromedriver")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
WARM_UP_S: Final = 15.0
"""The page is loaded, and a race has begun, before the first picture is taken."""
QUALITY: Final = 70
COMPRESSION_EFFORT: Final = 3


@command
def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the page")
    parser.add_argument("file", type=new_file, metavar="FILE.webp", help="what is written")
    parser.add_argument("--size", type=size_px, default=(1280, 900), metavar="WxH", help="of the browser's window")
    parser.add_argument("--width", type=whole_number(100, 4096), default=960, help="of the moving picture, in pixels")
    parser.add_argument("--pictures", type=whole_number(1, 500), default=40, help="default %(default)s")
    parser.add_argument("--per-second", type=whole_number(1, 10), default=4, help="default %(default)s")
    asked = parser.parse_args()
    pictures, ms_per_picture = record(asked.address, asked.size, asked.pictures, asked.per_second)
    height = round(asked.width * pictures[0].height / pictures[0].width)
    pictures = [picture.resize((asked.width, height), Image.Resampling.LANCZOS) for picture in pictures]
    pictures[0].save(
        asked.file,
        format="WEBP",
        save_all=True,
        append_images=pictures[1:],
        duration=ms_per_picture,
        loop=0,
        quality=QUALITY,
        method=COMPRESSION_EFFORT,
    )
    print(f"{asked.file}: {len(pictures)} pictures, {asked.file.stat().st_size / 1e6:.2f} MB")


def record(address: str, window_px: tuple[int, int], n_pictures: int, per_second: int) -> tuple[list[Image.Image], int]:
    """Take pictures of a page at an even pace; returns them, and the time between two in ms.

    Raises:
        UserError: if selenium or Chromium is missing, or the page cannot be opened.
    """
    browser = _open_browser(window_px)
    try:
        _open_page(browser, address)
        time.sleep(WARM_UP_S)
        pictures, began_s = [], time.monotonic()
        for number in range(n_pictures):
            time.sleep(max(0.0, began_s + number / per_second - time.monotonic()))
            with Image.open(io.BytesIO(browser.get_screenshot_as_png())) as picture:
                pictures.append(picture.convert("RGB"))
        elapsed_s = time.monotonic() - began_s
    finally:
        browser.quit()
    return pictures, round(1000 * max(elapsed_s / n_pictures, 1 / per_second))


def _open_browser(window_px: tuple[int, int]) -> Any:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise UserError(f"{' and '.join(missing)} cannot be found: apt-get install chromium chromium-driver")
    if importlib.util.find_spec("selenium") is None:
        raise UserError("this needs selenium, which is not installed: python -m pip install selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    folder = tempfile.mkdtemp(prefix="chromium_")
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.binary_location = shutil.which(PROGRAMS[0]) or ""
    browser = webdriver.Chrome(options=options, service=Service(shutil.which(PROGRAMS[1])))
    width, height = window_px
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return browser


def _open_page(browser: Any, address: str) -> None:
    from selenium.common.exceptions import WebDriverException

    try:
        browser.get(address)
    except WebDriverException as error:
        raise UserError(f"{address} cannot be opened: {str(error.msg).splitlines()[0]}") from error


if __name__ == "__main__":
    sys.exit(main())
