"""Chromium plays what is written: in its full length, and transparent where it is."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.telemetry.video import VideoFile

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

PLAY = """
const [address, done] = arguments;
const video = document.createElement("video");
video.muted = true;
video.onerror = () => done({error: video.error.message});
video.onended = () => {
    const canvas = document.createElement("canvas");
    canvas.width = video.videoWidth; canvas.height = video.videoHeight;
    const context = canvas.getContext("2d");
    context.drawImage(video, 0, 0);
    const pixel = (row) => [...context.getImageData(canvas.width / 2, row, 1, 1).data];
    done({
        size: [video.videoWidth, video.videoHeight],
        duration_s: video.duration,
        ended_s: video.currentTime,
        upper: pixel(canvas.height / 4),
        lower: pixel(3 * canvas.height / 4),
    });
};
video.src = address;
video.play();
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None or DRIVER is None:
        pytest.skip("chromium and its driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    browser.set_script_timeout(60)
    yield browser
    browser.quit()


@pytest.mark.parametrize(("ending", "kind"), [("mp4", 'video/mp4; codecs="avc1.64001e"'), ("webm", "video/webm")])
def test_chromium_plays_it(browser: Any, tmp_path: Path, ending: str, kind: str) -> None:
    frame = np.zeros((90, 160, 4), np.uint8)
    frame[:45] = (40, 120, 200, 255)
    with VideoFile(tmp_path / f"race.{ending}", 25) as video:
        for _ in range(50):
            video.write(frame)
    content = base64.b64encode((tmp_path / f"race.{ending}").read_bytes()).decode()
    played = browser.execute_async_script(PLAY, f"data:video/{ending};base64,{content}")
    assert browser.execute_script("return document.createElement('video').canPlayType(arguments[0])", kind)
    assert played["size"] == [160, 90], played
    assert played["duration_s"] == pytest.approx(2.0, abs=0.05)
    assert played["ended_s"] == pytest.approx(played["duration_s"], abs=0.05)
    assert played["upper"] == pytest.approx([200, 120, 40, 255], abs=6), "colours are those of the frames"
    assert played["lower"][3] == (255 if ending == "mp4" else 0)
