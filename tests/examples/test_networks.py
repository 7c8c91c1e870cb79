"""The examples of networks are named in the configuration, decide, and learn."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import nn

from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.iqn import IQNAgent
from trackmania_rl.agents.networks import QuantileNetwork
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings

CPU = torch.device("cpu")
IMAGE = ("image_width_px=23", "image_height_px=17", "frames_per_state=4", "float_hidden_dim=16")
EXAMPLES = {
    "SmallNetwork": ("network=examples.small_network:SmallNetwork",),
    "FourierNetwork": ("network=examples.fourier_network:FourierNetwork",),
    "GRUNetwork": (
        "network=examples.gru_network:GRUNetwork",
        "views={'past': {'column': 'velocity_m_s', 'shift': '-8:-1'}}",
    ),
    "ImpalaNetwork": ("network=examples.impala_network:ImpalaNetwork", "dense_hidden_dimension=16", *IMAGE),
}


@pytest.fixture(params=EXAMPLES)
def settings(request: pytest.FixtureRequest, repository_root: Path) -> Settings:
    return load_settings(repository_root / "config_files" / "config.py", EXAMPLES[request.param])


@pytest.fixture
def network(settings: Settings) -> QuantileNetwork:
    return IQN(settings, race_spaces(settings), SeedTree(0)).make_network()


def random_batch(settings: Settings, n_floats: int) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    game, n = settings.game, 16
    shape = (n, game.frames_per_state, game.image_height_px, game.image_width_px)
    batch = {
        "action": torch.randint(len(game.inputs), (n,), generator=generator),
        "reward": torch.randn(n, generator=generator),
        "gamma_n": torch.zeros(n),
        "weight": torch.ones(n),
    }
    for state in ("state", "next_state"):
        batch[f"{state}_img"] = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        batch[f"{state}_float"] = torch.randn(n, n_floats, generator=generator)
    return TensorDict(batch, batch_size=n)


def test_it_decides_by_the_mean_of_its_quantiles_and_learns(settings: Settings, network: QuantileNetwork) -> None:
    batch = random_batch(settings, len(network.float_mean))
    inferer = IQN(settings, race_spaces(settings), SeedTree(0)).make_actor(network, CPU, np.random.default_rng(0))
    decision = inferer.act_batch(batch["state_img"].numpy(), batch["state_float"].numpy())
    tau = (torch.arange(settings.agent.iqn_k) + 0.5).unsqueeze(0) / settings.agent.iqn_k
    with torch.no_grad():
        expected = network(batch["state_img"], batch["state_float"], tau).mean(dim=1)
    np.testing.assert_allclose(decision.q_values, expected.numpy(), rtol=1e-3, atol=1e-4)

    agent = IQNAgent(network, settings.agent, device=CPU, seed=0)
    losses = []
    for _ in range(60):
        agent.apply_settings(settings.agent, 3e-3)
        losses.append(agent.update(batch)["loss"].item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("settings", ["ImpalaNetwork"], indirect=True)
def test_the_residual_head_is_the_papers(network: QuantileNetwork) -> None:
    assert isinstance(network.img_head, nn.Sequential)
    convolutions = iter([layer for layer in network.img_head.modules() if isinstance(layer, nn.Conv2d)])

    def convolved(x: torch.Tensor) -> torch.Tensor:
        layer = next(convolutions)
        return F.conv2d(x, layer.weight, layer.bias, padding=1)

    x = torch.randn(5, 4, 17, 23)
    features = network.img_head(x)
    for _ in range(3):
        x = F.max_pool2d(convolved(x), kernel_size=3, stride=2, padding=1)
        for _ in range(2):
            x = x + convolved(F.relu(convolved(F.relu(x))))
    assert next(convolutions, None) is None
    assert x.shape == (5, 32, 3, 3)  # 17 x 23, halved three times, rounded up
    widened = F.relu(x).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)  # 3 x 3 pooled to 6 x 6
    torch.testing.assert_close(features, widened.flatten(1))
