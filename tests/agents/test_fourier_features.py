"""Floats as sines and cosines."""

import math

import pytest
import torch

from trackmania_rl.agents.fourier_features import FourierFeatures, Wave

WAVES = (Wave(3, 8.0), Wave(3, 0.5), Wave(6, 2.0))

NO_IMAGE = torch.empty(1, 1, 0, 0, dtype=torch.uint8)


def test_waves_equal_loops():
    features = FourierFeatures(WAVES)
    floats = torch.randn((5, 7), generator=torch.Generator().manual_seed(0)) * 20
    seen = features(floats)
    assert seen.shape == (5, features.n_features) == (5, 6)
    for b in range(5):
        for number, (index, wavelength) in enumerate(WAVES):
            angle = 2 * math.pi * floats[b, index].item() / wavelength
            assert seen[b, number].item() == pytest.approx(math.sin(angle), abs=1e-4)
            assert seen[b, number + 3].item() == pytest.approx(math.cos(angle), abs=1e-4)


def test_without_waves_the_network_is_as_it_was(agent_settings, make_network):
    network = make_network(agent_settings())
    floats = torch.randn((5, 7), generator=torch.Generator().manual_seed(0))
    normalized = (floats - network.float_mean) / network.float_std
    assert network.float_feature_extractor[0].in_features == 7
    assert torch.equal(network.features(NO_IMAGE, floats), network.float_feature_extractor(normalized))


def test_waves_are_constants_not_weights(agent_settings, make_network):
    with_waves, without = (make_network(agent_settings(), waves=waves).state_dict() for waves in (WAVES, ()))
    assert with_waves.keys() == without.keys()
    assert with_waves["float_feature_extractor.0.weight"].shape == (9, 7 + 6)


def test_a_short_wave_tells_apart_what_normalization_hardly_does(agent_settings, make_network):
    """0.1 m beside a standard deviation of 4 m moves what a fresh network sees by far more with a wave of 0.5 m."""
    here = torch.zeros((1, 7))
    beside = here.clone()
    beside[0, 3] = 0.1

    def distance(waves):
        network = make_network(agent_settings(), waves=waves)
        return (network.features(NO_IMAGE, beside) - network.features(NO_IMAGE, here)).norm().item()

    assert distance(WAVES) > 10 * distance(())
