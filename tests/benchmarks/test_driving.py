"""The driving benchmark: scores of races, comparisons of variants, its runs, and its commands."""

import json
import math
import signal
import statistics
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from benchmarks.driving import run as run_module
from benchmarks.driving.runs import Run, complete_notes, plain_settings
from benchmarks.driving.score import (
    Difference,
    MeasuredRun,
    RunFigures,
    Yardstick,
    compare,
    run_figures,
    scores_at,
)
from benchmarks.driving.variants import Variant
from tests.keep_games_command import wait_until
from trackmania_rl.errors import UserError
from trackmania_rl.processes import is_running
from trackmania_rl.runs.log import iterate_races

RECORD_MS = 20_000


@pytest.fixture
def yardstick():
    return Yardstick(
        length_m=700.0,
        scripted_careful_ms=40_000,
        scripted_fast_ms=None,
        scripted_tuned_ms=25_000,
        record_ms=RECORD_MS,
    )


def race(wall_s, frames, time_ms=None, is_explo=False, track="valley"):
    return {
        "wall_s": wall_s,
        "frames_total": frames,
        "map": track,
        "is_explo": is_explo,
        "race_finished": time_ms is not None,
        "race_time_ms": time_ms or 3_000,
    }


@pytest.mark.parametrize("axis", ["wall_s", "frames_total"])
def test_scores_at_moments_are_medians_over_the_last_ten_races(axis):
    times_ms = [None, 50_000, None, *range(40_000, 22_000, -1_000), None, 21_000]
    greedy = [race(7.0 * i, 50 * i, time_ms) for i, time_ms in enumerate(times_ms, start=1)]
    moments = [0.0, 3.0, 7.0, 14.0, 50.0, 99.0, 500.0, 1_050.0, 10_000.0]
    expected = []
    for moment in moments:
        scores = [RECORD_MS / r["race_time_ms"] if r["race_finished"] else 0.0 for r in greedy if r[axis] <= moment]
        expected.append(statistics.median(scores[-10:]) if scores else 0.0)
    assert scores_at(greedy, RECORD_MS, axis, moments) == expected
    assert expected[0] == 0.0
    assert expected[-1] > 0.7


def test_figures_of_a_run(yardstick):
    races = [race(2.0, 40, 15_000, is_explo=True)]  # exploring, however quickly, counts for nothing
    races += [race(3.0, 60, 15_000, track="kart")]  # nor does another track
    races += [race(5.0, 100), race(10.0, 200, 30_000), race(15.0, 300)]
    races += [race(15.0 + 5 * i, 300 + 100 * i, 30_000 - 1_000 * i) for i in range(1, 12)]  # 29 s to 19 s
    races += [race(90.0, 1_500, is_explo=True), race(121.0, 2_000, 10_000)]  # the last one after two minutes
    figures = run_figures(races, "valley", yardstick, minutes=2)
    assert (figures.first_finish_s, figures.first_finish_frames) == (10.0, 200)
    # Ten races with one unfinished at most: the 2nd to the 11th.
    assert (figures.regular_finish_s, figures.regular_finish_frames) == (55.0, 1_100)
    # Medians of 26.5 s, 25.5 s, 24.5 s: the last one of races 4 to 13, below the scripted driver's 25 s.
    assert (figures.beats_scripted_s, figures.beats_scripted_frames) == (65.0, 1_300)
    assert figures.score_by_minute == (
        statistics.median([0.0, *(RECORD_MS / time_ms for time_ms in range(29_000, 20_000, -1_000))]),
        statistics.median(RECORD_MS / time_ms for time_ms in range(28_000, 18_000, -1_000)),
    )
    assert (figures.best_ms, figures.n_greedy, figures.frames) == (19_000, 14, 1_500)
    assert figures.last_minute_score == statistics.median([RECORD_MS / 20_000, RECORD_MS / 19_000])  # at 65 and 70 s
    assert figures.mean_score == statistics.fmean(figures.score_by_minute)


def measured_run(figures, variant="base", track="valley", seed=3):
    return MeasuredRun({"variant": variant, "track": track, "seed": seed}, [], figures)


def result(variant, track, seed, last_minute, mean=0.5, minutes=2, frames=500):
    never = dict.fromkeys(RunFigures.__annotations__, math.inf)
    figures = never | {"minutes": minutes, "frames": frames, "last_minute_score": last_minute, "mean_score": mean}
    return measured_run(RunFigures(**figures), variant, track, seed)


def test_differences_are_taken_between_runs_of_the_same_track_and_seed():
    runs = [
        result("base", "valley", 3, 0.5, 0.4),
        result("other", "ring", 4, 0.8, 0.7, frames=900),
        result("other", "valley", 3, 0.7, 0.4, frames=700),
        result("other", "kart", 3, 0.1),  # the base has no such run
        result("other", "ring", 3, 0.2, minutes=5),  # of another length
        result("base", "ring", 3, 0.9, 0.8),
        result("base", "ring", 4, 0.7, 0.6),
    ]
    first, second = compare(runs, "base")
    assert (first.variant, first.n_pairs, first.frames) == ("base", 3, 500)
    assert first.last_minute_difference == first.mean_difference == Difference(0.0, 0.0, (0.0, 0.0, 0.0))
    assert (first.last_minute_score, first.mean_score) == (pytest.approx(0.7), pytest.approx(0.6))
    assert (second.variant, second.n_pairs, second.frames) == ("other", 2, 800)
    assert (second.last_minute_score, second.mean_score) == (pytest.approx(0.75), pytest.approx(0.55))
    assert second.last_minute_difference.mean == pytest.approx(0.15)
    assert second.last_minute_difference.standard_error == pytest.approx(statistics.stdev([0.1, 0.2]) / math.sqrt(2))
    assert second.mean_difference.mean == pytest.approx(0.05)
    assert [one.variant for one in compare(runs, "other")] == ["other", "base"]


@pytest.fixture
def config_file(repository_root):
    return repository_root / "config_files" / "config.py"


@pytest.fixture
def yardsticks():
    ours = Yardstick(
        length_m=700.0, scripted_careful_ms=40_000, scripted_fast_ms=30_000, scripted_tuned_ms=25_000, record_ms=20_000
    )
    return {"valley": ours, "ring": ours.model_copy(update={"record_ms": 10_000, "scripted_careful_ms": None})}


@pytest.fixture
def run(config_file, repository_root, tmp_path):
    return Run(Variant("base", config_file, ()), repository_root / "maps" / "ring.toml", 7, 3, tmp_path, 20_016)


def write_note(run, **changes):
    note = {
        "variant": run.variant.name,
        "track": run.track.stem,
        "seed": run.seed,
        "minutes": run.minutes,
        "name": run.name,
        "is_complete": True,
        "started": f"2026-01-01T00:00:{run.seed:02d}",
        "commit": "0a1b2c",
        "settings": plain_settings(run.settings()),
    }
    run.note_file.parent.mkdir(exist_ok=True)
    run.note_file.write_text(json.dumps(note | changes))
    return note | changes


def test_only_a_run_to_its_end_with_the_same_settings_is_complete(run):
    assert not run.is_complete()
    write_note(run, is_complete=False)
    assert not run.is_complete()
    write_note(run)
    assert run.is_complete()
    assert [note["seed"] for note in complete_notes(run.output)] == [7]
    assert replace(run, minutes=2).is_complete()  # its first minutes are looked at
    with pytest.raises(UserError, match="a run of 3 minutes, 5 are asked for"):
        replace(run, minutes=5).is_complete()
    with pytest.raises(UserError, match="batch_size = 64, now it is 32"):
        replace(run, variant=replace(run.variant, overrides=("batch_size=32",))).is_complete()


def command(repository_root, *words):
    return [sys.executable, str(repository_root / "benchmarks" / "driving" / "run.py"), *map(str, words)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tracks", "nowhere"], "nowhere: no such track file"),
        (["--tracks", "kart"], "has no times for kart"),
        (["--set", "batch_sise=3"], "did you mean batch_size?"),
        (["--variant", "a:", "--variant", "a: use_ddqn=True"], "each needs a name of its own"),
        (["--variant", "a:", "--against", "b"], "--against b: there is no such variant, only a"),
        (["--only-report"], "holds no complete run"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(words, message, tmp_path, yardsticks, monkeypatch, capsys):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    file = tmp_path / "yardsticks.json"
    file.write_text(json.dumps({name: yardstick.model_dump() for name, yardstick in yardsticks.items()}))
    monkeypatch.setattr("sys.argv", ["run.py", "--output", str(tmp_path / "out"), "--yardsticks", str(file), *words])
    assert run_module.main() == 78
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_trains_reports_and_goes_on(repository_root, tmp_path, yardsticks):
    file = tmp_path / "yardsticks.json"
    file.write_text(json.dumps({name: yardstick.model_dump() for name, yardstick in yardsticks.items()}))
    words = ["--tracks", "valley", "--seeds", 5, "--minutes", 1]
    words += ["--yardsticks", file]
    words += ["--output", tmp_path / "out", "--set", "games_per_collector=5", "--variant", "base: batch_size=32"]

    with subprocess.Popen(command(repository_root, *words)) as interrupted:
        wait_until(lambda: psutil.Process(interrupted.pid).children(), within_s=120)
        training = psutil.Process(interrupted.pid).children()
        notes = tmp_path / "out" / "runs"
        wait_until((tmp_path / "out" / "save" / "base_valley_seed5" / "run.sqlite").is_file, within_s=120)
        interrupted.send_signal(signal.SIGTERM)  # as Ctrl-C, and never ignored
    assert interrupted.returncode == 130
    assert not any(map(is_running, training))
    assert not json.loads((notes / "base_valley_seed5.json").read_text())["is_complete"]

    subprocess.run(command(repository_root, *words), check=True)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (run,) = results["runs"]
    lines = list(iterate_races(tmp_path / "out" / "save" / "base_valley_seed5" / "run.sqlite"))
    races = [race for race in lines if race["wall_s"] <= 60]
    assert run["figures"]["n_greedy"] == sum(not race["is_explo"] for race in races)  # none, on a machine that is busy
    assert run["figures"]["frames"] == max((race["frames_total"] for race in races), default=0)
    assert lines
    again = subprocess.run(command(repository_root, *words), check=True, capture_output=True, text=True)
    assert "1 of them complete already" in again.stdout
