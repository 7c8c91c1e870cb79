"""Two races along one line: known differences of made-up races, and measured ones of real races."""

import numpy as np

from scripts.tools.maps_commands._comparison import (
    compare_runs,
    save_comparison,
    stations_along,
)
from scripts.tools.maps_commands._runs import DrivenRun, run_of_ghost
from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.telemetry.page.races import times_at

STRAIGHT_M = np.array([[0.0, 5.0, 0.0], [0.0, 5.0, 400.0]])


def run(position_m, period_ms=100, checkpoints_ms=(), label="run"):
    position_m = np.asarray(position_m, dtype=np.float64)
    time_ms = period_ms * np.arange(len(position_m))
    speed_m_s = np.linalg.norm(np.gradient(position_m, axis=0), axis=1) / (period_ms / 1000)
    race_time_ms = checkpoints_ms[-1] if checkpoints_ms else None
    return DrivenRun("a race", time_ms, position_m, speed_m_s, checkpoints_ms, race_time_ms, ())


def along_z(z_m, x_m=0.0):
    return np.stack([np.full(len(z_m), x_m), np.full(len(z_m), 5.0), z_m], axis=1)


def test_a_slower_race_falls_behind_steadily():
    fast, slow = run(along_z(4.0 * np.arange(71))), run(along_z(2.0 * np.arange(131), x_m=3.0))
    comparison = compare_runs(fast, slow, STRAIGHT_M)
    assert comparison.distance_m[-1] == 259.0  # 260 m is as far as the slow one came
    np.testing.assert_allclose(comparison.behind_ms, comparison.distance_m * (50.0 - 25.0), atol=1e-6)
    np.testing.assert_allclose(comparison.a.speed_m_s, 40.0, atol=1e-6)
    np.testing.assert_allclose(comparison.b.speed_m_s, 20.0, atol=1e-6)
    assert comparison.a.controls is None


def test_time_is_lost_where_it_is_lost():
    steady = run(along_z(5.0 * np.arange(61)))
    z_m = np.concatenate([5.0 * np.arange(21), 100.0 - 5.0 * np.arange(1, 6), 75.0 + 5.0 * np.arange(1, 31)])
    behind_ms = compare_runs(steady, run(along_z(z_m)), STRAIGHT_M).behind_ms
    np.testing.assert_allclose(behind_ms[:100], 0.0, atol=1e-6)
    np.testing.assert_allclose(behind_ms[101:], 1000.0, atol=1e-6)


def test_a_track_that_crosses_itself_is_followed_in_order():
    """A figure of eight: at its crossing the nearest point of the whole line would be a lap too early or too late."""
    phase = np.linspace(0.0, 2.0 * np.pi, 401)
    eight_m = np.stack([80.0 * np.sin(phase), np.full_like(phase, 9.0), 80.0 * np.sin(phase) * np.cos(phase)], axis=1)
    stations_m = stations_along(eight_m, run(eight_m[::3] + np.array([0.3, 0.0, 0.2])))
    assert (np.diff(stations_m) > 0).all()
    length_m = np.linalg.norm(np.diff(eight_m, axis=0), axis=1).sum()
    np.testing.assert_allclose(stations_m[-1], length_m, atol=3.0)


def test_the_time_at_a_distance_is_when_a_race_first_was_there():
    meters = np.array([0, 10, 20, 15, 12, 20, 30, 40], dtype=np.float32)  # it went back, and came again
    time_ms = np.arange(8, dtype=np.int32) * 50
    assert times_at(np.array([5.0, 20.0, 25.0, 39.0, 40.5]), meters, time_ms) == [25, 100, 200, 345, 350]
    assert times_at(np.array([5.0, 41.5]), meters, time_ms) == [25], "the second end was not reached"


def test_real_races_differ_by_their_checkpoints(shared_data, tmp_path):
    runs = []
    for name in ("B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx"):
        path = shared_data / "replays" / name
        runs.append(run_of_ghost(read_replay(path).best, path, name))
    assert runs[0].time_ms[-2:].tolist() == [24_900, 24_940]  # the finish lies between two samples
    comparison = compare_runs(*runs, runs[0].position_m)
    assert [section.behind_ms for section in comparison.sections] == [10, 0, 0, 10]
    # Official times are in steps of 10 ms; what samples say lies within one of them.
    at_ends_ms = np.interp([s.end_m for s in comparison.sections], comparison.distance_m, comparison.behind_ms)
    np.testing.assert_allclose(at_ends_ms, [10, 0, 0, 10], atol=10.0)
    assert comparison.b.controls.min() == -1.0
    save_comparison(comparison, "B13-Obstacle $no math$", tmp_path / "b13.png")
    assert (tmp_path / "b13.png").read_bytes().startswith(b"\x89PNG")
