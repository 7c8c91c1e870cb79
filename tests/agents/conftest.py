"""Networks, settings and batches of small sizes that all differ, so that a swapped axis cannot pass."""

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict

from trackmania_rl.agents.iqn import IQN_Network, IQNAgent
from trackmania_rl.agents.networks import Sizes
from trackmania_rl.settings import AgentSettings, load_settings

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

BATCH, FLOATS, ACTIONS, MINI_RACE = 5, 7, 3, 140
HEIGHT, WIDTH = 17, 23

SMALL = {
    "conv_channels": (2, 4),
    "conv_kernel_sizes": (4, 3),
    "conv_strides": (2, 2),
    "float_hidden_dim": 9,
    "dense_hidden_dimension": 22,
    "iqn_embedding_dimension": 13,
    "quantile_factors_multiply": "features",
    "iqn_n": 8,
    "iqn_k": 6,
    "iqn_kappa": 0.3,
    "expected_reward_per_action": 0.0,
    "use_layer_norm": False,
}


@pytest.fixture(scope="session")
def default_settings(repository_root):
    return load_settings(repository_root / "config_files" / "config.py")


@pytest.fixture(scope="session")
def full_size_settings(repository_root):
    return load_settings(repository_root / "config_files" / "config_tmnf.py")


@pytest.fixture
def agent_settings(default_settings):
    """Makes `AgentSettings` of small sizes: agent_settings(use_ddqn=True)."""

    def make(**changes):
        return AgentSettings.model_validate(default_settings.agent.model_dump() | SMALL | changes)

    return make


@pytest.fixture
def make_network():
    """Makes a network for `agent_settings`, with or without image head."""

    def make(settings, *, has_image=False, seed=1, waves=()):
        sizes = Sizes(
            float_mean=[0.1 * i for i in range(FLOATS)],
            float_std=[1.0 + i for i in range(FLOATS)],
            n_actions=ACTIONS,
            image_shape=(1, HEIGHT, WIDTH) if has_image else (1, 0, 0),
            mini_race_duration_actions=MINI_RACE,
            waves=waves,
        )
        return IQN_Network(settings, sizes, torch.Generator().manual_seed(seed))

    return make


@pytest.fixture
def make_agent(agent_settings, make_network):
    """Makes an `IQNAgent` of small sizes: make_agent(use_ddqn=True)."""

    def make(*, seed=2, has_image=False, device="cpu", use_torch_compile=False, **changes):
        settings = agent_settings(**changes)
        network = make_network(settings, has_image=has_image)
        return IQNAgent(network, settings, device=torch.device(device), seed=seed, use_torch_compile=use_torch_compile)

    return make


@pytest.fixture
def update():
    """Makes one update at a learning rate: update(agent, batch, 1e-3)."""

    def make_update(agent, batch, learning_rate):
        agent.apply_settings(agent.loss_module.settings, learning_rate)
        return agent.update(batch)

    return make_update


@pytest.fixture
def make_batch():
    """Makes a batch of random transitions; the second one is terminal."""

    def make(*, has_image=False, seed=0, batch_size=BATCH, device="cpu"):
        generator = torch.Generator().manual_seed(seed)
        shape = (batch_size, 1, HEIGHT, WIDTH) if has_image else (batch_size, 1, 0, 0)
        gamma_n = torch.full((batch_size,), 0.97)
        gamma_n[1] = 0.0
        batch = {
            "state_img": torch.randint(256, shape, generator=generator, dtype=torch.uint8),
            "state_float": torch.randn(batch_size, FLOATS, generator=generator),
            "action": torch.randint(ACTIONS, (batch_size,), generator=generator),
            "reward": torch.randn(batch_size, generator=generator),
            "next_state_img": torch.randint(256, shape, generator=generator, dtype=torch.uint8),
            "next_state_float": torch.randn(batch_size, FLOATS, generator=generator),
            "gamma_n": gamma_n,
            "weight": 0.5 + torch.rand(batch_size, generator=generator),
        }
        return TensorDict(batch, batch_size=[batch_size]).to(device)

    return make


def torch_quantile_huber_loss(targets, predictions, tau, kappa):
    """(B,) of targets (B, M), predictions (B, N) and tau (B, N) or (1, N)."""
    pairs = (len(targets), targets.shape[1], predictions.shape[1])
    below, above = predictions[:, None, :].expand(pairs), targets[:, :, None].expand(pairs)
    huber = F.huber_loss(below, above, delta=kappa, reduction="none") / kappa
    shares = torch.where(above < below, 1 - tau[:, None, :], tau[:, None, :])
    return (shares * huber).mean(dim=1).sum(dim=1)


def draw_biases(network, seed=7):
    """Biases begin at 0, where a missing one would not be noticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
