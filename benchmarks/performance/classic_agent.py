"""Classic way of network and update: the same algorithm, tensor by tensor.

Features are repeated for each quantile before they are multiplied; clipping, optimizer, decay and soft update are
torch's own, over the list of parameter tensors. As in Linesight's published code, images and convolutions are
channels-last, and the networks and the loss may be compiled.
"""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from trackmania_rl.agents.iqn import SELF_LOSS_CLAMP_RATIO, SELF_LOSS_RATE
from trackmania_rl.agents.networks import ACTIONS_AHEAD
from trackmania_rl.settings import AgentSettings, Settings


class ClassicNetwork(nn.Module):
    """The network of `trackmania_rl.agents.iqn.IQN_Network`, with the same names in its `state_dict`."""

    def __init__(self, settings: Settings, n_floats: int) -> None:
        super().__init__()
        agent, game = settings.agent, settings.game
        self.baseline_per_action = agent.expected_reward_per_action
        self.duration_actions = settings.replay.temporal_mini_race_duration_actions
        self.n_cosines = agent.iqn_embedding_dimension
        self.img_head: nn.Sequential | None = None
        feature_dim = agent.float_hidden_dim
        if game.image_height_px > 0:
            layers: list[nn.Module] = []
            channels = (1, *agent.conv_channels)
            sizes = zip(channels, channels[1:], agent.conv_kernel_sizes, agent.conv_strides, strict=False)
            for inputs, outputs, kernel, stride in sizes:
                layers += [nn.Conv2d(inputs, outputs, kernel, stride), nn.LeakyReLU(inplace=True)]
            self.img_head = nn.Sequential(*layers, nn.Flatten())
            with torch.no_grad():
                feature_dim += self.img_head(torch.zeros(1, 1, game.image_height_px, game.image_width_px)).shape[1]
        width = agent.float_hidden_dim
        reader: list[nn.Module] = []
        for inputs in (n_floats, width):
            reader += [nn.Linear(inputs, width), *([nn.LayerNorm(width)] if agent.use_layer_norm else [])]
            reader += [nn.LeakyReLU(inplace=True)]
        self.float_feature_extractor = nn.Sequential(*reader)
        hidden = agent.dense_hidden_dimension // 2
        self.A_head, self.V_head = (
            nn.Sequential(nn.Linear(feature_dim, hidden), nn.LeakyReLU(inplace=True), nn.Linear(hidden, outputs))
            for outputs in (len(game.inputs), 1)
        )
        self.multiplies_features = agent.quantile_factors_multiply == "features"
        n_factors = feature_dim if self.multiplies_features else 2 * hidden
        self.iqn_fc = nn.Sequential(nn.Linear(self.n_cosines, n_factors), nn.LeakyReLU(inplace=True))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # of four dimensions alone

    def forward(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Compute returns (B, N, A) at quantiles (B, N) of normalized floats."""
        batch_size, n = tau.shape
        features = self.float_feature_extractor(floats)
        if self.img_head is not None:
            images = img.contiguous(memory_format=torch.channels_last)
            features = torch.cat((self.img_head((images.float() - 128) / 128), features), dim=1)
        frequencies = math.pi * torch.arange(1, self.n_cosines + 1, device=tau.device)
        factors = self.iqn_fc(torch.cos(tau.reshape(-1, 1) * frequencies))
        heads = (self.A_head, self.V_head)
        if self.multiplies_features:
            mixed = features.repeat_interleave(n, dim=0) * factors
            advantage, value = (head(mixed) for head in heads)
        else:
            hidden = torch.cat([head[:2](features) for head in heads], dim=1).repeat_interleave(n, dim=0) * factors
            advantage, value = (head[2](rows) for head, rows in zip(heads, hidden.chunk(2, dim=1), strict=True))
        quantiles = value + advantage - advantage.mean(dim=-1, keepdim=True)
        actions_ahead = torch.full_like(floats[:, 0], ACTIONS_AHEAD)
        if self.duration_actions is not None:
            actions_ahead = self.duration_actions - floats[:, 0]
        return quantiles.reshape(batch_size, n, -1) + self.baseline_per_action * actions_ahead[:, None, None]


class ClassicUpdate:
    """One update of the online network and one soft update of the target network."""

    def __init__(
        self,
        network: ClassicNetwork,
        settings: AgentSettings,
        dtype: torch.dtype = torch.float32,
        *,
        use_torch_compile: bool = False,
    ) -> None:
        self.settings = settings
        self.online = network
        self.target = copy.deepcopy(network)
        self.optimizer = torch.optim.RAdam(network.parameters(), eps=settings.adam_epsilon)
        self.device = next(network.parameters()).device
        self.mean_self_loss = torch.ones((), device=self.device)
        self.dtype = dtype
        self.objective = torch.compile(self._objective, dynamic=False) if use_torch_compile else self._objective

    def update(self, batch: SimpleNamespace, learning_rate: float) -> None:
        """Train on one batch and move the target network."""
        settings = self.settings
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            loss = self.objective(batch, self._draw_tau(batch.reward), self._draw_tau(batch.reward))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_value_(self.online.parameters(), settings.clip_grad_value)
        nn.utils.clip_grad_norm_(self.online.parameters(), settings.clip_grad_norm)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        with torch.no_grad():
            for parameter, slow in zip(self.online.parameters(), self.target.parameters(), strict=True):
                parameter.mul_(1 - learning_rate * settings.weight_decay_lr_ratio)
                slow.mul_(1 - settings.soft_update_tau).add_(settings.soft_update_tau * parameter)

    def _objective(self, batch: SimpleNamespace, tau: Tensor, next_tau: Tensor) -> Tensor:
        """Compute the summed loss of a batch at quantiles (B, N) of both networks."""
        settings = self.settings
        with torch.no_grad():
            next_returns = self.target(batch.next_state_img, batch.next_state_float, next_tau)
            action = next_returns.mean(dim=1).argmax(dim=1)
            chosen = next_returns.gather(2, action[:, None, None].expand(-1, settings.iqn_n, 1))[:, :, 0]
            targets = batch.reward[:, None] + batch.gamma_n[:, None] * chosen
        returns = self.online(batch.state_img, batch.state_float, tau)
        predictions = returns.gather(2, batch.action[:, None, None].expand(-1, settings.iqn_n, 1))[:, :, 0]
        loss = self._loss(targets, predictions, tau)
        with torch.no_grad():
            own = self._loss(targets, targets, next_tau).clamp_min(self.mean_self_loss / SELF_LOSS_CLAMP_RATIO)
            self.mean_self_loss.lerp_(own.mean(), SELF_LOSS_RATE)
        loss = loss * (self.mean_self_loss / own).sqrt()
        return loss.sum()

    def _draw_tau(self, like: Tensor) -> Tensor:
        n, batch_size = self.settings.iqn_n, len(like)
        strata = torch.arange(n // 2, device=like.device)
        lower = (strata + torch.rand(batch_size, n // 2, device=like.device)) / n
        return torch.cat((lower, 1 - lower), dim=1)

    def _loss(self, targets: Tensor, predictions: Tensor, tau: Tensor) -> Tensor:
        """Compute quantile Huber losses (B,)."""
        kappa = self.settings.iqn_kappa
        error = targets[:, :, None] - predictions[:, None, :]
        huber = torch.where(error.abs() < kappa, 0.5 / kappa * error**2, error.abs() - 0.5 * kappa)
        share = torch.where(error < 0, 1 - tau[:, None, :], tau[:, None, :].expand_as(error))
        return (share * huber).sum(dim=2).mean(dim=1)
