"""Floats as sines and cosines: how a network sees differences that are small beside the range of a float.

A network learns the slow variations of a function long before its sharp ones (the spectral bias of Rahaman et al. 2019,
arXiv:1806.08734). What a race returns has sharp ones: a corner taken 20 cm further inside ends at a wall, and 20 cm are
a fortieth of the standard deviation by which that distance is normalized. As the sine and the cosine of a wavelength of
some metres they are plain to see (Tancik et al. 2020, "Fourier Features Let Networks Learn High Frequency Functions in
Low Dimensional Domains", arXiv:2006.10739; for values of actions Yang et al. 2022, "Overcoming the Spectral Bias of
Neural Value Approximation", arXiv:2206.04672). Those papers draw the frequencies at random over all inputs; here each
float has wavelengths of its own, in its own unit, chosen in the configuration.

Shapes: B batch, F floats, W waves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Wave(NamedTuple):
    """One wavelength of one float."""

    float_index: int  # among the F floats
    wavelength: float  # in the float's unit, positive


class FourierFeatures(nn.Module):
    """sin(2 pi x / wavelength) and cos(2 pi x / wavelength) of some floats x.

    Args:
        waves: W of them; a float may have several, or none.

    Attributes:
        n_features: 2 W.
    """

    def __init__(self, waves: Sequence[Wave]) -> None:
        super().__init__()
        self.n_features = 2 * len(waves)
        self.float_indices: Tensor
        self.angular_frequencies: Tensor
        frequencies = [2 * math.pi / wave.wavelength for wave in waves]
        indices = torch.tensor([wave.float_index for wave in waves], dtype=torch.int64)
        self.register_buffer("float_indices", indices, persistent=False)
        self.register_buffer("angular_frequencies", torch.tensor(frequencies), persistent=False)

    def forward(self, floats: Tensor) -> Tensor:
        """Floats (B, F), as observed, to (B, 2 W): all sines, then all cosines."""
        angles = floats[:, self.float_indices] * self.angular_frequencies  # (B, W)
        return torch.cat((angles.sin(), angles.cos()), dim=1)
