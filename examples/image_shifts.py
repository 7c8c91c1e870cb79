"""Training on randomly shifted images, a form of data augmentation.

    python scripts/train.py --set run_name=shifted --set image_width_px=64 --set image_height_px=48 \
        --set transforms=examples.image_shifts:ImageShifts

Random shifts as in DrQ (Kostrikov et al. 2020, arXiv:2004.13649; Yarats et al. 2021, arXiv:2107.09645, section 3.1), a
torchrl transform of each sampled batch. Linesight's random crops are the same.
"""

import torch
from torch import Tensor
from torchrl.envs.transforms import Transform


class ImageShifts(Transform):
    """Shift each state's and next state's image by its own random step.

    Args:
        max_shift_px: largest shift in each direction; 4 at 84 pixels in the papers.
    """

    def __init__(self, max_shift_px: int = 4) -> None:
        images = ["state_img", "next_state_img"]
        super().__init__(in_keys=images, out_keys=images)
        self.max_shift_px = max_shift_px

    def _apply_transform(self, img: Tensor) -> Tensor:
        """Shift images (B, S, H, W), a state's S frames together, padded with border pixels."""
        n_images, n_frames, height, width = img.shape
        shifts = torch.randint(-self.max_shift_px, self.max_shift_px + 1, (2, n_images, 1), device=img.device)
        rows = (torch.arange(height, device=img.device) + shifts[0]).clamp_(0, height - 1)  # (B, H)
        columns = (torch.arange(width, device=img.device) + shifts[1]).clamp_(0, width - 1)  # (B, W)
        places = rows.unsqueeze(2) * width + columns.unsqueeze(1)  # (B, H, W)
        pixels = img.reshape(n_images, n_frames, height * width)
        return pixels.gather(2, places.view(n_images, 1, -1).expand(-1, n_frames, -1)).view(img.shape)
