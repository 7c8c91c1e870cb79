"""FlatRAdam against torch's."""

import pytest
import torch

from trackmania_rl.agents.radam import FlatRAdam


@pytest.mark.parametrize(("betas", "epsilon"), [((0.9, 0.999), 1e-4), ((0.5, 0.9), 1e-8), ((0.9, 0.5), 1e-4)])
def test_steps_equal_torchs(betas, epsilon):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(31, generator=generator)
    plain = torch.nn.Parameter(weights.clone())
    optimizer, plain_optimizer = FlatRAdam(weights), torch.optim.RAdam([plain], betas=betas, eps=epsilon)
    for step in range(20):  # it is rectified from the sixth step on with a beta2 of 0.999; never with 0.5
        gradient = torch.randn(31, generator=generator)
        learning_rate = 0.1 / (step + 1)
        optimizer.step(gradient, learning_rate, betas=betas, epsilon=epsilon, decay=0.01)
        plain.grad = gradient
        plain_optimizer.param_groups[0]["lr"] = learning_rate
        plain_optimizer.step()
        plain.data.mul_(1 - 0.01)
        torch.testing.assert_close(weights, plain.data, rtol=1e-5, atol=1e-6)


def test_a_loaded_optimizer_goes_on_to_the_byte_and_shares_nothing():
    def run(optimizer, steps):
        for step in steps:
            gradient = torch.randn(31, generator=torch.Generator().manual_seed(step))
            optimizer.step(gradient, 0.1, betas=(0.9, 0.999), epsilon=1e-4, decay=0.0)

    weights, resumed_weights = torch.zeros(31), torch.zeros(31)
    straight, resumed = FlatRAdam(weights), FlatRAdam(resumed_weights)
    run(straight, range(7))
    resumed_weights.copy_(weights)
    resumed.load_state_dict(straight.state_dict())
    run(straight, range(7, 9))
    run(resumed, range(7, 9))
    assert torch.equal(weights, resumed_weights)
