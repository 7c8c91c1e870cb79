"""A window that shows a race while it is driven, by pygame, as Gymnasium's own environments have it."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError

WINDOW_SIZE_PX: Final = (640, 480)
"""(width, height)"""


class Window:
    """Opened with the first picture; there is one in each process. A copy shows nothing: it is None.

    Args:
        title: of the window.
        frames_per_s: pictures are shown no faster than this.

    Raises:
        UserError: if pygame is missing.
    """

    def __init__(self, title: str, frames_per_s: float) -> None:
        if importlib.util.find_spec("pygame") is None:
            raise UserError(
                'render_mode = "human" needs the package pygame: python -m pip install "trackmania-rl[window]"'
            )
        self._title = title
        self._frames_per_s = frames_per_s
        self._screen: Any = None
        self._clock: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of an environment, as a search makes them, is not to be seen."""
        return None

    def show(self, picture: npt.NDArray[np.uint8]) -> None:
        """Show a picture (H, W, 3), red, green and blue, when its time has come.

        Raises:
            UserError: if no window can be opened.
        """
        import pygame  # takes a second

        if self._screen is None:
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._screen = pygame.display.set_mode(WINDOW_SIZE_PX)
            self._clock = pygame.time.Clock()
        pygame.surfarray.blit_array(self._screen, cv2.resize(picture, WINDOW_SIZE_PX).swapaxes(0, 1))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._frames_per_s)

    def close(self) -> None:
        """Close the window, if it was opened."""
        if self._screen is not None:
            import pygame

            pygame.display.quit()
            self._screen = None
