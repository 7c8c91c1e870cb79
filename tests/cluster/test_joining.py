"""The clusters that a training joins: by Ray's answers, and heads of `ray start` with a token."""

import os
import socket
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")

from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess import cluster


@pytest.mark.parametrize(
    ("head", "without_token", "is_taken"),
    [
        ("127.0.0.1:6379", "", True),
        ("[::1]:6379", "", True),
        ("10.0.0.7:6379", "RPC error: InvalidAuthToken", True),
        ("10.0.0.7:6379", f"{cluster.HEAD}10.0.0.7:6379", False),
        ("10.0.0.7:6379", "it took too long to tell", False),
    ],
)
def test_beyond_this_machine_a_cluster_must_ask_for_a_token(head, without_token, is_taken, monkeypatch):
    def said(address, variables):
        return without_token if variables else f"warning\n{cluster.HEAD}{head}\n"

    monkeypatch.setattr(cluster, "_said_by_probe", said)
    if is_taken:
        cluster.require_answer("10.0.0.7:6379")
    else:
        with pytest.raises(UserError, match="accepts every machine"):
            cluster.require_answer("10.0.0.7:6379")


OPEN = {"RAY_AUTH_MODE": "disabled"}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}
OTHER_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 32}
JOIN = """
import sys
from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess.cluster import connected
import ray
try:
    with connected(sys.argv[1]):
        print("it answered", ray.get(ray.remote(num_cpus=0)(lambda: 5 * 7).remote(), timeout=90))
except UserError as error:
    print("refused:", error)
"""


def own_address():
    """Of this machine, where others reach it; Ray takes it even where it is told the loopback one."""
    import ray.util

    return str(ray.util.get_node_ip_address())


def environment(home, variables):
    """That of a user who has set these variables for Ray, and has no token in a file."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": str(home), **variables}


class Head:
    """`ray start --head` with these variables, in a process group of its own."""

    def __init__(self, folder, variables):
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

    def wait(self):
        """Wait until it has started."""
        deadline_s = time.monotonic() + 120
        while "Ray runtime started" not in self._output.read_text():
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline_s, self._output.read_text()
            time.sleep(0.1)

    def end(self):
        """Kill it with its processes; `ray stop` would end those of others."""
        family = [*self._process.children(recursive=True), self._process]
        for one in family:
            one.kill()
        psutil.wait_procs(family, 20)
        self._sockets.cleanup()


@pytest.fixture
def start_head(tmp_path):
    heads = []

    def start(variables):
        heads.append(Head(tmp_path, variables))
        heads[-1].wait()
        return heads[-1]

    yield start
    for head in heads:
        head.end()


def join(head, home, variables):
    """Join in a process of a user with these variables; return its output."""
    command = [sys.executable, "-c", JOIN, head.address]
    joined = subprocess.run(command, env=environment(home, variables), capture_output=True, text=True, timeout=180)
    assert joined.returncode == 0, joined.stderr
    return joined.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_head_without_a_token_is_refused(start_head, tmp_path):
    assert "accepts every machine" in join(start_head(OPEN), tmp_path, {})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_head_with_a_token_takes_in_who_has_it(start_head, tmp_path):
    head = start_head(TOKEN)
    assert "it answered 35" in join(head, tmp_path, TOKEN)
    assert "asks for another token" in join(head, tmp_path, OTHER_TOKEN)
