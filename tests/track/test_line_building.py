"""Lines from samples: the curve, the mean, the ends, and respawns."""

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.gbx.replay import Ghost, GhostSamples
from trackmania_rl.track.line_building import (
    DrivenPath,
    DrivenPathError,
    LineError,
    arc_length,
    build_line,
    line_of_path,
    path_of_ghost,
)
from trackmania_rl.track.line_checks import Verdict, check_line, gate_passages

from .conftest import make_challenge


def a_path(position_m, name="a race"):
    speed_m_s = np.full(len(position_m), 30.0)
    return DrivenPath(name, 100.0 * np.arange(len(position_m)), position_m, speed_m_s, np.zeros((0, 3)))


def a_straight(length_m, step_m, beside_m=0.0):
    z = np.arange(0.0, length_m + 1e-6, step_m)
    return np.stack((np.full_like(z, 16.0 + beside_m), np.full_like(z, 9.0), z), axis=1)


def a_ghost(position_m, speed_m_s, n_respawns=0):
    n = len(position_m)
    rotation = np.tile([1.0, 0.0, 0.0, 0.0], (n, 1))
    samples = GhostSamples(100, 100 * np.arange(n), position_m, rotation, speed_m_s)
    return Ghost("driver", None, (), n_respawns, samples, (), "")


def distance_to_curve_m(points_m, curve_m):
    """(N,) distance of each point from a polyline, all pieces tried."""
    begin, step = curve_m[:-1], np.diff(curve_m, axis=0)
    result = []
    for point_m in points_m:
        share = np.clip(((point_m - begin) * step).sum(axis=1) / (step * step).sum(axis=1), 0.0, 1.0)
        result.append(np.linalg.norm(begin + share[:, None] * step - point_m, axis=1).min())
    return np.array(result)


def test_a_line_reaches_from_the_start_line_to_a_bit_behind_the_finish():
    start, finish = (Block(f"StadiumRoadMain{kind}Line", (0, 1, z), 0, 0) for kind, z in (("Start", 0), ("Finish", 5)))
    for end_m in (168.0, 216.0):  # before and behind the finish at 176 m
        line = build_line([a_path(a_straight(end_m, 8.0)[4:])], make_challenge(start, finish))
        np.testing.assert_allclose(line.points_m[[0, -1], 2], (16.0, 177.0), atol=0.3)
        np.testing.assert_allclose(np.diff(arc_length(line.points_m)), 0.5, atol=0.01)
        assert line.speed_m_s.shape == (len(line.points_m),)


def test_races_that_make_no_line_are_refused():
    for length_m, step_m in ((15.0, 5.0), (60_000.0, 8.0)):
        with pytest.raises(LineError, match="a line has 20 m to 50 km"):
            line_of_path(a_path(a_straight(length_m, step_m)))
    with pytest.raises(LineError, match="different ways"):
        build_line([a_path(a_straight(200.0, 7.0)), a_path(a_straight(200.0, 7.0, 40.0), "the other")])


def a_race_with_a_respawn():
    """Along +z through a checkpoint at z = 80, astray to the right from z = 120 on, back to its middle, on to 200."""
    way_m = a_straight(120.0, 8.0, beside_m=5.0)
    astray_m = way_m[-1] + np.arange(1, 8)[:, None] * (8.0, 0.0, 0.0)
    back_m = a_straight(200.0, 8.0)[10:]
    position_m = np.concatenate((way_m, astray_m, back_m))
    speed_m_s = np.full(len(position_m), 80.0)
    speed_m_s[len(way_m) + len(astray_m)] = 0.0
    return position_m, speed_m_s


def test_what_was_driven_between_a_checkpoint_and_a_respawn_is_cut_out_and_other_jumps_are_refused():
    position_m, speed_m_s = a_race_with_a_respawn()
    path = path_of_ghost(a_ghost(position_m, speed_m_s, n_respawns=1), "a race")
    assert np.abs(path.position_m[:, 0] - 16.0).max() <= 5.0
    assert (np.diff(path.position_m[:, 2]) > 0.0).all()
    assert "respawn at 2.2 s" in path.notes[0]
    line = build_line([path])
    assert not check_line(line.points_m).problems
    with pytest.raises(DrivenPathError, match="more often than the driver respawned"):
        path_of_ghost(a_ghost(position_m, speed_m_s), "a race")
    position_m[len(position_m) - 16 :, 0] += 300.0
    with pytest.raises(DrivenPathError, match="use a race without respawns"):
        path_of_ghost(a_ghost(position_m, speed_m_s, n_respawns=1), "a race")
    with pytest.raises(DrivenPathError, match="no samples"):
        path_of_ghost(Ghost("driver", 1000, (), 0, None, (), ""), "a race")


def test_the_line_of_a_real_replay_passes_its_checks_and_the_checkpoints_in_order(replays):
    replay = replays[0]
    challenge = replay.challenge
    path = path_of_ghost(replay.best, "B13")
    line = build_line([path], challenge)
    report = check_line(line.points_m, challenge, path.checkpoint_m)
    assert not report.problems
    assert [finding.verdict for finding in report.findings if finding.check == "order"] == [Verdict.FINE]
    centres = [(368, 624), (592, 656), (1008, 496), (624, 560), (368, 432)]
    assert [tuple(passage.gate.floor_center_m[[0, 2]]) for passage in report.passages] == centres
    assert max(passage.plane_distance_m for passage in report.passages) < 0.3
    # At its own checkpoint times the car is some 3 m before the planes, since its nose counts.
    for place_m, passage in zip(path.checkpoint_m, report.passages[1:-1], strict=True):
        assert np.linalg.norm(place_m - passage.point_m) < 4.5


def test_a_real_line_comes_back_from_8_m_samples(hock):
    """Its points are rounded to 0.1 m; landings of jumps are the sharpest bends, and the furthest away."""
    challenge, real_m = hock
    samples_m = np.concatenate((real_m[:-1:16], real_m[-1:]))
    line = line_of_path(a_path(samples_m))
    away_m = np.concatenate(
        [
            distance_to_curve_m(line.points_m[k : k + 400], real_m[max(0, k - 100) : k + 500])
            for k in range(0, len(line.points_m), 400)
        ]
    )
    assert np.median(away_m) < 0.05
    assert np.percentile(away_m, 99) < 0.13
    assert away_m.max() < 0.3
    assert len(gate_passages(line.points_m, challenge)) >= 13
