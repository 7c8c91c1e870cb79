"""Behaviour cloning on the existing network."""

import pytest
import torch
import torch.nn.functional as F

from trackmania_rl.agents.behaviour_cloning import LOGIT, CloningAgent, ImitationLoss
from trackmania_rl.agents.iqn import draw_taus


@pytest.fixture
def make_cloning_agent(agent_settings, make_network):
    def make(*, use_torch_compile=False, **changes):
        settings = agent_settings(**changes)
        device = torch.device("cpu")
        network = make_network(settings)
        return CloningAgent(network, settings, device=device, seed=2, use_torch_compile=use_torch_compile)

    return make


def test_the_loss_is_the_weighted_cross_entropy_of_the_mean_values(make_cloning_agent, make_batch):
    agent, batch = make_cloning_agent(), make_batch()
    loss = agent.loss_module
    assert isinstance(loss, ImitationLoss)
    taus = draw_taus(len(batch), loss.settings, torch.Generator().manual_seed(2))
    values = loss.online(batch["state_img"], batch["state_float"], taus.prediction).mean(dim=1)
    each = F.cross_entropy(values / LOGIT, batch["action"], reduction="none")
    losses = loss(batch)
    assert losses["loss"].item() == pytest.approx((each * batch["weight"]).sum().item(), rel=1e-5)
    assert losses["accuracy"].item() == pytest.approx((values.argmax(1) == batch["action"]).float().mean().item())
    assert batch["td_error"].tolist() == pytest.approx(each.tolist(), rel=1e-5)
    assert set(losses.keys()) == {"loss", "accuracy"}


def test_it_learns_to_choose_as_others_did(make_cloning_agent, make_batch, update):
    agent = make_cloning_agent()
    for seed in range(300):
        batch = make_batch(batch_size=64, seed=seed)
        batch["action"] = batch["state_float"][:, 1:4].argmax(dim=1)
        batch["reward"] *= 100  # which means nothing
        losses = update(agent, batch, 3e-3)
        if seed == 0:
            first_loss = losses["loss"].item()
    assert losses["accuracy"].item() > 0.6, "of states that it has not seen; by chance it is 1/3"
    assert losses["loss"].item() < 0.7 * first_loss
