"""A run's folder as a training leaves it, small, and its page."""

import contextlib
import gc
import logging
import threading

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the live page's packages are not installed: pip install fastapi uvicorn")

from starlette.testclient import TestClient

from tests.run_log import write_messages, write_races
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.snapshot import write_snapshot
from trackmania_rl.telemetry.page.command import listen
from trackmania_rl.telemetry.page.page import RunPage
from trackmania_rl.telemetry.page.server import make_app, make_server


@pytest.fixture(autouse=True, scope="package")
def no_callback_of_collections():
    """Keep hypothesis from stopping the clock at every collection of garbage.

    Before 3.11.8 a thread that parses Python, as numpy does an array's header, fails where another does so meanwhile.
    """
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)


INPUTS = "0.00 press up\n1.00 press right\n1.30 rel right\n"
RECORD_MS = 3000


def race_line(number, **others):
    """A race of the run log, a finished evaluation race unless told otherwise."""
    line = {
        "session": 1,
        "wall_s": 2.0 * number,
        "frames_total": 400 * number,
        "map": "valley",
        "is_explo": False,
        "race_finished": True,
        "race_time_ms": 30_000 - 10 * number,
        "meters": 976.5,
        "collector": 0,
        "cutoff_reason": None,
        "is_demonstration": False,
        "checkpoint_times_ms": [7000, 12_000, 20_000, 30_000 - 10 * number],
    }
    return line | others


def make_run(save_folder, repository_root, name="tested", n_races=20):
    """Write a run with races, messages and a record on valley."""
    folder = save_folder / name
    write_snapshot(repository_root / "config_files" / "config.py", folder, [f"run_name={name}"])
    if n_races > 0:
        races = [race_line(number, is_explo=number % 2 == 1) for number in range(1, n_races + 1)]
        write_races(folder / "run.sqlite", races)
    write_messages(folder / "run.sqlite", ["a network of 301,325 parameters"], logging.INFO)
    write_messages(folder / "run.sqlite", ["collector 0 has died\nTraceback of it"], logging.WARNING)
    record = folder / "best_runs" / f"valley_{RECORD_MS}"
    record.mkdir(parents=True)
    (record / f"{record.name}.inputs").write_text(INPUTS)
    np.save(record / "q_values.npy", np.linspace(-1, 0, 60 * 12).reshape(60, 12).astype(np.float32))
    return RunFolder.at(folder.resolve())


@pytest.fixture
def run(tmp_path, repository_root):
    return make_run(tmp_path / "save", repository_root)


@pytest.fixture
def page(run):
    return RunPage(run, PROJECT_FOLDER)


@pytest.fixture
def client(page):
    with TestClient(make_app(page), base_url="http://127.0.0.1:8600") as client:
        yield client


@contextlib.contextmanager
def serving(page, host="127.0.0.1"):
    """Serve a page in a thread, at the port that this yields."""
    listening = listen(host, 0)
    port = listening.getsockname()[1]
    server = make_server(make_app(page, host, port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield port
    server.should_exit = True
    thread.join(60.0)


LIVE = "ws://127.0.0.1:8600/live"


@pytest.fixture
def snapshot_of():
    """`snapshot_of(client)`: the first message that a new tab gets."""

    def read(client):
        with client.websocket_connect(LIVE) as tab:
            first = tab.receive_json()
        return first

    return read
