"""LossScale: what float16 needs, without asking the device."""

import torch

from trackmania_rl.agents.loss_scale import FIRST_FACTOR, UPDATES_BETWEEN_GROWTHS, LossScale

CPU = torch.device("cpu")


def test_a_gradient_is_divided_by_the_factor():
    scale = LossScale(CPU, enabled=True)
    gradient = scale.factor * torch.tensor([1.0, -2.0])
    scale.unscale_(gradient)
    assert gradient.tolist() == [1.0, -2.0]
    assert scale.factor == FIRST_FACTOR


def test_an_overflow_makes_the_gradient_zero_and_halves_the_factor():
    for bad in (float("inf"), float("nan")):
        scale = LossScale(CPU, enabled=True)
        gradient = torch.tensor([1.0, bad, 3.0])
        scale.unscale_(gradient)
        assert gradient.tolist() == [0.0, 0.0, 0.0]
        assert scale.factor == FIRST_FACTOR / 2


def test_the_factor_doubles_after_a_time_without_overflow():
    scale = LossScale(CPU, enabled=True)
    scale.unscale_(torch.tensor([float("inf")]))
    for _ in range(UPDATES_BETWEEN_GROWTHS - 1):
        scale.unscale_(torch.ones(2))
    assert scale.factor == FIRST_FACTOR / 2
    resumed = LossScale(CPU, enabled=True)
    resumed.load_state_dict(scale.state_dict())
    for each in (scale, resumed):
        each.unscale_(torch.ones(2))
        assert each.factor == FIRST_FACTOR


def test_disabled_it_changes_nothing():
    scale = LossScale(CPU, enabled=False)
    gradient = torch.tensor([1.0, float("inf")])
    scale.unscale_(gradient)
    scale.load_state_dict(LossScale(CPU, enabled=True).state_dict())
    assert gradient.tolist() == [1.0, float("inf")]
    assert scale.factor == 1


def test_a_run_that_was_not_in_float16_says_nothing_about_the_factor():
    scale = LossScale(CPU, enabled=True)
    scale.load_state_dict(LossScale(CPU, enabled=False).state_dict())
    assert scale.factor == FIRST_FACTOR
