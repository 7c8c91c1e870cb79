"""Images changed at random in ways that leave their meaning, so that what is learned holds for more than pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from trackmania_rl.agents.iqn import Transitions


def with_shifted_images(batch: Transitions, max_shift_px: int, generator: torch.Generator) -> Transitions:
    """The batch with each state's image, and each next state's, shifted by its own random step (`shift_images`)."""
    return batch._replace(
        state_img=shift_images(batch.state_img, max_shift_px, generator),
        next_state_img=shift_images(batch.next_state_img, max_shift_px, generator),
    )


def shift_images(img: Tensor, max_shift_px: int, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to `max_shift_px` pixels down or up and right or left; what enters repeats the border.

    The random shifts of DrQ (Kostrikov et al. 2020, arXiv:2004.13649; Yarats et al. 2021, arXiv:2107.09645, section
    3.1), by whole pixels: the same as padding with border pixels and cropping at a random place.

    Args:
        img: (B, S, H, W); the S frames of one state shift together.
        max_shift_px: at most so far.
        generator: source of the shifts, on the images' device.

    Returns:
        (B, S, H, W), a copy.
    """
    n_images, n_frames, height, width = img.shape
    shifts = torch.randint(-max_shift_px, max_shift_px + 1, (2, n_images, 1), generator=generator, device=img.device)
    rows = (torch.arange(height, device=img.device) + shifts[0]).clamp_(0, height - 1)  # (B, H), read for each row
    columns = (torch.arange(width, device=img.device) + shifts[1]).clamp_(0, width - 1)  # (B, W)
    places = rows.unsqueeze(2) * width + columns.unsqueeze(1)  # (B, H, W)
    pixels = img.reshape(n_images, n_frames, height * width)
    return pixels.gather(2, places.view(n_images, 1, -1).expand(-1, n_frames, -1)).view(img.shape)
