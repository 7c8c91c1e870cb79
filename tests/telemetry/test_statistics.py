"""Counts, times and rates of a run, by map and over the map cycle."""

from types import SimpleNamespace

import pytest

from tests.telemetry.conftest import race_of, race_record
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.store import save_checkpoint
from trackmania_rl.settings import MapEntry
from trackmania_rl.telemetry.figures import cycle_figures, trained_and_blind
from trackmania_rl.telemetry.statistics import RaceHistory, Rates, TrainingStatistics


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def race(time_ms=None, map_name="valley", **changes):
    return race_record(time_ms, map_name=map_name, **({"n_actions": 10} | changes))


def observe(figures, updates=0, learner_waited_s=0.0):
    figures.agent = SimpleNamespace(updates=updates)
    figures.observe(learner_waited_s=learner_waited_s, replay_transitions=0, replay_capacity=0)


@pytest.mark.parametrize(
    ("times_ms", "median_ms", "finish_rate"),
    [
        ([], None, None),
        ([30_000, None, 32_000], 32_000, 2 / 3),
        ([30_000, None], None, 0.5),
        ([None] * 10 + [30_000 + i for i in range(10)], 30_004.5, 1.0),
    ],
)
def test_recent_figures_count_unfinished_races_as_slowest(times_ms, median_ms, finish_rate):
    history = RaceHistory()
    for time_ms in times_ms:
        history.add(race(time_ms))
    assert history.median_time_ms == median_ms
    assert history.recent_finish_rate == finish_rate


def test_times_are_kept_by_map_and_kind():
    figures = TrainingStatistics()
    races = [
        race(),
        race(31_000),
        race(32_000),
        race(30_000, is_explo=False),
        race(40_000, map_name="flat"),
        race(30_500),
    ]
    for one in races:
        figures.add(race_of(one))
    valley = figures.maps["valley"]
    assert (valley.explored.best_time_ms, valley.explored.last_time_ms) == (30_500, 30_500)
    assert (valley.explored.n_races, valley.explored.n_finished) == (4, 3)
    assert valley.evaluated.best_time_ms == valley.best_time_ms == 30_000
    assert figures.maps["flat"].best_time_ms == 40_000
    assert (figures.races_total, figures.frames_total) == (6, 60)


def test_demonstrations_count_frames_and_no_results():
    figures = TrainingStatistics()
    figures.add(race_of(race(31_000)))
    figures.add(race_of(race(9_000, meters=900.0, is_demonstration=True)))
    figures.add(race_of(race(9_000, map_name="flat", is_demonstration=True)))
    assert (figures.races_total, figures.frames_total) == (3, 30)
    assert list(figures.maps) == ["valley"]
    explored = figures.maps["valley"].explored
    assert (explored.n_races, explored.best_time_ms, explored.furthest_m) == (1, 31_000, 812.0)


def test_rates_are_those_of_the_last_half_minute():
    clock = Clock()
    figures = TrainingStatistics(clock)
    assert figures.rates().actions_per_s == 0
    for second in range(1, 101):
        clock.now_s = float(second)
        figures.add(race_of(race(n_actions=50 if second <= 60 else 200)))
        observe(figures, updates=2 * second, learner_waited_s=0.25 * second)
    rates = figures.rates()
    assert rates.actions_per_s == pytest.approx(200)
    assert rates.races_per_s == pytest.approx(1)
    assert rates.batches_per_s == pytest.approx(2)
    assert rates.learner_waiting_share == pytest.approx(0.25)


def test_a_resumed_run_continues_with_the_counts(tmp_path):
    clock = Clock()
    figures = TrainingStatistics(clock)
    for r in (race(31_000), race(), race(30_000, is_explo=False)):
        figures.add(race_of(r, -0.15))
    clock.now_s = 70.0
    save_checkpoint(tmp_path, {"statistics": figures.state_dict()}, minimum_free_disk_mb=0)

    later = Clock()
    later.now_s = 5.0
    resumed = TrainingStatistics(later)
    resumed.load_state_dict(load_checkpoint(tmp_path).state["statistics"])
    assert resumed.state_dict() == figures.state_dict() | {"training_s": 75.0}
    assert resumed.returns.figures()["ep_rew_mean"] == pytest.approx(-1.5)
    observe(resumed, updates=1_000)
    resumed.add(race_of(race(30_500)))
    later.now_s = 7.0
    # Ten actions in two seconds: loaded counts are no speed.
    assert resumed.rates() == Rates(actions_per_s=5, races_per_s=0.5, batches_per_s=0, learner_waiting_share=0)


def entry(name, fill_buffer=True):
    return MapEntry(map_name=name, is_explo=False, fill_buffer=fill_buffer)


CYCLE = (entry("valley"), entry("kart"), entry("valley", fill_buffer=False), entry("ring", fill_buffer=False))


def test_best_times_of_the_map_cycle_are_added_up_when_all_maps_have_one():
    assert trained_and_blind(CYCLE) == ({"valley", "kart"}, {"ring"})
    run = TrainingStatistics()
    assert cycle_figures(run, CYCLE) == {}
    for r in (race(20_000, "valley", is_explo=False), race(10_000, "kart")):
        run.add(race_of(r))
    assert cycle_figures(run, CYCLE) == {"rollout/cycle/finish_rate/trained": 1.0}
    for time_ms, name in ((None, "kart"), (12_000, "kart"), (None, "ring")):
        run.add(race_of(race(time_ms, name, is_explo=False)))
    assert cycle_figures(run, CYCLE) == {
        "rollout/cycle/finish_rate/trained": 0.75,
        "rollout/cycle/best_time_s/trained": 32.0,
        "rollout/cycle/finish_rate/blind": 0.0,
    }


def test_ratios_of_the_map_cycle_are_of_maps_with_a_time_to_beat():
    run = TrainingStatistics()
    run.reference_times = {
        "valley": MedalTimes(19_000, 22_000, None, None),
        "ring": MedalTimes(None, 30_000, None, None),
    }
    run.add(race_of(race(20_900, "valley", is_explo=False)))
    run.add(race_of(race(33_000, "ring", is_explo=False)))
    figures = cycle_figures(run, CYCLE)
    ratios = {name.removeprefix("rollout/cycle/"): value for name, value in figures.items() if "_over_" in name}
    assert ratios == {
        "best_over_author/trained": pytest.approx(1.1),
        "median_over_author/trained": pytest.approx(1.1),
        "best_over_gold/trained": pytest.approx(0.95),
        "median_over_gold/trained": pytest.approx(0.95),
        "best_over_gold/blind": pytest.approx(1.1),
        "median_over_gold/blind": pytest.approx(1.1),
    }


def test_the_table_of_maps_has_times_at_checkpoints():
    figures = TrainingStatistics()
    for times_ms in ((9_000, 20_000, 31_000), (8_000, 19_000, 30_000), (10_000, 32_000), (7_000, 21_000, 33_000)):
        figures.add(race_of(race(times_ms[-1], is_explo=False, checkpoint_times_ms=times_ms)))
    figures.add(race_of(race(is_explo=False)))
    [row] = figures.map_rows()
    assert (row["map"], row["kind"], row["races"], row["recent"]) == ("valley", "evaluation", 5, 4)
    assert (row["best_ms"], row["best_checkpoints_ms"]) == (30_000, [8_000, 19_000, 30_000])
    assert row["median_checkpoints_ms"] == [8_000, 20_000, 31_000], "of those with as many checkpoints as the newest"
