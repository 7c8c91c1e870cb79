"""What training keeps of each parameter."""

import math

import pytest
import torch

from trackmania_rl.agents.layers import Layer, layer_figures


def test_every_parameter_of_the_online_network_is_a_layer(make_agent, make_batch, update):
    agent = make_agent()
    update(agent, make_batch(), learning_rate=1e-3)
    layers, parameters = agent.layers(), dict(agent.loss_module.online.named_parameters())
    assert layers.keys() == parameters.keys()
    state = agent.optimizer_step.optimizer.state[agent.optimizer_step.weights]
    for name, vector in (("weight", agent.optimizer_step.weights), ("gradient", agent.optimizer_step.weights.grad)):
        assert torch.equal(torch.cat([getattr(layer, name).flatten() for layer in layers.values()]), vector)
    for name, of_optimizer in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
        together = torch.cat([getattr(layer, name).flatten() for layer in layers.values()])
        assert torch.equal(together, state[of_optimizer])
        assert together.abs().max() > 0


def test_figures_are_root_mean_squares():
    weight, zero = torch.tensor([[3.0, -4.0]]), torch.zeros(1, 2)
    layers = {
        "head.0.weight": Layer(weight, zero, 2 * weight, torch.full((1, 2), 4.0)),
        "head.0.bias": Layer(zero, None, None, None),
    }
    figures = layer_figures(layers, adam_epsilon=0.5)
    assert figures == pytest.approx(
        {
            "weights/weight_rms/head/0/weight": math.sqrt(12.5),
            "weights/moment_1_rms/head/0/weight": math.sqrt(50),
            "weights/moment_2_rms/head/0/weight": 4.0,
            "weights/step_scale_rms/head/0/weight": 0.4,
            "weights/weight_rms/head/0/bias": 0.0,
        }
    )
    assert layer_figures({}, adam_epsilon=0.5) == {}
