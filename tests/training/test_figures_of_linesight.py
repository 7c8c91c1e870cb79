"""A run's figures, and the page's table that says where each of Linesight's is found, or why it is left out."""

import re
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.telemetry.figures import progress_figures

from .conftest import MakeRace, MakeRun, edit

LINESIGHT = {
    # of each race
    "explo_race_time_{status}_{map}",
    "eval_race_time_{status}_{map}",
    "explo_race_time_finished_{status}_{map}",
    "eval_race_time_finished_{status}_{map}",
    "explo_race_finished_{status}_{map}",
    "eval_race_finished_{status}_{map}",
    "eval_race_time_robust_{status}_{map}",
    "eval_ratio_{status}_author_{map}",
    "eval_ratio_{status}_gold_{map}",
    "eval_agg_ratio_{status}_author",
    "eval_agg_ratio_{status}_gold",
    "split_{map}_{i}",
    "single_zone_reached_{status}_{map}",
    "avg_Q_{status}_{map}",
    "q_value_0_starting_frame_{map}",
    "mean_action_gap_{map}",
    "race_time_ratio_{map}",
    "worker_time_in_rollout_percentage",
    "instrumentation__answer_normal_step",
    "instrumentation__answer_action_step",
    "instrumentation__between_run_steps",
    "instrumentation__grab_frame",
    "instrumentation__convert_frame",
    "instrumentation__grab_floats",
    "instrumentation__exploration_policy",
    "instrumentation__request_inputs_and_speed",
    "tmi_protection_cutoff",
    # every five minutes
    "gamma",
    "n_steps",
    "epsilon",
    "epsilon_boltzmann",
    "tau_epsilon_boltzmann",
    "learning_rate",
    "weight_decay",
    "discard_non_greedy_actions_in_nsteps",
    "memory_size",
    "number_times_single_memory_is_used_before_discard",
    "learner_percentage_waiting_for_workers",
    "learner_percentage_training",
    "learner_percentage_testing",
    "transitions_learned_per_second",
    "loss",
    "loss_test",
    "train_on_batch_duration",
    "grad_norm_history_{quantile}",
    "L2_grad_norm_{parameter}_{quantile}",
    "Linf_grad_norm_{parameter}_{quantile}",
    "priorities_{quantile}",
    "cumul_number_frames_played",
    "cumul_number_memories_generated",
    "cumul_number_batches_done",
    "cumul_number_target_network_updates",
    "cumul_number_single_memories_used",
    "cumul_number_single_memories_used_next_target_network_update",
    "cumul_number_single_memories_should_have_been_used",
    "cumul_training_hours",
    "alltime_min_ms_{map}",
    "std_within_iqn_quantiles_for_action{i}",
    "layer_{parameter}_L2",
    "exp_avg_{parameter}_L2",
    "exp_avg_sq_{parameter}_L2",
    "lr_ratio_{parameter}_L2",
    "times_summary",
}
"""What Linesight writes to tensorboard (2025), by the names of its charts."""
PLACES = {
    "status": "trained",
    "kind": "evaluated",
    "map": "valley",
    "quantile": "median",
    "parameter": "A_head/0/weight",
    "i": "1",
}


@pytest.fixture(scope="module")
def table(repository_root: Path) -> dict[str, str]:
    """The page's table: each name there by itself, and what is said of it here."""
    page = (repository_root / "docs" / "reading_a_run.rst").read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - (.*?)\n     - (.*?)(?=\n   \* -|\n\n|\Z)", _section(page), re.MULTILINE | re.DOTALL)
    return {name: said for there, said in rows[1:] for name in re.findall("``(.*?)``", there)}


def _section(page: str) -> str:
    return page.split("Names of Linesight's charts\n")[1].split("\n---")[0]


@pytest.fixture
def written(make_run: MakeRun, make_race: MakeRace, live: object) -> EventAccumulator:
    """What a run has written that has driven explored and evaluated races and learned from them."""
    edit(live, prio_alpha=0.5, tensorboard_interval_s=1e-9)
    run = make_run()
    run.context.statistics.reference_times["valley"] = MedalTimes(1000, 2000, None, None)
    of_race = {"checkpoint_times_ms": [500, 1000, 2500], "first_value": 0.5}
    of_race |= {"timings_ms": dict.fromkeys(("wait_game", "answer_game", "features", "policy"), 0.1)}
    run.train_on(make_race(50, True, is_explo=is_explo, **of_race) for is_explo in (True, False) * 3)
    run.close_files()
    events = EventAccumulator(str(run.context.folder.tensorboard), size_guidance={"tensors": 0})
    events.Reload()
    return events


@pytest.fixture
def tags(written: EventAccumulator) -> set[str]:
    return {*written.Tags()["scalars"]}


def test_each_of_linesights_figures_is_here_or_left_out_for_a_reason(table: dict[str, str], tags: set[str]) -> None:
    assert table.keys() == LINESIGHT
    unsaid = {name for name, said in table.items() if "/" not in said and not said.startswith("left out: ")}
    assert not unsaid
    missing = {
        f"{name}: {tag}"
        for name, said in table.items()
        for tag in re.findall("``([^`]*/[^`]*)``", said)
        if tag.format(**PLACES) not in tags
    }
    assert not missing


def test_there_are_a_hundred_figures(tags: set[str]) -> None:
    assert len(tags) >= 100
    assert not {tag for tag in tags if "  " in tag or tag.count("/") == 0}


def test_tensorboard_opens_races_and_learning_first(written: EventAccumulator) -> None:
    groups = {tag.split("/")[0] for kind in ("scalars", "images", "histograms") for tag in written.Tags()[kind]}
    assert sorted(groups)[:2] == ["rollout", "train"]
    assert len(groups) < 8


def test_returns_and_lengths_of_all_races_and_of_each_map_and_kind(written: EventAccumulator) -> None:
    ends = ("", "/explored/valley", "/evaluated/valley")
    returns, explored, evaluated = (written.Scalars(f"rollout/ep_rew_mean{end}")[-1].value for end in ends)
    assert explored != evaluated
    assert returns == pytest.approx((explored + evaluated) / 2)
    assert [written.Scalars(f"rollout/ep_len_mean{end}")[-1].value for end in ends] == [50.0, 50.0, 50.0]


def test_the_return_of_an_own_environment_is_the_sum_of_its_rewards(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    episode = make_race(20, False, map_name="pendulum")
    episode.rollout_results["rewards"] = np.full(20, 3.0, dtype=np.float32)
    run.train_on([episode])
    figures = progress_figures(run.context.statistics, {})
    for end in ("", "/explored/pendulum"):
        assert (figures[f"rollout/ep_rew_mean{end}"], figures[f"rollout/ep_len_mean{end}"]) == (60.0, 20.0)
    assert "rollout/ep_rew_mean/evaluated/pendulum" not in figures


def test_figures_of_single_parameters_are_rare(written: EventAccumulator) -> None:
    assert len(written.Scalars("train/total/frames")) > 1
    assert len(written.Scalars("weights/weight_rms/A_head/0/weight")) == 1, "at the run's end"


def test_figures_are_measured(make_run: MakeRun, make_race: MakeRace, live: object) -> None:
    edit(live, tensorboard_interval_s=1e6, histogram_interval_s=1e6)
    run = make_run()
    run.train_on(make_race(50, False) for _ in range(4))
    figures: dict[str, float] = {}
    for hook in run.trainer.hooks:
        figures |= hook.interval_figures() | hook.rare_figures()
    weights = dict(run.agent.exploration_network.named_parameters())
    rms = weights["A_head.0.weight"].detach().square().mean().sqrt()
    np.testing.assert_allclose(figures["weights/weight_rms/A_head/0/weight"], rms.item(), rtol=1e-6)
    of_gradient = [
        figures[f"weights/gradient_norm_{name}/A_head/0/weight"] for name in ("median", "q3", "d9", "c98", "max")
    ]
    assert 0 < of_gradient[0] <= of_gradient[-1] == max(of_gradient) <= run.context.settings.agent.clip_grad_norm
    spreads = [value for name, value in figures.items() if name.startswith("train/quantile_spread/action_")]
    assert len(spreads) == run.context.spaces.n_values
    assert min(spreads) > 0
    np.testing.assert_allclose(figures["train/quantile_spread/mean"], np.mean(spreads))
    assert figures["train/grad_norm_q1"] <= figures["train/grad_norm_median"] <= figures["train/grad_norm_max"]
    assert figures["train/update_ms_median"] > 0
    assert 0 < figures["train/learner_time/updates"] <= 1
    assert figures["train/total/transitions_trained_on"] == 13 * run.agent.updates > 0
    assert figures["train/total/target_updates"] == run.agent.updates // 2
    assert not {name for name in figures if name.startswith("train/replay/priority")}, "nothing is drawn by priority"
    again: dict[str, float] = {}
    for hook in run.trainer.hooks:
        again |= hook.interval_figures() | hook.rare_figures()
    assert "train/grad_norm_q1" not in again, "no update since"
    assert "weights/gradient_norm_max/A_head/0/weight" not in again
