"""Every fault of a line is found, and lines without one have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.gbx.challenge import Block, Challenge, MedalTimes, read_challenge
from trackmania_rl.track.line_building import arc_length, directions, resample
from trackmania_rl.track.line_checks import Verdict, _near_pairs, check_line, gate_passages

FloatArray = npt.NDArray[np.float64]
START, CHECKPOINT, FINISH = "StadiumRoadMainStartLine", "StadiumRoadMainCheckpoint", "StadiumRoadMainFinishLine"


def a_map(*gates: tuple[str, tuple[int, int, int], int], environment: str = "Stadium", n_laps: int = 1) -> Challenge:
    """A map with gates (name, cell, quarter turns)."""
    blocks = tuple(Block(name, cell, turns, 0) for name, cell, turns in gates)
    no_times = MedalTimes(None, None, None, None)
    return Challenge("uid", "map", "a", environment, "Day", (32, 32, 32), n_laps, no_times, blocks)


def through(*corners: tuple[float, float, float]) -> FloatArray:
    """A line of straight pieces from corner to corner."""
    return resample(np.array(corners, dtype=np.float64), 0.5)


STRAIGHT_MAP = a_map((START, (0, 1, 0), 0), (CHECKPOINT, (0, 1, 3), 0), (FINISH, (0, 1, 6), 0))
STRAIGHT = through((16, 9, 11), (16, 9, 209))


def verdict(line_m: FloatArray, challenge: Challenge | None, check: str) -> Verdict:
    return next(finding.verdict for finding in check_line(line_m, challenge).findings if finding.check == check)


def test_a_good_line_is_fine_in_every_way() -> None:
    report = check_line(STRAIGHT, STRAIGHT_MAP)
    assert {finding.verdict for finding in report.findings} == {Verdict.FINE}
    assert report.length_m == pytest.approx(198.0)
    assert [round(passage.station_m) for passage in report.passages] == [5, 101, 197]
    assert [passage.beside_m for passage in report.passages] == pytest.approx([0.0] * 3)


@pytest.mark.parametrize(("turns", "beside_m"), [(0, -4.0), (1, 0.0), (2, 4.0)])
def test_passages_know_their_side(turns: int, beside_m: float) -> None:
    """A block that looks along +z has +x, where the line is, on its left."""
    challenge = a_map((CHECKPOINT, (0, 1, 0), turns))
    line_m = through((20, 9, 0), (20, 9, 40)) if turns != 1 else through((40, 9, 16), (0, 9, 16))
    assert [passage.beside_m for passage in gate_passages(line_m, challenge)] == pytest.approx([beside_m])


def test_numbers_that_are_none_are_a_problem() -> None:
    line_m = STRAIGHT.copy()
    line_m[7, 1] = np.nan
    report = check_line(line_m, STRAIGHT_MAP)
    assert [finding.check for finding in report.problems] == ["numbers"]


def test_a_jump_is_a_problem() -> None:
    line_m = np.concatenate((STRAIGHT[:100], STRAIGHT[120:]))  # 10.5 m
    assert verdict(line_m, None, "spacing") is Verdict.PROBLEM


@pytest.mark.parametrize("end", [101, 103])
def test_uneven_spacing_is_a_warning(end: int) -> None:
    line_m = np.concatenate((STRAIGHT[:100], STRAIGHT[end:]))  # a step of 1 m is loaded, one of 2 m is resampled
    assert verdict(line_m, None, "spacing") is Verdict.WARNING


def test_a_line_that_is_too_short_is_a_problem() -> None:
    assert verdict(through((0, 9, 0), (0, 9, 15)), None, "length") is Verdict.PROBLEM


def test_a_sharp_bend_is_a_warning() -> None:
    assert verdict(through((0, 9, 0), (0, 9, 50), (50, 9, 50)), None, "bends") is Verdict.WARNING


def test_a_line_that_goes_back_over_itself_is_a_problem() -> None:
    line_m = through((0, 9, 0), (0, 9, 60), (1, 9, 30), (2, 9, 90))
    assert verdict(line_m, None, "turning back") is Verdict.PROBLEM


def test_a_stretch_that_is_driven_twice_is_a_problem_where_there_are_no_laps() -> None:
    line_m = through((0, 9, 0), (0, 9, 80), (60, 9, 80), (60, 9, 0), (1, 9, 0), (1, 9, 80))
    assert verdict(line_m, None, "repetition") is Verdict.WARNING
    assert verdict(line_m, a_map((START, (0, 1, 0), 0)), "repetition") is Verdict.PROBLEM
    assert verdict(line_m, a_map((START, (0, 1, 0), 0), n_laps=2), "repetition") is Verdict.FINE
    circuit = a_map(("StadiumRoadMainStartFinishLine", (0, 1, 0), 0))
    assert verdict(line_m, circuit, "repetition") is Verdict.WARNING


def test_a_bridge_over_the_own_road_is_fine() -> None:
    line_m = through((0, 9, 0), (0, 9, 80), (60, 13, 80), (60, 17, 40), (-60, 17, 40))
    assert verdict(line_m, None, "repetition") is Verdict.FINE


@pytest.mark.parametrize("same_direction", [True, False])
def test_near_pairs_are_those_of_a_naive_search(same_direction: bool) -> None:
    generator = np.random.default_rng(7)
    corners = np.cumsum(generator.normal(size=(11, 3)) * (20, 0.5, 20), axis=0)
    line_m = resample(corners, 0.5)
    stations_m, points_m, direction = arc_length(line_m)[::2], line_m[::2], directions(line_m)[::2]
    naive = [
        (i, j)
        for j in range(len(points_m))
        for i in range(j)
        if 9.0 < stations_m[j] - stations_m[i] < 70.0
        and np.linalg.norm(points_m[j] - points_m[i]) < 5.0
        and (direction[i] @ direction[j] > 0.7 if same_direction else direction[i] @ direction[j] < -0.7)
    ]
    found = _near_pairs(line_m, 5.0, 9.0, 70.0, same_direction)
    if not naive:
        assert found is None
        return
    assert found is not None
    assert found[:2] == (stations_m[naive[0][0]], stations_m[naive[0][1]])
    assert found[2] == pytest.approx(len({j for _, j in naive}), rel=0.02)


def test_a_checkpoint_that_is_not_passed_is_a_problem() -> None:
    elsewhere = a_map(*(((START, (0, 1, 0), 0), (CHECKPOINT, (2, 1, 3), 0), (FINISH, (0, 1, 6), 0))))
    assert verdict(STRAIGHT, elsewhere, "checkpoints") is Verdict.PROBLEM
    under_a_bridge = a_map((START, (0, 1, 0), 0), (CHECKPOINT, (0, 4, 3), 0), (FINISH, (0, 1, 6), 0))
    assert verdict(STRAIGHT, under_a_bridge, "checkpoints") is Verdict.PROBLEM


def test_a_line_that_ends_before_the_finish_is_a_problem() -> None:
    assert verdict(STRAIGHT[:-30], STRAIGHT_MAP, "finish") is Verdict.PROBLEM
    assert verdict(STRAIGHT[:-14], STRAIGHT_MAP, "finish") is Verdict.FINE


def test_a_line_that_begins_elsewhere_is_a_problem() -> None:
    assert verdict(STRAIGHT[60:], STRAIGHT_MAP, "start") is Verdict.PROBLEM


def test_gates_in_a_wrong_order_are_a_warning() -> None:
    assert verdict(STRAIGHT[::-1], STRAIGHT_MAP, "order") is Verdict.WARNING


def test_checkpoint_times_elsewhere_than_the_checkpoints_are_a_warning() -> None:
    right = check_line(STRAIGHT, STRAIGHT_MAP, np.array([[16.0, 9.0, 108.0]]))
    wrong = check_line(STRAIGHT, STRAIGHT_MAP, np.array([[16.0, 9.0, 170.0]]))
    assert not right.warnings
    assert [finding.check for finding in wrong.warnings] == ["order"]


@pytest.mark.parametrize(
    ("beside_m", "expected"), [(5.0, Verdict.FINE), (11.0, Verdict.WARNING), (14.0, Verdict.WARNING)]
)
def test_a_line_far_beside_a_checkpoint_is_a_warning(beside_m: float, expected: Verdict) -> None:
    assert verdict(STRAIGHT + np.array((beside_m, 0.0, 0.0)), STRAIGHT_MAP, "distances") is expected


def test_another_environment_is_the_only_problem_that_is_told() -> None:
    desert = a_map((START, (5, 1, 5), 0), environment="Speed")
    report = check_line(STRAIGHT, desert)
    assert [finding.check for finding in report.problems] == ["environment"]
    assert "another car" in report.problems[0].text


def test_shipped_lines_have_no_problem(repository_root: Path) -> None:
    for file in sorted((repository_root / "maps").glob("*_0.5m.npy")):
        assert not check_line(np.load(file).astype(np.float64)).problems, file.name


def test_the_real_line_of_a_real_map_is_fine_in_every_way(shared_data: Path) -> None:
    line_m = np.load(shared_data / "reference_lines" / "ESL-Hockolicious_0.5m_cl2.npy")
    report = check_line(line_m, read_challenge(shared_data / "tracks" / "ESL-Hockolicious.Challenge.Gbx"))
    assert {finding.verdict for finding in report.findings} == {Verdict.FINE}
    assert len({passage.gate.cell for passage in report.passages}) == 14  # 13 checkpoints and the start


def test_a_line_on_another_map_has_problems(shared_data: Path) -> None:
    line_m = np.load(shared_data / "reference_lines" / "ESL-Hockolicious_0.5m_cl2.npy")
    report = check_line(line_m, read_challenge(shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx"))
    assert {finding.check for finding in report.problems} == {"start", "checkpoints", "finish"}


def test_the_lap_lines_times_are_no_checkpoints_elsewhere() -> None:
    lap_line = "StadiumRoadMainStartFinishLine"
    challenge = a_map((lap_line, (0, 1, 0), 0), (CHECKPOINT, (0, 1, 6), 0), n_laps=2)
    there, back = through((16, 9, 11), (16, 9, 300), (80, 9, 300)), through((80, 9, 300), (80, 9, -60), (16, 9, -60))
    lap = np.concatenate((there, back[1:], through((16, 9, -60), (16, 9, 10.5))[1:]))
    line_m = resample(np.concatenate((lap, lap)), 0.5)
    timed = np.array([[16.0, 9.0, 208.0], [16.0, 9.0, 16.0], [16.0, 9.0, 208.0]])  # checkpoint, lap line, checkpoint
    finding = next(finding for finding in check_line(line_m, challenge, timed).findings if finding.check == "order")
    assert finding.verdict is Verdict.FINE, finding.text


def test_any_of_several_finishes_may_be_reached() -> None:
    aside = (FINISH, (9, 1, 6), 1)  # looks across; the line ends near its plane, far beside it
    challenge = a_map((START, (0, 1, 0), 0), (CHECKPOINT, (0, 1, 3), 0), (FINISH, (0, 1, 6), 0), aside)
    assert verdict(STRAIGHT, challenge, "finish") is Verdict.FINE
