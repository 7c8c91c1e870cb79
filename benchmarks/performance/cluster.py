"""Races and weights on their way over a Ray cluster of two simulated nodes, and a training with its collector there.

In turns with shared memory and with pickling through a queue; once as it is, and once with TLS. Needs Ray.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import Figure, Options, Timing
from benchmarks.performance.training import frames_per_s
from trackmania_rl.errors import UserError

if TYPE_CHECKING:
    from benchmarks.performance.cluster_learner import Measured

PART = "cluster"
BLOCKED_RATIO: Final = 10.0
TRAINING_RATIO: Final = 0.85
PAIRS: Final = 3
MOST_BLOCKED_MS: Final = 2.0
MOST_MS: Final = {"learner's node": 25.0, "other node": 60.0}
MEASURED_WITHIN_S: Final = 600.0
CERTIFICATES: Final = """
openssl req -x509 -newkey rsa:4096 -nodes -days 2 -subj /CN=trainers -keyout ca.key -out ca.crt
openssl req -newkey rsa:4096 -nodes -subj /CN=measured -keyout node.key -out node.csr
openssl x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out node.crt \
    -extfile <(printf "subjectAltName=IP:127.0.0.1,IP:%s")
"""


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure the ways in turns, and then trainings.

    Raises:
        UserError: if Ray is not installed.
    """
    del machine
    if importlib.util.find_spec("ray") is None:
        raise UserError("this part needs Ray: pip install -r requirements-cluster.txt")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, variables in {"": {}, ", TLS": _make_certificates(Path(folder))}.items():
            figures += _figures(name, _measured_by_a_learner(options, variables), _race_bytes(options))
    return figures + _of_trainings(options)


def _race_bytes(options: Options) -> int:
    from benchmarks.performance.races import random_race

    race = random_race(options.n_frames, options.image_size_px, seed=0)
    return int(sum(column.nbytes for column in race.values()))


def _make_certificates(folder: Path) -> dict[str, str]:
    """Variables of an authority and a certificate for this machine, by the commands of docs/cluster.rst."""
    import ray.util

    address = ray.util.get_node_ip_address()
    subprocess.run(["bash", "-ec", CERTIFICATES % address], cwd=folder, check=True, capture_output=True)
    files = {"SERVER_CERT": "node.crt", "SERVER_KEY": "node.key", "CA_CERT": "ca.crt"}
    return {"RAY_USE_TLS": "1", **{f"RAY_TLS_{name}": str(folder / file) for name, file in files.items()}}


def _measured_by_a_learner(options: Options, variables: Mapping[str, str]) -> Measured:
    """Let a process with these variables be the learner, as Ray reads its own when it is imported."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    learner = context.Process(target=_learn, args=(there, options))
    with patch.dict(os.environ, variables):
        learner.start()
    there.close()
    try:
        if not here.poll(MEASURED_WITHIN_S):
            raise RuntimeError(f"nothing was measured within {MEASURED_WITHIN_S:.0f} s")
        measured: Measured = here.recv()
    except EOFError:
        raise RuntimeError("the process that measures has ended; its reason stands above") from None
    finally:
        learner.terminate()
        learner.join()
    return measured


def _learn(connection: Connection, options: Options) -> None:
    from benchmarks.performance.cluster_learner import measure_ways

    connection.send(measure_ways(options))


def _figures(suffix: str, measured: Measured, race_bytes: int) -> list[Figure]:
    medians = {name: Timing.median(pairs) for name, pairs in measured.samples.items()}
    shared, queue = "in shared memory, measured in turns", "queue"
    figures = []
    for node, most_ms in MOST_MS.items():
        figures += [
            Figure.of_times(
                PART,
                f"learner blocked, race of the {node}{suffix}",
                medians[f"{node} blocked"],
                medians["queue blocked"],
                ratio_to=queue,
                required_ratio=BLOCKED_RATIO,
                floor=medians["slots blocked"].wall_ms,
                floor_is=shared,
                note=f"at most {MOST_BLOCKED_MS:g} ms is asked for",
            ),
            Figure.of_times(
                PART,
                f"from sent to received, {node}{suffix}",
                medians[f"{node} wall"],
                medians["queue wall"],
                ratio_to=queue,
                floor=medians["slots wall"].wall_ms,
                floor_is=shared,
                note=f"a race of {race_bytes / 1e6:.1f} MB; at most {most_ms:g} ms is asked for, without TLS",
            ),
            Figure.of_times(PART, f"weights from published to pulled, {node}{suffix}", medians[f"{node} weights"]),
        ]
    mb_per_s = 1e-3 * race_bytes / medians["other node wall"].wall_ms
    figures.append(Figure(PART, f"races between nodes{suffix}", mb_per_s, "MB/s"))
    figures.append(Figure.of_times(PART, f"learner publishes weights{suffix}", medians["publish"]))
    note = "200 collectors that call as often as they are answered; one that plays calls about four times a second"
    figures.append(Figure(PART, f"relay{suffix}", measured.relay_calls_per_s, "calls/s", note=note))
    return figures


def _of_trainings(options: Options) -> list[Figure]:
    """Train with the default configuration, its collector in turns here and on another simulated node."""
    if options.training_s == 0:
        return []
    options = replace(options, training_s=max(options.training_s, 100.0) if options.compiled else options.training_s)
    pairs = [(frames_per_s(options, "--cluster", "local:2"), frames_per_s(options)) for _ in range(PAIRS)]
    ratios = ", ".join(f"{there / here:.2f}" for there, here in pairs)
    return [
        Figure(
            PART,
            f"training, {options.training_s:.0f} s, its collector on the other node",
            statistics.median(there for there, _ in pairs),
            "frames/s",
            classic=statistics.median(here for _, here in pairs),
            ratio_to="local",
            required_ratio=TRAINING_RATIO,
            note=f"both share this machine; the pairs' ratios are {ratios}",
        )
    ]
