"""The numbers behind the pictures, each against what is counted by hand."""

import copy

import numpy as np
import pytest
import torch

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.iqn import Taus, Transitions
from trackmania_rl.experience_replay.mini_race import MiniRaceRules
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.rewards import RewardedRace
from trackmania_rl.training import mind_numbers
from trackmania_rl.training.mind_numbers import (
    N_STATES,
    Mind,
    RecentRace,
    gather_numbers,
    realised_returns,
    worst_apart,
)

from .conftest import LocalRun, MakeRace, MakeRun

RNG = np.random.default_rng(3)


def of_run(run: LocalRun) -> Mind:
    context = run.context
    rules = context.memory.buffer.rules
    return Mind(context.agent, context.settings, context.spaces, context.reward, rules, 4321, 65.0)


def recent(make_race: MakeRace, n_actions: int, race_finished: bool, **others: object) -> RecentRace:
    race = make_race(n_actions, race_finished, **others)
    return RecentRace(race.rollout_results, race.end_race_stats)


def counted_by_hand(rewarded: RewardedRace, gamma: float, duration: int | None, is_terminal: bool, at: int) -> float:
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
def test_realised_returns_are_the_rewards_of_each_mini_race(duration: int | None, is_terminal: bool) -> None:
    n_actions = 17
    rewarded = RewardedRace(
        RNG.standard_normal(n_actions).astype(np.float32), RNG.standard_normal(n_actions + 1).astype(np.float32)
    )
    realised = realised_returns(rewarded, MiniRaceRules(0.9, duration), is_terminal=is_terminal)
    expected = [counted_by_hand(rewarded, 0.9, duration, is_terminal, at) for at in range(n_actions)]
    np.testing.assert_allclose(realised, expected, rtol=1e-6, atol=1e-6)


def test_the_worst_are_the_largest_that_lie_apart() -> None:
    sizes = np.array([5.0, 9.0, 8.0, 7.0, np.nan, 6.0, 1.0])
    race = np.array(["a", "a", "a", "a", "a", "b", "b"])
    place = np.array([0, 4, 5, 8, 20, 5, 6])
    assert worst_apart(sizes, race, place, apart=4, n_most=9) == [1, 3, 5, 0]
    assert worst_apart(sizes, race, place, apart=1, n_most=3) == [1, 2, 3]


def test_errors_are_those_of_the_loss_and_cost_no_random_number(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on([make_race(60, True)])
    agent, loss = run.agent, run.agent.loss_module
    batch = run.buffer.sample()
    before, generator = copy.deepcopy(agent.state_dict()), loss.generator.get_state()
    errors = agent.errors_of(batch.clone())
    assert errors is not None
    assert errors.predicted is not None
    assert errors.target is not None
    assert torch.equal(loss.generator.get_state(), generator)
    tau = ((torch.arange(loss.settings.iqn_n) + 0.5) / loss.settings.iqn_n).unsqueeze(0)
    settings = loss.settings
    loss.settings = settings.model_copy(update={"use_target_self_loss_scaling": False})
    loss.eval()
    batch["weight"] = torch.ones(len(batch))
    with torch.no_grad():
        total, td_error, mean_q = loss.compute_losses(
            Transitions.from_batch(batch, loss.device), Taus(tau, tau if settings.use_ddqn else None, tau)
        )
    torch.testing.assert_close(errors.loss.sum(), total)
    torch.testing.assert_close((errors.target - errors.predicted).abs(), td_error)
    torch.testing.assert_close(errors.predicted.mean(), mean_q)
    for name in ("online", "target", "averaged"):
        for weight, weight_before in zip(agent.state_dict()[name].values(), before[name].values(), strict=True):
            assert torch.equal(weight, weight_before)


def test_expectations_are_what_the_network_says_of_the_states(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on([make_race(60, True)])
    race = recent(make_race, 40, True, is_explo=False)
    numbers = gather_numbers(of_run(run), race, [race], None, None, run.context.memory)
    seen = numbers.expectations
    assert seen is not None
    states = [5, 15, 25, 35]
    np.testing.assert_allclose(seen.time_s, np.array(states) * 0.05)
    np.testing.assert_allclose(seen.meters, race.columns["meters_advanced_along_centerline"][states])
    frames = torch.from_numpy(race.columns["frames"][states])
    floats = torch.from_numpy(race.columns["state_float"][states]).clone()
    network, taus = run.agent.evaluation_network, torch.from_numpy(seen.taus).float().unsqueeze(0)
    with torch.no_grad():
        returns = network(frames, floats, taus)
        np.testing.assert_allclose(seen.returns, returns.numpy(), rtol=1e-4, atol=1e-5)
        floats[:, ELAPSED_ACTIONS_FLOAT] = float(seen.elapsed_actions[7])
        values = network(frames, floats, taus).mean(dim=1)
    np.testing.assert_allclose(seen.values[:, 7], values.numpy(), rtol=1e-4, atol=1e-5)
    assert seen.returns.shape[0] == N_STATES
    assert seen.elapsed_actions[[0, -1]].tolist() == [0, run.buffer.rules.duration_actions - 1]


def test_predicted_is_q_of_the_action_taken(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on([make_race(60, True)])
    finished, cut_off = recent(make_race, 40, True), recent(make_race, 30, False, map_name="kart")
    mind = of_run(run)
    numbers = gather_numbers(mind, finished, [cut_off, finished], None, None, None)
    compared = numbers.comparison
    assert compared is not None
    assert (compared.race == 1).sum() == 40  # of the race that was cut off the mini-races' ends are not known
    assert len(compared.race) == 40
    assert compared.is_of_map.all()
    for at in (0, 17, 39):
        action = finished.columns["actions"][at]
        assert compared.predicted[at] == pytest.approx(finished.columns["q_values"][at, action])
    rewarded = mind.rewarded(finished)
    duration = mind.rules.duration_actions
    assert compared.realised[3] == pytest.approx(
        counted_by_hand(rewarded, mind.rules.gamma, duration, True, 3), rel=1e-5
    )


def test_surprises_are_the_transitions_with_the_largest_errors(
    make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mind_numbers, "N_SAMPLED_WITH_IMAGE", 1000)  # all
    run = make_run()
    run.train_on([make_race(60, True)])
    evaluated, explored = recent(make_race, 50, True, is_explo=False), recent(make_race, 45, False)
    numbers = gather_numbers(of_run(run), evaluated, [evaluated], explored, None, run.context.memory)
    worst = numbers.surprises
    assert worst is not None
    np.testing.assert_allclose(worst.error, worst.target - worst.predicted, rtol=1e-5)
    assert (np.diff(np.abs(worst.error)) <= 0).all()
    race = evaluated if worst.kind[0] == "evaluated" else explored
    at = round(worst.time_s[0] / 0.05)
    floats = torch.from_numpy(race.columns["state_float"][[at]])
    taus = ((torch.arange(run.agent.loss_module.settings.iqn_n) + 0.5) / run.agent.loss_module.settings.iqn_n)[None]
    with torch.no_grad():
        returns = run.agent.exploration_network(torch.from_numpy(race.columns["frames"][[at]]), floats, taus)
    action = race.columns["actions"][at]
    assert worst.predicted[0] == pytest.approx(float(returns[0, :, action].mean()), rel=1e-4)
    np.testing.assert_array_equal(worst.frames[0], race.columns["frames"][at, 0])
    np.testing.assert_array_equal(worst.position_m[0], race.columns["position_m"][at])
    assert worst.action[0] == numbers.about.action_names[action]
    assert np.isnan(worst.realised[worst.kind == "explored"]).all()  # shorter than a mini-race, and cut off


def test_errors_by_horizon_are_of_both_sides_at_all_horizons(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on([make_race(60, True) for _ in range(4)])
    race = recent(make_race, 40, True, is_explo=False)
    generator = run.buffer.generator.get_state()
    errors = gather_numbers(of_run(run), race, [race], None, None, run.context.memory).errors
    assert torch.equal(run.buffer.generator.get_state(), generator)
    assert errors is not None
    duration = run.buffer.rules.duration_actions
    assert duration is not None
    n_sides = 2 if len(run.buffer_test) else 1
    assert len(errors.loss) == n_sides * mind_numbers.N_SAMPLED_WITH_IMAGE
    assert set(errors.actions_left.tolist()) == set(range(1, duration + 1))
    assert np.isfinite(errors.error).all()


def test_an_agent_that_values_no_actions_is_left_out_of_what_needs_them(
    make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.setattr(run.agent, "returns_at", lambda *_: None)
    monkeypatch.setattr(run.agent, "errors_of", lambda _: None)
    race = recent(make_race, 40, True, is_explo=False)
    run.train_on([make_race(60, True)])
    numbers = gather_numbers(of_run(run), race, [race], None, None, run.context.memory)
    assert (numbers.expectations, numbers.comparison, numbers.errors, numbers.surprises) == (None,) * 4
    assert numbers.race is not None


def test_an_agent_without_quantiles_shows_its_means(
    make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    n_actions = run.context.spaces.n_values
    monkeypatch.setattr(run.agent, "returns_at", lambda img, floats, taus: torch.zeros(len(floats), 1, n_actions))
    race = recent(make_race, 40, True, is_explo=False)
    numbers = gather_numbers(of_run(run), race, [race], None, None, None)
    assert numbers.expectations is not None
    assert numbers.expectations.returns.shape == (N_STATES, 1, n_actions)
    assert len(numbers.expectations.taus) == 0


def test_looking_changes_no_weight(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on([make_race(60, True)])
    before = flatten_parameters(run.agent.exploration_network).clone()
    race = recent(make_race, 40, True, is_explo=False)
    gather_numbers(of_run(run), race, [race], None, None, run.context.memory)
    assert torch.equal(flatten_parameters(run.agent.exploration_network), before)
