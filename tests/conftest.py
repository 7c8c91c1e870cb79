"""Fixtures shared by all tests."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from trackmania_rl.errors import ExitCode
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.tracks.world import Edge, Track, build_ribbon

# Before torch is imported anywhere: two threads that share a busy machine's cores can be ten times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# On a busy machine Ray's first process takes longer than 30 s to begin.
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "180")

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent

LONGEST_FILES = (
    "end_to_end/test_run_call.py",
    "game_protocol/test_clients.py",
    "end_to_end/test_train_command.py",
    "training/test_turns.py",
    "faults/test_fault_table.py",
)
"""Begun first, so that no process is left alone with one of them at the end. The second one compiles nothing, as the
first one compiles for all."""


def pytest_collection_modifyitems(items):
    """Sort the tests: the longest files first, all others in their order."""
    places = {REPOSITORY_ROOT / "tests" / file: place for place, file in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def repository_root():
    """The folder that holds trackmania_rl/, maps/ and config_files/."""
    return REPOSITORY_ROOT


@pytest.fixture(scope="session")
def script_module(repository_root):
    """`script_module("tools/maps")` is scripts/tools/maps.py as a module, loaded anew at each call."""

    def load(name):
        file = repository_root / "scripts" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, file.stem, module)  # where dataclasses look for it
            spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def error_line(capsys):
    """`error_line(main, *arguments)`: the one line that a command says when it refuses its work."""

    def run(main, *arguments):
        assert main(*arguments) in (ExitCode.FAILED, ExitCode.TRY_AGAIN, ExitCode.NEEDS_A_PERSON)
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1, said
        return said

    return run


@pytest.fixture(scope="session")
def shared_data_folder():
    """Where the game's own files are looked for, whether they are there or not."""
    return Path(os.environ.get("TRACKMANIA_RL_SHARED_DATA", REPOSITORY_ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data(shared_data_folder):
    """Real maps, replays and a real reference line, which the repository does not ship; skips where they are absent."""
    if not shared_data_folder.is_dir():
        pytest.skip(
            f"real game files are not here ({shared_data_folder}); set TRACKMANIA_RL_SHARED_DATA to their folder"
        )
    return shared_data_folder


RAY_HEAD = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "resources": {"collector": 1}, "object_store_memory": 100 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
print("head", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="session")
def ray_here():
    """Ray on this machine, started once for all tests of a process; skips where it is not installed.

    The head starts in a process of its own: Ray forks, and a fork can hang in a process with threads of gRPC, which
    earlier tests leave.
    """
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")
    with subprocess.Popen(
        [sys.executable, "-c", RAY_HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        address = next(line for line in head.stdout if line.startswith("head ")).split()[1]
        ray.init(address, log_to_driver=False)
        yield
        ray.shutdown()
        head.stdin.close()


def straight_line_m(length_m):
    """(N, 3): a level line towards +z, a point every half metre."""
    line_m = np.zeros((int(length_m / 0.5) + 1, 3))
    line_m[:, 1] = 10.0
    line_m[:, 2] = 0.5 * np.arange(len(line_m))
    return line_m


@pytest.fixture(scope="session")
def straight_folder(tmp_path_factory):
    """A folder with `straight.npy`, a line of 50 m, for the simulated game."""
    folder = tmp_path_factory.mktemp("maps")
    np.save(folder / "straight.npy", np.arange(0, 50, 0.5)[:, None] * np.array([0.0, 0.0, 1.0]) + (0, 100, 0))
    return folder


@pytest.fixture(scope="session")
def straight():
    """That line as an entry of a map cycle."""
    files = {"map_path": "straight.npy", "reference_line": "straight.npy"}
    return MapEntry(map_name="straight", is_explo=True, fill_buffer=True, **files)


@pytest.fixture(scope="session")
def straight_track():
    """Two checkpoints and a finish, walls on both sides; a race takes seconds of game time."""
    return Track("straight", build_ribbon(straight_line_m(60)), (20.0, 40.0), 60.0)


@pytest.fixture(scope="session")
def two_lap_track():
    """Two laps of one checkpoint and the line, laid out one after the other."""
    return Track("laps", build_ribbon(straight_line_m(80)), (20.0, 40.0, 60.0), 80.0, n_laps=2)


@pytest.fixture(scope="session")
def pier_track():
    """A road without walls: whoever leaves it falls."""
    return Track("pier", build_ribbon(straight_line_m(60), half_width_m=4.0, edge=Edge.DROP), (), 60.0)
