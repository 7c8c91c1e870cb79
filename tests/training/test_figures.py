"""Figures of a run: tags of the page's table, returns and lengths, and values against a computation by hand."""

import re

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.telemetry.figures import progress_figures
from trackmania_rl.training import learner

from .conftest import LocalRun, edit, live_in, race_maker

PLACES = {
    "status": "trained",
    "kind": "evaluated",
    "map": "valley",
    "quantile": "median",
    "parameter": "A_head/0/weight",
    "i": "1",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory, repository_root):
    """Tensorboard's file of a run that explored, evaluated and learned."""
    folder = tmp_path_factory.mktemp("figures")
    live = live_in(folder, repository_root)
    edit(live, prio_alpha=0.5, tensorboard_interval_s=1e-9)
    layout = ObservationLayout(live.current.observation)
    make_race = race_maker(live, layout)
    run = LocalRun(live, layout, RunFolder.create(folder, "run"))
    run.context.statistics.reference_times["valley"] = MedalTimes(1000, 2000, None, None)
    of_race = {"checkpoint_times_ms": [500, 1000, 2500], "first_value": 0.5}
    of_race |= {"timings_ms": dict.fromkeys(("wait_game", "answer_game", "features", "policy"), 0.1)}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(learner, "POLL_S", 0.0)  # a quick machine would learn from all races between two ticks
        run.train_on(make_race(50, True, is_explo=is_explo, **of_race) for is_explo in (True, False) * 3)
    run.close_files()
    events = EventAccumulator(str(run.context.folder.tensorboard), size_guidance={"tensors": 0})
    events.Reload()
    return events


def test_each_figure_that_the_page_names_for_one_of_linesights_is_written(written, repository_root):
    page = (repository_root / "docs" / "figures.rst").read_text(encoding="utf-8")
    section = page.split("Names of Linesight's charts\n")[1].split("\n---")[0]
    rows = re.findall(r"^   \* - (.*?)\n     - (.*?)(?=\n   \* -|\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    here = {tag for _, cell in rows for tag in re.findall("``([^`]*/[^`]*)``", cell)}
    assert len(here) > 30
    tags = {*written.Tags()["scalars"]}
    assert {tag for tag in here if tag.format(**PLACES) not in tags} == set()
    assert len(tags) >= 100
    groups = {tag.split("/")[0] for kind in ("scalars", "images", "histograms") for tag in written.Tags()[kind]}
    assert sorted(groups)[:2] == ["rollout", "train"], "tensorboard opens these"
    assert len(groups) < 8


def test_returns_and_lengths_of_all_races_and_of_each_map_and_kind(written):
    ends = ("", "/explored/valley", "/evaluated/valley")
    returns, explored, evaluated = (written.Scalars(f"rollout/ep_rew_mean{end}")[-1].value for end in ends)
    assert explored != evaluated
    assert returns == pytest.approx((explored + evaluated) / 2)
    assert [written.Scalars(f"rollout/ep_len_mean{end}")[-1].value for end in ends] == [50.0, 50.0, 50.0]
    assert len(written.Scalars("train/total/frames")) > 1
    assert len(written.Scalars("weights/weight_rms/A_head/0/weight")) == 1, "at the run's end"


def test_the_return_of_an_own_environment_is_the_sum_of_its_rewards(make_run, make_race):
    run = make_run()
    episode = make_race(20, False, map_name="pendulum")
    episode.columns["rewards"] = np.full(20, 3.0, dtype=np.float32)
    run.train_on([episode])
    figures = progress_figures(run.context.statistics, run.context.settings, {})
    for end in ("", "/explored/pendulum"):
        assert (figures[f"rollout/ep_rew_mean{end}"], figures[f"rollout/ep_len_mean{end}"]) == (60.0, 20.0)
    assert "rollout/ep_rew_mean/evaluated/pendulum" not in figures


def test_figures_are_measured(make_run, make_race, live):
    edit(live, tensorboard_interval_s=1e6)
    run = make_run()
    run.train_on(make_race(50, False) for _ in range(4))
    figures = run.context.replay.figures() | run.context.replay.priority_figures()
    for hook in run.hooks:
        figures |= hook.interval_figures() | hook.rare_figures()
    weights = dict(run.agent.exploration_network.named_parameters())
    rms = weights["A_head.0.weight"].detach().square().mean().sqrt()
    np.testing.assert_allclose(figures["weights/weight_rms/A_head/0/weight"], rms.item(), rtol=1e-6)
    assert 0 < figures["weights/gradient_norm/A_head/0/weight"] <= run.context.settings.agent.clip_grad_norm
    assert figures["train/grad_norm_q1"] <= figures["train/grad_norm_median"] <= figures["train/grad_norm_max"]
    assert figures["train/update_ms"] > 0
    assert 0 < figures["train/learner_time/updates"] <= 1
    assert figures["train/total/transitions_trained_on"] == 13 * run.agent.updates > 0
    assert not {name for name in figures if name.startswith("train/replay/priority")}, "nothing is drawn by priority"
