"""Diagnostics of a run: their numbers against a computation by hand, and when a set is drawn, of which races."""

import copy

import numpy as np
import pytest
import torch

from trackmania_rl.agents.iqn import Taus, Transitions
from trackmania_rl.agents.weights import packed
from trackmania_rl.experience_replay.mini_races import MiniRaceRules
from trackmania_rl.race.rewards import Rewarded
from trackmania_rl.telemetry.diagnostics import Picture
from trackmania_rl.training.diagnostics import realised_returns
from trackmania_rl.training.hooks import recordings
from trackmania_rl.training.hooks.recordings import DrawDiagnostics

from .conftest import edit

RNG = np.random.default_rng(3)


def counted_by_hand(rewarded, gamma, duration, is_terminal, at):
    """The return of the mini-race that begins at one action."""
    total, ends_at = 0.0, len(rewarded.rewards)
    for ahead in range(ends_at if duration is None else duration):
        if at + ahead == ends_at:
            if not is_terminal:
                return float("nan")
            break
        total += gamma**ahead * float(rewarded.rewards[at + ahead])
    if duration is None and not is_terminal:
        return float("nan")
    return total - float(rewarded.potentials[at])


@pytest.mark.parametrize("duration", [None, 1, 5, 40])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_realised_returns_are_the_rewards_of_each_mini_race(duration, is_terminal):
    rewarded = Rewarded(*(RNG.standard_normal(n).astype(np.float32) for n in (17, 18)))
    realised = realised_returns(rewarded, MiniRaceRules(0.9, duration), is_terminal=is_terminal)
    expected = [counted_by_hand(rewarded, 0.9, duration, is_terminal, at) for at in range(17)]
    np.testing.assert_allclose(realised, expected, rtol=1e-6, atol=1e-6)


def test_errors_are_those_of_the_loss_and_cost_no_random_number(make_run, make_race):
    run = make_run()
    run.train_on([make_race(60, True)])
    agent, loss = run.agent, run.agent.loss_module
    batch = run.buffer.sample()
    before, generator = copy.deepcopy(agent.state_dict()), loss.generator.get_state()
    errors = agent.errors_of(batch.clone())
    assert errors.target is not None
    assert torch.equal(loss.generator.get_state(), generator)
    tau = ((torch.arange(loss.settings.iqn_n) + 0.5) / loss.settings.iqn_n).unsqueeze(0)
    settings, taus = loss.settings, Taus(tau, tau)
    loss.eval()
    with torch.no_grad():
        targets, _ = loss.targets_and_returns(Transitions.from_batch(batch, loss.device), taus)
        batch["weight"] = 1 / loss.scaling(targets, tau, settings)
        total, td_error, mean_q = loss.compute_losses(Transitions.from_batch(batch, loss.device), taus)
    torch.testing.assert_close(errors.loss.sum(), total)
    torch.testing.assert_close((errors.target - errors.predicted).abs(), td_error)
    torch.testing.assert_close(errors.predicted.mean(), mean_q)
    for name in ("online", "target", "averaged"):
        for weight, weight_before in zip(agent.state_dict()[name].values(), before[name].values(), strict=True):
            assert torch.equal(weight, weight_before)


# ------------------------------------------------------------------------------------------------ when a set is drawn


class Drawn:
    """Leaves one picture of the data that it was given."""

    def __init__(self):
        self.failure = None
        self.data = []

    def __call__(self, data, folder):
        if self.failure is not None:
            raise self.failure
        self.data.append(data)
        yield Picture("largest_errors", folder / "a.png", np.zeros((5, 7, 3), np.uint8))


def test_a_set_is_of_the_newest_evaluated_race(live, make_run, make_race, logger, monkeypatch, caplog):
    drawn = Drawn()
    monkeypatch.setattr(recordings, "draw_diagnostics", drawn)
    edit(live, temporal_mini_race_duration_actions=100)
    run = make_run()
    hook = run.hook(DrawDiagnostics)
    run.train_on([make_race(30, True), make_race(60, True)])
    before, generator = packed(run.agent.exploration_network), run.buffer.generator.get_state()
    hook._is_due = True  # by the clock it is not within a test
    race = make_race(34, True, is_explo=False, fill_buffer=False)
    run.train_on([make_race(31, True, is_explo=False, fill_buffer=False)])  # an explored race is to come first
    run.train_on([make_race(32, False, fill_buffer=False), race])
    hook.end()
    assert torch.equal(packed(run.agent.exploration_network), before)
    assert torch.equal(run.buffer.generator.get_state(), generator), "training draws the same random numbers after it"
    [(name, picture, _)] = logger.of("picture")
    assert (name, picture.shape) == ("rollout/diagnostics/largest_errors/valley", (5, 7, 3))
    [data] = drawn.data
    assert data["about"].frames_total == 30 + 60 + 31 + 32 + 34
    assert len(data["about"].driven_m) == 34
    assert data["about"].driven_m.flags.owndata, "the race is drawn after it is released"
    of_race, columns = data["comparison"].predicted[-34:], race.columns
    np.testing.assert_allclose(of_race, columns["q_values"][np.arange(34), columns["actions"]], rtol=1e-5)
    assert set(data["errors"].kind) == {"explored", "evaluated"}
    assert 0 < data["errors"].actions_left.min() <= data["errors"].actions_left.max() <= data["about"].mini_race_actions

    drawn.failure = ValueError("no paper")
    hook._is_due = True
    run.train_on([make_race(32, False), make_race(20, True, is_explo=False)])
    hook.end()
    assert f"the diagnostics in {run.context.folder.diagnostics} could not be drawn: no paper" in caplog.text
