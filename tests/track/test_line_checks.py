"""Every fault of a line is found, and lines without one have none."""

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.track.line_building import resample
from trackmania_rl.track.line_checks import Verdict, check_line

from .conftest import make_challenge

START, CHECKPOINT, FINISH = "StadiumRoadMainStartLine", "StadiumRoadMainCheckpoint", "StadiumRoadMainFinishLine"


def a_map(*gates, **options):
    """A map with gates (name, cell, quarter turns)."""
    return make_challenge(*(Block(name, cell, turns, 0) for name, cell, turns in gates), **options)


def through(*corners):
    """A line of straight pieces from corner to corner."""
    return resample(np.array(corners, dtype=np.float64), 0.5)


STRAIGHT_MAP = a_map((START, (0, 1, 0), 0), (CHECKPOINT, (0, 1, 3), 0), (FINISH, (0, 1, 6), 0))
STRAIGHT = through((16, 9, 11), (16, 9, 209))


def verdict(line_m, challenge, check):
    return next(finding.verdict for finding in check_line(line_m, challenge).findings if finding.check == check)


def test_a_good_line_is_fine_in_every_way():
    report = check_line(STRAIGHT, STRAIGHT_MAP)
    assert {finding.verdict for finding in report.findings} == {Verdict.FINE}
    assert report.length_m == pytest.approx(198.0)
    assert [round(passage.station_m) for passage in report.passages] == [5, 101, 197]
    assert [passage.beside_m for passage in report.passages] == pytest.approx([0.0] * 3)


TWICE = through((0, 9, 0), (0, 9, 80), (60, 9, 80), (60, 9, 0), (1, 9, 0), (1, 9, 80))


@pytest.mark.parametrize(
    ("line_m", "check", "expected"),
    [
        (np.where(np.arange(len(STRAIGHT))[:, None] == 7, np.nan, STRAIGHT), "numbers", Verdict.PROBLEM),
        (np.delete(STRAIGHT, range(100, 120), axis=0), "spacing", Verdict.PROBLEM),  # 10.5 m
        (1.5 * STRAIGHT, "spacing", Verdict.WARNING),
        (through((0, 9, 0), (0, 9, 15)), "length", Verdict.PROBLEM),
        (through((0, 9, 0), (0, 9, 50), (50, 9, 50)), "bends", Verdict.WARNING),
        (through((0, 9, 0), (0, 9, 60), (1, 9, 30), (2, 9, 90)), "turning back", Verdict.PROBLEM),
        (TWICE, "repetition", Verdict.WARNING),
        (through((0, 9, 0), (0, 9, 80), (60, 13, 80), (60, 17, 40), (-60, 17, 40)), "repetition", Verdict.FINE),
    ],
)
def test_each_fault_of_a_line_is_found(line_m, check, expected):
    assert verdict(line_m, None, check) is expected


MAP_OF_LAPS = a_map((START, (0, 1, 0), 0), n_laps=2)
BESIDE = a_map((START, (0, 1, 0), 0), (CHECKPOINT, (2, 1, 3), 0), (FINISH, (0, 1, 6), 0))
# The second finish looks across; the line ends near its plane, far beside it.
TWO_FINISHES = a_map((START, (0, 1, 0), 0), (CHECKPOINT, (0, 1, 3), 0), (FINISH, (0, 1, 6), 0), (FINISH, (9, 1, 6), 1))


@pytest.mark.parametrize(
    ("line_m", "challenge", "check", "expected"),
    [
        (TWICE, a_map((START, (0, 1, 0), 0)), "repetition", Verdict.PROBLEM),
        (TWICE, MAP_OF_LAPS, "repetition", Verdict.FINE),
        (STRAIGHT, BESIDE, "checkpoints", Verdict.PROBLEM),
        (STRAIGHT[:-30], STRAIGHT_MAP, "finish", Verdict.WARNING),
        (STRAIGHT[:-80], STRAIGHT_MAP, "finish", Verdict.PROBLEM),
        (STRAIGHT, TWO_FINISHES, "finish", Verdict.FINE),
        (STRAIGHT[60:], STRAIGHT_MAP, "start", Verdict.PROBLEM),
        (STRAIGHT[::-1], STRAIGHT_MAP, "order", Verdict.WARNING),
        (STRAIGHT + np.array((11.0, 0.0, 0.0)), STRAIGHT_MAP, "distances", Verdict.WARNING),
        (STRAIGHT + np.array((14.0, 0.0, 0.0)), STRAIGHT_MAP, "distances", Verdict.WARNING),
        (STRAIGHT, a_map((START, (5, 1, 5), 0), environment="Speed"), "environment", Verdict.PROBLEM),
    ],
)
def test_each_fault_of_a_line_on_its_map_is_found(line_m, challenge, check, expected):
    assert verdict(line_m, challenge, check) is expected


def test_checkpoint_times_elsewhere_than_the_checkpoints_are_a_warning():
    for z_m, wrong in ((108.0, []), (170.0, ["order"])):
        report = check_line(STRAIGHT, STRAIGHT_MAP, np.array([[16.0, 9.0, z_m]]))
        assert [finding.check for finding in report.warnings] == wrong


def test_shipped_lines_have_no_problem(repository_root):
    for file in sorted((repository_root / "maps").glob("*_0.5m.npy")):
        assert not check_line(np.load(file).astype(np.float64)).problems, file.name


def test_the_real_line_of_a_real_map_is_fine_in_every_way_and_has_problems_on_another_map(hock, replays):
    challenge, line_m = hock
    report = check_line(line_m, challenge)
    assert {finding.verdict for finding in report.findings} == {Verdict.FINE}
    assert len({passage.gate.cell for passage in report.passages}) == 14  # 13 checkpoints and the start
    elsewhere = check_line(line_m, replays[0].challenge)
    assert {finding.check for finding in elsewhere.problems} == {"start", "checkpoints", "finish"}
