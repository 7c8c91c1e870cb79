"""Updates of `IQNAgent`, against torch's own parts on ordinary parameters."""

import copy

import pytest
import torch
from torch import nn

from trackmania_rl.agents.iqn import SelfLossScaling, draw_taus
from trackmania_rl.agents.weights import clip_gradient

from .conftest import BATCH, torch_quantile_huber_loss

STEPS = 30
"""RAdam goes by the mean square from its sixth step on, with the configured betas."""


class PlainTraining:
    """The update as papers and torch's documentation have it: parameter by parameter, all returns of all actions."""

    def __init__(self, agent, seed):
        self.settings = agent.loss_module.settings
        self.online = copy.deepcopy(agent.loss_module.online)
        self.target = copy.deepcopy(agent.loss_module.target)
        self.optimizer = torch.optim.RAdam(
            self.online.parameters(),
            betas=(self.settings.adam_beta1, self.settings.adam_beta2),
            eps=self.settings.adam_epsilon,
        )
        self.scaling = SelfLossScaling()
        self.generator = torch.Generator().manual_seed(seed)

    def loss(self, batch):
        settings, taus = self.settings, draw_taus(len(batch), self.settings, self.generator)
        next_state = batch["next_state_img"], batch["next_state_float"]
        with torch.no_grad():
            next_returns = self.target(*next_state, taus.target)
            if settings.use_ddqn:
                best = self.online(*next_state, taus.target).mean(dim=1).argmax(dim=1)
            else:
                assert settings.target_action == "argmax_of_mean"
                best = next_returns.mean(dim=1).argmax(dim=1)
            rows = torch.arange(len(batch))
            targets = batch["reward"][:, None] + batch["gamma_n"][:, None] * next_returns[rows, :, best]
        predictions = self.online(batch["state_img"], batch["state_float"], taus.prediction)[rows, :, batch["action"]]
        losses = torch_quantile_huber_loss(targets, predictions, taus.prediction, settings.iqn_kappa)
        scale = self.scaling(targets, taus.target, settings)
        td_error = (targets.mean(dim=1) - predictions.mean(dim=1)).abs().detach()
        return (batch["weight"] * scale * losses).sum(), td_error

    def step(self, total, learning_rate):
        settings, parameters = self.settings, list(self.online.parameters())
        self.optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_value_(parameters, settings.clip_grad_value)
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip_grad_norm)
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(1 - learning_rate * settings.weight_decay_lr_ratio)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        return norm

    def soft_update(self):
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.mul_(1 - self.settings.soft_update_tau).add_(self.settings.soft_update_tau * fast)


def assert_same_weights(ours, plain, **tolerance):
    for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, **({"rtol": 1e-4, "atol": 2e-6} | tolerance), msg=lambda text, n=name: n + text
        )


@pytest.mark.parametrize(
    ("has_image", "use_ddqn", "multiplied", "interval"),
    [
        (False, False, "features", BATCH),
        (False, True, "hidden_layers", 2),
        (True, False, "hidden_layers", 12),
        (True, True, "features", 12),
        (True, True, "features", 2),
        (False, True, "features", BATCH),
    ],
)
def test_updates_equal_the_plain_form(make_agent, make_batch, update, has_image, use_ddqn, multiplied, interval):
    agent = make_agent(
        seed=2,
        has_image=has_image,
        use_ddqn=use_ddqn,
        target_action="argmax_of_mean",
        quantile_factors_multiply=multiplied,
        clip_grad_value=2.0,
        clip_grad_norm=3.0,
        weight_decay_lr_ratio=0.5,
        soft_update_tau=0.1,
        number_memories_trained_on_between_target_network_updates=interval,
    )
    plain = PlainTraining(agent, seed=2)
    was_clipped = False
    for step in range(8):
        batch = make_batch(seed=step, has_image=has_image)
        learning_rate = 1e-2 / (step + 1)
        losses = update(agent, batch, learning_rate)

        total, td_error = plain.loss(batch)
        norm = plain.step(total, learning_rate)
        for _ in range((step + 1) * BATCH // interval - step * BATCH // interval):
            plain.soft_update()
        was_clipped |= norm.item() > 3.0
        torch.testing.assert_close(losses["loss"], total.detach())
        torch.testing.assert_close(losses["grad_norm"], norm)
        torch.testing.assert_close(batch["td_error"], td_error)
        assert_same_weights(agent.loss_module.online, plain.online)
        assert_same_weights(agent.loss_module.target, plain.target)
    assert was_clipped


LEARNING_RATES = [0.0, 1e-2, 1e-2, 0.0, 3e-3, 1e-3, 1e-2, 0.0] + [1e-3] * (STEPS - 8)


def test_clipping_and_step_are_torchs(make_agent):
    """Gradients come from a seed. Beside them torch's own RAdam steps ordinary parameters."""
    agent = make_agent(
        clip_grad_value=1.5, clip_grad_norm=20.0, weight_decay_lr_ratio=0.5, adam_beta1=0.8, adam_beta2=0.99
    )
    plain, settings = PlainTraining(agent, seed=0), agent.loss_module.settings
    for number, learning_rate in enumerate(LEARNING_RATES):
        generator = torch.Generator().manual_seed(number)
        gradient = torch.randn(agent.weights.shape, generator=generator) * 10.0 ** (number % 4 - 2)
        parameters = list(plain.online.parameters())
        pieces = gradient.split([parameter.numel() for parameter in parameters])
        total = sum((piece * parameter.view(-1)).sum() for piece, parameter in zip(pieces, parameters, strict=True))
        before = agent.weights.detach().clone()
        agent.apply_settings(settings, learning_rate)
        agent.weights.grad = gradient.clone()
        norm = clip_gradient(agent.weights.grad, settings.clip_grad_value, settings.clip_grad_norm)
        agent.optimizer.step()
        torch.testing.assert_close(norm, plain.step(total, learning_rate))
        assert torch.equal(before, agent.weights) == (learning_rate == 0)
        assert_same_weights(agent.loss_module.online, plain.online)
    state = agent.optimizer.state[agent.weights]
    assert state["step"] == STEPS
    for name in ("exp_avg", "exp_avg_sq"):
        of_plain = [plain.optimizer.state[p][name].reshape(-1) for p in plain.online.parameters()]
        torch.testing.assert_close(state[name], torch.cat(of_plain), rtol=1e-4, atol=1e-7)


def test_a_first_gradient_with_a_nan_moves_nothing_and_leaves_no_trace(make_agent, make_batch, update):
    agent = make_agent(weight_decay_lr_ratio=0.0)
    weights = agent.weights
    before = weights.detach().clone()
    batch = make_batch(seed=1)
    batch["reward"][3] = torch.nan
    assert torch.isnan(update(agent, batch, 1e-3)["grad_norm"])
    assert torch.equal(weights, before)
    for step in range(2, 5):
        assert torch.isfinite(update(agent, make_batch(seed=step), 1e-3)["loss"])
    assert torch.isfinite(weights).all()
    assert not torch.equal(weights, before)


def test_a_scaled_gradient_makes_the_same_step_and_an_overflow_makes_none(make_agent, make_batch, update):
    scaled, plain = make_agent(), make_agent()
    scaled.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        losses = [update(agent, make_batch(seed=step), 1e-3) for agent in (scaled, plain)]
        torch.testing.assert_close(losses[0]["grad_norm"], losses[1]["grad_norm"])
    torch.testing.assert_close(scaled.weights, plain.weights)
    before = scaled.weights.detach().clone()
    batch = make_batch(seed=9)
    batch["reward"][3] = torch.inf
    assert torch.isfinite(update(scaled, batch, 1e-3)["grad_norm"]), "an overflow is no fault of the weights"
    assert torch.equal(scaled.weights, before)
    assert scaled.scaler.get_scale() == 512.0
    resumed = make_agent()
    resumed.scaler = torch.amp.GradScaler("cpu")
    resumed.load_state_dict(scaled.state_dict())
    assert resumed.scaler.get_scale() == 512.0
