"""What an environment shows of a state, as spaces and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.settings import GameSettings

Shown = npt.NDArray[np.float32] | dict[str, npt.NDArray[Any]]
"""The floats alone, or `{"image": ..., "floats": ...}`."""


class ObservationForm:
    """The floats (F,), and with an image a dictionary of `image` (S, H, W) uint8 and `floats`.

    Args:
        layout: the floats.
        game: the image's size, and S, how many frames make one image.
        normalize: whether the floats are shown as the network sees them, (x - mean) / standard deviation.

    Attributes:
        space: of one observation.
    """

    def __init__(self, layout: ObservationLayout, game: GameSettings, *, normalize: bool) -> None:
        self._layout = layout
        self._has_image = game.has_image
        self._normalize = normalize
        floats = spaces.Box(-np.inf, np.inf, (layout.float_input_dim,), np.float32)
        self.space: spaces.Space[Any] = floats
        if game.has_image:
            self.space = spaces.Dict({"image": spaces.Box(0, 255, game.image_shape, np.uint8), "floats": floats})

    def show(self, image: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> Shown:
        """Make an observation, or several at once; fresh arrays.

        Args:
            image: (..., S, H, W).
            floats: (..., F), not normalized.
        """
        shown = (floats - self._layout.mean) / self._layout.std if self._normalize else floats.copy()
        return {"image": image.copy(), "floats": shown} if self._has_image else shown
