"""The published network as plain torch: names, shapes and arithmetic as they are documented, with nothing of ours."""

import math

import torch
from torch import nn


class PublishedNetwork(nn.Module):
    """Image (B, 1, H, W) already as (x - 128) / 128, floats as observed, quantiles (N B, 1): all states for the first
    quantile, then all states for the second, ..."""

    def __init__(self, mean, std, *, channels, kernels, strides, image_px, hidden, dense, cosines, n_actions):
        super().__init__()
        layers, before = [], 1
        for n_channels, kernel, stride in zip(channels, kernels, strides, strict=True):
            layers += [nn.Conv2d(before, n_channels, kernel, stride), nn.LeakyReLU()]
            before = n_channels
        self.img_head = nn.Sequential(*layers, nn.Flatten())
        n_image = self.img_head(torch.zeros(1, 1, *image_px)).shape[1]
        self.float_feature_extractor = nn.Sequential(
            nn.Linear(len(mean), hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU()
        )
        joint = n_image + hidden
        self.A_head = nn.Sequential(nn.Linear(joint, dense // 2), nn.LeakyReLU(), nn.Linear(dense // 2, n_actions))
        self.V_head = nn.Sequential(nn.Linear(joint, dense // 2), nn.LeakyReLU(), nn.Linear(dense // 2, 1))
        self.iqn_fc = nn.Sequential(nn.Linear(cosines, joint), nn.LeakyReLU())
        self.mean, self.std = torch.tensor(mean), torch.tensor(std)
        self.n_cosines = cosines

    def forward(self, image, floats, tau):
        n_quantiles = len(tau) // len(image)
        state = torch.cat((self.img_head(image), self.float_feature_extractor((floats - self.mean) / self.std)), dim=1)
        cosines = torch.cos(torch.arange(1, self.n_cosines + 1) * math.pi * tau)
        mixed = state.repeat(n_quantiles, 1) * self.iqn_fc(cosines)
        advantage, value = self.A_head(mixed), self.V_head(mixed)
        return value + advantage - advantage.mean(dim=1, keepdim=True)
