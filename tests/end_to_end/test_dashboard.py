"""`train.py --dashboard`: the page is there while the run trains, shows its games, and ends with it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the live page's packages are not installed: pip install fastapi uvicorn")
from httpx2 import Client, TransportError
from websockets.sync.client import connect

from tests.end_to_end.conftest import StartTraining, TrainCommand
from trackmania_rl.dashboard.health import health_of

PAGE = "trackmania_rl.dashboard"


def page_address(training: TrainCommand) -> str:
    training.wait_for(lambda: "the live page of this run: http" in training.output, "address of the page", 120.0)
    match = re.search(r"http://(127\.0\.0\.1:\d+)/", training.output)
    assert match is not None
    return match[1]


def answers(address: str) -> bool:
    try:
        with Client() as client:
            return client.get(f"http://{address}/").status_code == 200
    except TransportError:  # also while it starts: its port is taken before it can answer
        return False


def counts_races(client: Client, address: str) -> bool:
    metrics = client.get(f"http://{address}/metrics").text
    return re.search(r"^trackmania_races_total [1-9]", metrics, re.MULTILINE) is not None


def test_the_page_shows_the_games_of_a_training_and_ends_with_it(start_training: StartTraining, tmp_path: Path) -> None:
    training = start_training(tmp_path / "run", ("--dashboard",))
    address = page_address(training)
    training.wait_for_races(3)
    training.wait_for(lambda: answers(address), "page")
    with connect(f"ws://{address}/live", max_size=None) as tab:
        told: set[str] = set()
        while not {"run", "state", "races", "cars"} <= told:
            told |= set(re.findall(r'"(run|state|races|cars)":[{[]', str(tab.recv(60))))
    assert training.children(PAGE)
    with Client() as client:
        health = client.get(f"http://{address}/healthz")
        training.wait_for(lambda: counts_races(client, address), "count of races")  # it is written every second
        metrics = client.get(f"http://{address}/metrics").text
    assert (health.status_code, health.json()["ok"]) == (200, True), health.text
    assert "trackmania_up 1.0" in metrics
    training.stop(signal.SIGINT)
    assert not answers(address)
    assert health_of(training.run_folder)[1]["problem"] == "the training has ended"
    assert "the live page has ended" not in training.output


@pytest.mark.slow
def test_the_page_of_a_training_that_is_killed_ends_as_well(start_training: StartTraining, tmp_path: Path) -> None:
    training = start_training(tmp_path / "run", ("--dashboard",))
    address = page_address(training)
    training.wait_for(lambda: answers(address), "page")
    (page,) = training.children(PAGE)
    training.process.kill()
    page.wait(20)
    assert not answers(address)
