"""A run's races in a few figures."""

from tests.run_log import write_races
from trackmania_rl.telemetry.learning_summary import Driving, summarize_learning


def _write(file, *sessions):
    """Races as (wall_s, is_explo, finish time in ms or None), 100 frames each."""
    races = [(number, *race) for number, of_session in enumerate(sessions, 1) for race in of_session]
    lines = [
        {
            "session": session,
            "wall_s": wall_s,
            "frames_total": 100 * (number + 1),
            "map": "valley",
            "is_explo": is_explo,
            "race_finished": time_ms is not None,
            "race_time_ms": time_ms or 2000,
        }
        for number, (session, wall_s, is_explo, time_ms) in enumerate(races)
    ]
    file.unlink(missing_ok=True)
    write_races(file, lines)
    return file


def test_figures_are_of_greedy_races_only(tmp_path):
    greedy = [(10.0 * i, False, None if i in (1, 5) else 30_000 - 100 * i) for i in range(1, 16)]
    summary = summarize_learning(_write(tmp_path / "run.sqlite", [(1.0, True, 20_000), *greedy]), [45, 150, 600])[
        "valley"
    ]
    assert summary.first_finish == (20.0, 300)
    assert summary.regular_finish == (110.0, 1200)
    assert summary.driving == {45: Driving(4, 3, 29.75), 150: Driving(10, 10, 28.95)}
    assert summary.best_time_s == 28.5
    unfinished = summarize_learning(_write(tmp_path / "run.sqlite", [(5.0, False, None)] * 3), [5])["valley"]
    assert unfinished.first_finish is unfinished.regular_finish is unfinished.best_time_s is None
    assert unfinished.driving == {5: Driving(3, 0, None)}


def test_sessions_seconds_add_up(tmp_path):
    first = [(10.0 * i, False, 30_000) for i in range(1, 13)]  # until 120 s
    second = [(10.0 * i, False, 20_000) for i in range(1, 13)]
    summary = summarize_learning(_write(tmp_path / "run.sqlite", first, second), [60, 120, 240, 600])["valley"]
    assert summary.first_finish.training_s == 10.0
    assert {at: driving.median_time_s for at, driving in summary.driving.items()} == {60: 30.0, 120: 30.0, 240: 20.0}
