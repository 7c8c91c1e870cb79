"""Variants held against one of them: pairs of hand-made runs, and their file."""

import math
import statistics

import pytest


def run(variant, track, seed, last_minute, mean=0.5, minutes=2, frames=500):
    from benchmarks.driving.results import RunResult

    return RunResult(variant, track, seed, minutes, frames, last_minute, mean, "abc", "2026-01-01T00:00:00")


def test_differences_are_taken_between_runs_of_the_same_track_and_seed():
    from benchmarks.driving.comparison import Difference, compare

    runs = [
        run("base", "valley", 3, 0.5, 0.4),
        run("other", "ring", 4, 0.8, 0.7, frames=900),
        run("other", "valley", 3, 0.7, 0.4, frames=700),
        run("other", "kart", 3, 0.1),  # the base has no such run
        run("other", "ring", 3, 0.2, minutes=5),  # of another length
        run("base", "ring", 3, 0.9, 0.8),
        run("base", "ring", 4, 0.7, 0.6),
    ]
    first, second = compare([runs], "base")
    assert (first.variant, first.n_pairs, first.frames) == ("base", 3, 500)
    assert first.last_minute_difference == first.mean_difference == Difference(0.0, 0.0, (0.0, 0.0, 0.0))
    assert (first.last_minute_score, first.mean_score) == (pytest.approx(0.7), pytest.approx(0.6))
    assert (second.variant, second.n_pairs, second.frames) == ("other", 2, 800)
    assert (second.last_minute_score, second.mean_score) == (pytest.approx(0.75), pytest.approx(0.55))
    assert second.last_minute_difference.mean == pytest.approx(0.15)
    assert second.last_minute_difference.standard_error == pytest.approx(statistics.stdev([0.1, 0.2]) / math.sqrt(2))
    assert second.mean_difference.mean == pytest.approx(0.05)
    assert [one.variant for one in compare([runs], "other")] == ["other", "base"]


def test_runs_of_two_folders_make_no_pair():
    from benchmarks.driving.comparison import compare

    monday = [run("base", "valley", 3, 0.5), run("other", "valley", 3, 0.6)]
    tuesday = [run("base", "valley", 3, 0.9), run("other", "valley", 3, 0.8), run("late", "valley", 3, 0.7)]
    wednesday = [run("late", "valley", 3, 0.1)]
    _, other, late = compare([monday, tuesday, wednesday], "base")
    assert other.last_minute_difference.of_pairs == (pytest.approx(0.1), pytest.approx(-0.1))
    assert late.last_minute_difference.of_pairs == (pytest.approx(-0.2),)


def test_one_pair_has_no_standard_error_and_a_variant_without_pairs_no_line():
    from benchmarks.driving.comparison import compare
    from benchmarks.driving.report import comparison_table

    runs = [run("base", "valley", 3, 0.5, 0.4), run("other", "valley", 3, 0.25), run("alone", "valley", 4, 0.25)]
    comparisons = compare([runs], "base")
    assert [one.variant for one in comparisons] == ["base", "other"]
    assert comparison_table(comparisons) == [
        ["variant", "runs", "frames", "last minute", "less base", "mean", "less base"],
        ["base", "1", "500", "0.500", "", "0.400", ""],
        ["other", "1", "500", "0.250", "-0.250", "0.500", "+0.100"],
    ]


def test_the_table_has_standard_errors():
    from benchmarks.driving.comparison import compare
    from benchmarks.driving.report import comparison_table

    runs = [run("base", "valley", seed, 0.5) for seed in (3, 4, 5, 6)]
    runs += [run("other", "valley", seed, 0.6 if seed < 5 else 0.8) for seed in (3, 4, 5, 6)]
    assert comparison_table(compare([runs], "base"))[-1] == [
        *("other", "4", "500", "0.700", "+0.200 ± 0.058", "0.500", "+0.000 ± 0.000"),
    ]


def test_runs_are_read_as_they_were_written(tmp_path):
    from benchmarks.driving.results import read_results, write_results

    runs = [run("base", "valley", 3, 0.5, 0.25), run("other", "ring", 5, 0.125, frames=7)]
    write_results(tmp_path / "runs.csv", runs)
    assert read_results(tmp_path / "runs.csv") == runs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "holds no run"),
        (b"one,two\n3,4\n", "is no runs.csv of the driving benchmark: run 1: variant"),
        (
            b"variant,track,seed,minutes,frames,last_minute_score,mean_score,commit,started\n"
            b"base,ring,3,2,500,0.5,0.5,abc,2026\nbase,ring,3,2,many,0.5,0.5,abc,2026\n",
            "run 2: frames",
        ),
    ],
)
def test_a_damaged_file_of_runs_is_named(text, message, tmp_path):
    from benchmarks.driving.results import read_results
    from trackmania_rl.errors import UserError

    if text is not None:
        (tmp_path / "runs.csv").write_bytes(text)
    with pytest.raises(UserError, match=message) as caught:
        read_results(tmp_path / "runs.csv")
    assert str(tmp_path / "runs.csv") in str(caught.value)


@pytest.fixture
def compare_folders(monkeypatch, tmp_path):
    """The command, its output below tmp_path."""
    from benchmarks.driving.compare_folders import main

    def run_command(*words):
        monkeypatch.setattr("sys.argv", ["compare_folders.py", "--output", str(tmp_path / "both"), *map(str, words)])
        return main()

    return run_command


def test_folders_are_compared_by_a_command(compare_folders, tmp_path, capsys):
    from benchmarks.driving.results import write_results

    (tmp_path / "monday").mkdir()
    write_results(tmp_path / "monday" / "runs.csv", [run("base", "ring", 3, 0.5), run("other", "ring", 3, 0.6)])
    write_results(tmp_path / "tuesday.csv", [run("other", "ring", 3, 0.8), run("base", "ring", 3, 0.5)])
    assert compare_folders(tmp_path / "monday", tmp_path / "tuesday.csv") == 0
    table = (tmp_path / "both" / "table.md").read_text()
    assert "| other | 2 | 500 | 0.700 | +0.200 ± 0.100 |" in table
    assert (tmp_path / "both" / "table.rst").is_file()
    assert (tmp_path / "both" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert compare_folders(tmp_path / "monday", "--against", "other") == 0
    assert "| base | 1 | 500 | 0.500 | -0.100 |" in (tmp_path / "both" / "table.md").read_text()
    capsys.readouterr()

    assert compare_folders(tmp_path / "monday", "--against", "another") == 1
    assert "--against another: there is no such variant, only base, other" in capsys.readouterr().err
    write_results(tmp_path / "alone.csv", [run("base", "ring", 3, 0.5)])
    assert compare_folders(tmp_path / "alone.csv") == 1
    assert "no other variant has a run" in capsys.readouterr().err
    (tmp_path / "both" / "table.md").unlink()
    (tmp_path / "both" / "table.md").mkdir()
    assert compare_folders(tmp_path / "monday") == 1
    assert "cannot be written to" in capsys.readouterr().err
