"""What an environment shows of a state, as spaces and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Space

from trackmania_rl.race.spaces import Spaces

Shown = npt.NDArray[np.float32] | dict[str, npt.NDArray[Any]]
"""The floats alone, or a dictionary of `image` and `floats`."""


class ObservationForm:
    """The floats (F,), and with an image a dictionary of `image` (S, H, W) uint8 and `floats`.

    Args:
        spaces: what a state is.
        normalize: whether the floats are shown as the network sees them, (x - mean) / standard deviation.

    Attributes:
        space: of one observation.
    """

    def __init__(self, spaces: Spaces, *, normalize: bool) -> None:
        self._mean = np.array(spaces.float_mean, dtype=np.float32)
        self._std = np.array(spaces.float_std, dtype=np.float32)
        self._has_image = spaces.has_image
        self._normalize = normalize
        floats = Box(-np.inf, np.inf, (spaces.n_floats,), np.float32)
        self.space: Space[Any] = floats
        if spaces.has_image:
            self.space = Dict({"image": Box(0, 255, spaces.image_shape, np.uint8), "floats": floats})

    def show(self, image: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> Shown:
        """Make an observation, or several at once; fresh arrays.

        Args:
            image: (..., S, H, W).
            floats: (..., F), not normalized.
        """
        shown = (floats - self._mean) / self._std if self._normalize else floats.copy()
        return {"image": image.copy(), "floats": shown} if self._has_image else shown
