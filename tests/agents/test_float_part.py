"""FloatPart: values and written-out derivatives against the network and autograd."""

import pytest
import torch

from trackmania_rl.agents.flat_parameters import flatten_gradients, flatten_parameters
from trackmania_rl.agents.float_part import FloatPart
from trackmania_rl.agents.fourier_features import Wave

WAVES = (Wave(2, 0.7), Wave(2, 3.0), Wave(5, 1.1))


@pytest.mark.parametrize("use_layer_norm", [False, True])
@pytest.mark.parametrize("waves", [(), WAVES])
def test_features_and_gradients_are_those_of_the_network(
    agent_settings, make_network, make_batch, use_layer_norm, waves
):
    network = make_network(agent_settings(use_layer_norm=use_layer_norm), waves=waves)
    flatten_parameters(network)
    batches = [make_batch(seed=seed).state_float for seed in (0, 1)]
    grads = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(3))
    for floats, grad in zip(batches, grads, strict=True):
        network.float_features(floats).backward(grad)
    own = dict(network.float_feature_extractor.named_parameters())
    expected = {name: parameter.grad.clone() for name, parameter in own.items()}
    assert len(expected) == (8 if use_layer_norm else 4)

    flatten_gradients(network)
    part = FloatPart(network, torch.float32)
    assert part.width == 9
    for floats, grad in zip(batches, grads, strict=True):
        features = part.forward(floats, recorded=True)
        assert not features.requires_grad
        torch.testing.assert_close(features, network.float_features(floats).detach())
        part.backward(grad)
    for name, gradient in expected.items():
        torch.testing.assert_close(
            own[name].grad, gradient, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_changed_weights_count_in_bfloat16_once_prepared(agent_settings, make_network, make_batch):
    network, floats = make_network(agent_settings(use_layer_norm=True)), make_batch().state_float
    part = FloatPart(network, torch.bfloat16)
    before = part.forward(floats, recorded=False)
    with torch.no_grad():
        network.float_feature_extractor[0].weight.mul_(-1)
    assert torch.equal(part.forward(floats, recorded=False), before)
    part.prepare()
    rough, exact = part.forward(floats, recorded=False), network.float_features(floats).detach()
    assert rough.dtype == torch.float32, "behind a normalization they are exact again"
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.05)
    assert not torch.equal(rough, exact)
