"""Heads of `ray start` with a token and TLS, and machines that are lost: as they are, without doubles."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from benchmarks.training_command import TrainCommand

from ..end_to_end.conftest import SMALL

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ONE_COLLECTOR = {**SMALL, "n_collectors": 1, "collector_silence_s": 4, "checkpoint_interval_s": 5}
OPEN = {"RAY_AUTH_MODE": "disabled"}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}
OTHER_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 32}
CERTIFICATES = """
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=trainers -keyout ca.key -out ca.crt
openssl req -newkey rsa:2048 -nodes -subj /CN=tested -keyout node.key -out node.csr
openssl x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out node.crt \
    -extfile <(printf "subjectAltName=IP:%s")
"""
JOIN = """
import sys
from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess.cluster.connecting import connected
import ray
try:
    with connected(sys.argv[1]):
        print("it answered", ray.get(ray.remote(num_cpus=0)(lambda: 5 * 7).remote(), timeout=90))
except UserError as error:
    print("refused:", error)
"""


def own_address() -> str:
    """Of this machine, where others reach it; Ray takes it even where it is told the loopback one."""
    import ray.util

    return str(ray.util.get_node_ip_address())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Certificates by the commands of docs/cluster.rst, with shorter keys."""
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(["bash", "-ec", CERTIFICATES % own_address()], cwd=folder, check=True, capture_output=True)
    files = {"SERVER_CERT": "node.crt", "SERVER_KEY": "node.key", "CA_CERT": "ca.crt"}
    return {"RAY_USE_TLS": "1", **{f"RAY_TLS_{name}": str(folder / file) for name, file in files.items()}}


def environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """That of a user who has set these variables for Ray, and has no token in a file."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": str(home), **variables}


class Head:
    """`ray start --head` with these variables, in a process group of its own."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self.address = f"{own_address()}:{port}"
        self._sockets = tempfile.TemporaryDirectory(prefix="rh")  # a short path: it holds sockets
        options = ["--node-ip-address", own_address(), "--port", str(port), "--temp-dir", self._sockets.name]
        options += ["--num-cpus", "1", "--object-store-memory", str(100 << 20), "--include-dashboard=false"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *options]
        self._output = folder / "head.txt"
        with self._output.open("wb") as output:
            self._process = psutil.Popen(
                command, stdout=output, stderr=output, env=environment(folder, variables), start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it has started."""
        deadline_s = time.monotonic() + 120
        while "Ray runtime started" not in self._output.read_text():
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline_s, self._output.read_text()
            time.sleep(0.1)

    def end(self) -> None:
        """Kill it with its processes; `ray stop` would end those of others."""
        family = [*self._process.children(recursive=True), self._process]
        for one in family:
            one.kill()
        psutil.wait_procs(family, 20)
        self._sockets.cleanup()


@pytest.fixture
def start_head(tmp_path: Path) -> Iterator[Callable[[Mapping[str, str]], Head]]:
    heads: list[Head] = []

    def start(variables: Mapping[str, str]) -> Head:
        heads.append(Head(tmp_path, variables))
        heads[-1].wait()
        return heads[-1]

    yield start
    for head in heads:
        head.end()


def join(head: Head, home: Path, variables: Mapping[str, str]) -> str:
    """Join in a process of a user with these variables; return what it said."""
    command = [sys.executable, "-c", JOIN, head.address]
    joined = subprocess.run(command, env=environment(home, variables), capture_output=True, text=True, timeout=180)
    assert joined.returncode == 0, joined.stderr
    return joined.stdout


def test_a_head_without_a_token_is_refused(start_head: Callable[..., Head], tmp_path: Path) -> None:
    assert "takes in anybody" in join(start_head(OPEN), tmp_path, {})


def test_a_head_with_a_token_takes_in_who_has_it(
    start_head: Callable[..., Head], tls: dict[str, str], tmp_path: Path
) -> None:
    head = start_head(TOKEN)
    assert "it answered 35" in join(head, tmp_path, TOKEN)
    assert "asks for another token" in join(head, tmp_path, OTHER_TOKEN)
    assert "one side speaks TLS" in join(head, tmp_path, {**TOKEN, **tls})


def test_a_head_with_tls_takes_in_who_speaks_it(
    start_head: Callable[..., Head], tls: dict[str, str], tmp_path: Path
) -> None:
    head = start_head({**TOKEN, **tls})
    assert "it answered 35" in join(head, tmp_path, {**TOKEN, **tls})
    assert "RAY_USE_TLS" in join(head, tmp_path, TOKEN)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., TrainCommand]]:
    commands: list[TrainCommand] = []

    def start_it(cluster: str, **settings: object) -> TrainCommand:
        commands.append(TrainCommand(tmp_path, {**ONE_COLLECTOR, **settings}, ("--cluster", cluster)))
        return commands[-1]

    yield start_it
    for command in commands:
        command.end()


def test_without_its_head_a_training_ends_with_a_checkpoint_and_goes_on_with_a_new_one(
    start: Callable[..., TrainCommand],
) -> None:
    command = start("local:2")
    command.wait_for_races(4)
    family = psutil.Process(command.process.pid).children(recursive=True)
    [head] = [one for one in family if one.name() == "gcs_server"]
    head.kill()
    assert command.process.wait(90) not in (0, 1, -signal.SIGKILL, -signal.SIGABRT), command.output
    assert "head of the Ray cluster has not answered for 15 s" in command.output
    assert "Traceback" not in command.output
    assert not psutil.wait_procs(family, 30)[1], "something of the cluster is left"

    again = start("local:2")
    again.wait_for_races(4)
    assert "resumed" in again.output
    again.stop(signal.SIGTERM)
    assert again.process.returncode == 0, again.output


def test_a_machine_that_was_cut_off_and_comes_back_is_replaced_and_its_collector_ends(
    start: Callable[..., TrainCommand],
) -> None:
    command = start("local:3")
    command.wait_for_races(4)
    family = psutil.Process(command.process.pid).children(recursive=True)
    [collector] = [one for one in family if "CollectorHost" in " ".join(one.cmdline())]
    machine = [collector.parent(), *collector.parent().children(recursive=True)]
    for one in machine:
        one.suspend()
    command.wait_for(lambda: "no sign of life" in command.output, "a word of its silence", 60)
    command.wait_for_races(4)
    for one in machine:
        one.resume()
    assert psutil.wait_procs([collector], 60)[0], "the collector that was replaced goes on"
    command.wait_for_races(4)
    command.stop(signal.SIGTERM)
    assert command.process.returncode == 0, command.output
