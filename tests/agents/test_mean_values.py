"""Values for playing: prepared, plain, and the mean of the network's returns."""

import pytest
import torch

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.mean_values import PlainMeanValues, PreparedMeanValues, mean_values

N_QUANTILES = 6


class Doubled(IQN_Network):
    """Computes in a way of its own."""

    def forward(self, img, floats, tau):
        return 2 * super().forward(img, floats, tau)


@pytest.fixture
def make_trained(agent_settings, make_network):
    """A network with biases, which are 0 at first."""

    def make(multiplied, has_image, network_class=IQN_Network):
        settings = agent_settings(quantile_factors_multiply=multiplied, expected_reward_per_action=-0.05)
        network = make_network(settings, has_image=has_image, network_class=network_class)
        draw_biases(network)
        return network

    return make


def draw_biases(network, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def means_of_forward(network, batch):
    midpoints = torch.tensor([[(i + 0.5) / N_QUANTILES for i in range(N_QUANTILES)]])
    with torch.no_grad():
        return network(batch["state_img"], batch["state_float"], midpoints).mean(dim=1)


@pytest.mark.parametrize("n_states", [1, 11])
@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_prepared_and_plain_values_are_means_of_the_returns(make_trained, make_batch, multiplied, has_image, n_states):
    network, batch = make_trained(multiplied, has_image), make_batch(has_image=has_image, batch_size=11)[:n_states]
    expected = means_of_forward(network, batch)
    for make in (PreparedMeanValues, PlainMeanValues):
        values = make(network, N_QUANTILES)(batch["state_img"], batch["state_float"])
        assert values.shape == (n_states, 3)
        assert values.dtype == torch.float32
        torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)


def test_a_network_that_computes_in_its_own_way_is_asked_itself(make_trained, make_batch):
    network, batch = make_trained("features", False, Doubled), make_batch()
    values = mean_values(network, N_QUANTILES)
    assert isinstance(values, PlainMeanValues)
    torch.testing.assert_close(values(batch["state_img"], batch["state_float"]), means_of_forward(network, batch))
    assert isinstance(mean_values(make_trained("features", False), N_QUANTILES), PreparedMeanValues)
