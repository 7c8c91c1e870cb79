"""The last frames of a race as one image."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt


class FrameStack:
    """The last S frames of one race, as the agent sees them: in its first states, the first frame stands in.

    (Mnih et al. 2015, "Human-level control through deep reinforcement learning": one frame shows no speeds.)

    Args:
        frames_per_state: S.
    """

    def __init__(self, frames_per_state: int) -> None:
        self._frames_per_state = frames_per_state
        self._frames: deque[npt.NDArray[np.uint8]] = deque(maxlen=frames_per_state)

    def with_frame(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The image (S, H, W), oldest frame first, of the state with this frame (1, H, W); if S = 1, the frame."""
        if self._frames_per_state == 1:
            return frame
        kept = frame.copy()  # whoever made the frame may draw the next one over it
        self._frames.extend([kept] * (1 if self._frames else self._frames_per_state))
        return np.concatenate(self._frames)
