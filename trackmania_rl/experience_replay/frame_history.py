"""Several frames of a race as one image, put together when a batch is drawn: each frame is stored once.

Shapes: B transitions, S frames of an image, H and W its height and width.
"""

from __future__ import annotations

import torch

from trackmania_rl.experience_replay.mini_race import MiniRaceBatch, MiniRaceRules
from trackmania_rl.experience_replay.row_ring import RowRing


def add_older_frames(
    batch: MiniRaceBatch, elapsed: torch.Tensor, ring: RowRing, rules: MiniRaceRules, frames_per_state: int
) -> None:
    """Put the S - 1 frames before that of each state in front of it, in the batch's images.

    As while the race was driven, its first frame stands in for those before it; and so does the oldest frame that the
    memory holds, where what came before was overwritten.

    Args:
        batch: B transitions with images of one frame; with S frames (B, S, H, W), oldest first, afterwards.
        elapsed: (B,) int64, actions of the mini-race that were over at each state.
        ring: where the rows are.
        rules: by which the batch was drawn.
        frames_per_state: S.
    """
    columns, capacity = ring.columns, ring.capacity
    position = batch.row_id % capacity
    n_steps = torch.minimum(columns.n_steps.take(position), rules.duration_actions - elapsed)
    row = torch.cat((batch.row_id, batch.row_id + n_steps))  # (2B,), goes back by one row in each round
    images = [torch.cat((batch.state_img, batch.next_state_img))]
    for _ in range(frames_per_state - 1):
        before = (row - 1) % capacity
        ends_a_race = columns.n_steps.take(before) == 0
        row = torch.where(ends_a_race | (row == ring.first_row), row, row - 1)
        images.append(columns.frames.index_select(0, row % capacity))
    batch.state_img, batch.next_state_img = torch.cat(images[::-1], dim=1).chunk(2)
