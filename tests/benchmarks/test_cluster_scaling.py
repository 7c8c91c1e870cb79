"""The simulation of a cluster agrees with what can be reckoned by hand, and names the part that is full."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROWS, ROW_BYTES, MADE_PER_S = 30, 700.0, 60.0


def made_up(**changes):
    from benchmarks.cluster_scaling.workloads import Workload

    plain = Workload(
        name="made up",
        rows_per_race=ROWS,
        row_bytes=ROW_BYTES,
        collector_actions_per_s=MADE_PER_S,
        learner_actions_per_s=1e9,
        weights_bytes=900.0,
        publish_every_s=2.0,
        rooms=3,
    )
    return replace(plain, **changes)


def run(workload, n=2, each=3, **limits):
    from benchmarks.cluster_scaling.simulation import Simulation
    from benchmarks.cluster_scaling.workloads import Machines

    wide = {"link_bytes_per_s": 1e9, "relay_calls_per_s": 1e9} | limits
    return Simulation(workload, Machines(n, each, **wide)).run(seconds=120.0, warm_up_s=20.0)


def test_with_room_everywhere_all_that_is_made_is_learned_and_the_collectors_are_the_limit():
    outcome = run(made_up())
    assert outcome.learned_per_s == pytest.approx(6 * MADE_PER_S, rel=0.03)
    assert outcome.busy["collectors"] == pytest.approx(1.0)
    assert outcome.full == ("collectors",)
    assert outcome.race_age_s < 0.01


@pytest.mark.parametrize(
    ("part", "changes", "limits"),
    [
        ("learner", {"learner_actions_per_s": 90.0}, {}),
        ("link in", {}, {"link_bytes_per_s": 90.0 * ROW_BYTES}),
        ("relay", {}, {"relay_calls_per_s": 22.0}),
    ],
)
def test_what_is_narrow_is_full_and_collectors_wait(part, changes, limits):
    outcome = run(made_up(**changes), **limits)
    assert outcome.full == (part,)
    assert outcome.busy[part] > 0.97
    assert outcome.busy["collectors"] < 0.5
    if part != "relay":
        assert outcome.learned_per_s == pytest.approx(90.0, rel=0.05)
        assert 6 * 1 * ROWS / 90 < outcome.race_age_s <= 6 * 3 * ROWS / 90, (
            "all rooms are full, and wait for one server"
        )


def test_weights_that_fill_the_link_come_late_and_nobody_waits_for_them():
    outcome = run(made_up(weights_bytes=3000.0), n=2, each=1, link_bytes_per_s=2000.0 + 2 * MADE_PER_S * ROW_BYTES)
    slow = run(made_up(weights_bytes=200_000.0), n=2, each=1, link_bytes_per_s=2 * MADE_PER_S * ROW_BYTES * 1.2)
    assert slow.weights_age_s > 10 * outcome.weights_age_s
    assert slow.full == ("link out",)
    assert slow.learned_per_s == pytest.approx(2 * MADE_PER_S, rel=0.05)


@pytest.mark.parametrize("part", ["learner", "link in"])
def test_the_number_reckoned_is_where_the_simulation_fills_up(part):
    from benchmarks.cluster_scaling.capacity import collectors_served
    from benchmarks.cluster_scaling.workloads import Machines

    workload = made_up(learner_actions_per_s=300.0 if part == "learner" else 1e9)
    link = 1e9 if part == "learner" else 300.0 * ROW_BYTES
    served = collectors_served(workload, Machines(1, 1, link, 1e9))
    assert served[part] == pytest.approx(5.0)
    assert min(served, key=lambda name: served[name]) in (part, "machine's link")
    assert run(workload, n=4, each=1, link_bytes_per_s=link).full == ("collectors",)
    assert run(workload, n=6, each=1, link_bytes_per_s=link).full == (part,)


def test_the_command_prints_both_tables(repository_root: Path) -> None:
    command = "-m benchmarks.cluster_scaling --machines 1 3 --collectors-per-machine 2 --seconds 5"
    ran = subprocess.run(
        [sys.executable, *command.split()], cwd=repository_root, capture_output=True, text=True, timeout=120, check=True
    )
    for workload in ("default", "pictures", "pictures, GPU learner *"):
        assert len(re.findall(rf"^│ {re.escape(workload)} +│", ran.stdout, re.MULTILINE)) == 3, ran.stdout
