"""Curves of races and figures: as the files have them, bounded, and in step with a resumed run."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from tests.dashboard.conftest import race_line
from trackmania_rl.dashboard import figure_curves, race_curves, tails
from trackmania_rl.dashboard.figure_curves import FigureCurves
from trackmania_rl.dashboard.race_curves import MOST_POINTS, Curve, RaceCurves
from trackmania_rl.dashboard.run_on_disk import RunOnDisk
from trackmania_rl.telemetry.race_record import CommandClock, RaceLog, RaceRecord


def test_a_curve_is_bounded_and_keeps_what_was_best() -> None:
    curve = Curve()
    best = list(range(0, 10 * MOST_POINTS, 997))
    for x in range(10 * MOST_POINTS):
        curve.add([x, -x if x in best else x], is_record=x in best)
    xs = [point[0] for point in curve.points]
    assert MOST_POINTS / 4 < len(xs) <= MOST_POINTS
    assert xs == sorted(xs)
    assert set(best) <= set(xs)
    assert curve.n_added == 10 * MOST_POINTS


def test_a_curve_of_nothing_but_records_is_bounded() -> None:
    curve = Curve()
    for x in range(5 * MOST_POINTS):
        curve.add([x, -x], is_record=True)
    assert len(curve.points) <= MOST_POINTS


def test_races_become_curves_and_a_table(run: RunOnDisk) -> None:
    curves = RaceCurves(run)
    assert curves.read() is None, "all is new"
    told = curves.snapshot()["curves"]
    assert sorted(told) == ["rates", "valley/evaluated", "valley/explored"]
    assert told["valley/evaluated"][0] == [800, 29.98, 976.5, 1.0]
    assert told["rates"] == [[400 * n, pytest.approx(2 * n / 3600, abs=1e-5), 200.0] for n in (4, 7, 10, 13, 16, 19)]
    explored, evaluated = curves.table()
    assert (explored["kind"], explored["races"], explored["best_ms"]) == ("explored", 10, 29_810)
    assert (evaluated["kind"], evaluated["recent"], evaluated["n_recent"]) == ("evaluated", 10, 10)
    assert curves.splits()["valley"] == {
        "best_ms": [7000, 12_000, 20_000, 29_800],
        "recent_ms": [7000, 12_000, 20_000, 29_890],
    }


def test_new_races_are_added_and_a_second_session_goes_on(run: RunOnDisk) -> None:
    curves = RaceCurves(run)
    curves.read()
    assert curves.training_s == 40.0
    with run.races.open("a") as file:
        file.write(race_line(21, session=2, wall_s=3.0, race_finished=False, checkpoint_times_ms=[7000]))
        file.write("no JSON\n[1, 2]\n")
    assert curves.read() == [("valley/evaluated", [8400, None, 976.5, 0.9])]
    assert curves.training_s == 43.0
    assert curves.n_unreadable == 2
    assert curves.read() == []


def test_an_own_environment_has_returns_and_lengths(run: RunOnDisk) -> None:
    run.races.unlink()
    log = RaceLog(run.races, CommandClock(), session=1)
    for number, n_actions in enumerate((10, 30), start=1):
        race = RaceRecord("cartpole", True, 0, False, 50 * n_actions, n_actions / 4, 0, n_actions, "terminated")
        log.write(dataclasses.replace(race, progress_unit="points"), 40 * number)
    log.close()
    curves = RaceCurves(run)
    curves.read()
    (row,) = curves.table()
    assert [row[name] for name in ("unit", "return", "furthest", "last", "length")] == ["points", 5.0, 7.5, 7.5, 20.0]


def test_demonstrations_are_no_results(run: RunOnDisk) -> None:
    run.races.write_text(race_line(1, is_demonstration=True, map="shown"))
    curves = RaceCurves(run)
    curves.read()
    assert curves.table() == []
    assert curves.frames_total == 400


def test_a_log_of_days_is_sampled_with_its_counts_and_its_end(run: RunOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "WHOLE_FILE_BYTES", 128_000)
    run.races.write_text("".join(race_line(number) for number in range(1, 5001)))
    curves = RaceCurves(run)
    curves.read()
    assert curves.frames_total == 400 * 5000
    assert curves.n_races == pytest.approx(5000, rel=0.25)
    assert curves.rates.points[-1][2] == pytest.approx(200.0, rel=0.01)
    with run.races.open("a") as file:
        file.write(race_line(5001))
    n_before = curves.n_races
    curves.read()
    assert curves.n_races == n_before + 1


def test_many_maps_are_bounded(run: RunOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_curves, "MOST_MAPS", 3)
    run.races.write_text("".join(race_line(number, map=f"map {number}") for number in range(1, 30)))
    curves = RaceCurves(run)
    curves.read()
    assert len(curves.races) == 6


def _write_figures(folder: Path, steps: range, value: float = 1.0, purge_step: int | None = None) -> None:
    writer = SummaryWriter(str(folder), purge_step=purge_step, filename_suffix=f".{steps.start}")
    for step in steps:
        writer.add_scalar("learner/loss", value * step, step)
    writer.add_histogram("weights/layer", np.arange(10_000.0), steps.start)
    writer.add_scalar("learner/nan", float("nan"), steps.start)
    writer.close()


def test_scalars_of_event_files_are_read_as_they_grow(run: RunOnDisk) -> None:
    figures = FigureCurves(run.event_files)
    assert figures.read() == ([], False)
    _write_figures(run.event_files, range(0, 10))
    points, more = figures.read()
    assert not more
    assert points == [("learner/loss", [step, step]) for step in range(10)]
    assert figures.read() == ([], False)
    _write_figures(run.event_files, range(5, 8), value=100.0, purge_step=5)
    figures.read()
    assert figures.curves["learner/loss"].points == [*([s, s] for s in range(5)), [5, 500], [6, 600], [7, 700]]
    assert "learner/nan" not in figures.curves


def test_a_large_event_file_is_read_piece_by_piece(run: RunOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_figures(run.event_files, range(0, 50))
    monkeypatch.setattr(figure_curves, "MOST_BYTES_AT_ONCE", 200)  # less than the histogram has
    figures = FigureCurves(run.event_files)
    n_readings, n_points = 0, -1
    while (n_new := sum(len(curve.points) for curve in figures.curves.values())) != n_points or n_readings < 100:
        n_points = n_new
        n_readings += 1
        figures.read()
    assert [point[0] for point in figures.curves["learner/loss"].points] == list(range(50))


def test_a_damaged_event_file_is_left_alone(run: RunOnDisk) -> None:
    run.event_files.mkdir(parents=True)
    (run.event_files / "events.out.tfevents.1.broken").write_bytes(b"\xff" * 5000)
    _write_figures(run.event_files, range(0, 3))
    figures = FigureCurves(run.event_files)
    figures.read()
    assert len(figures.curves["learner/loss"].points) == 3
