"""The example of a transform shifts images as padding and cropping does."""

import torch
import torch.nn.functional as F
from tensordict import TensorDict

from trackmania_rl.parts import load_part

ImageShifts = load_part("examples.image_shifts:ImageShifts", "transforms")


def crops(img: torch.Tensor, max_shift_px: int) -> dict[tuple[int, int], torch.Tensor]:
    """Every crop (S, H, W) of one image that was padded with its border, by (down, right)."""
    padded = F.pad(img[None].float(), (max_shift_px,) * 4, mode="replicate")[0].to(img.dtype)
    height, width = img.shape[1:]
    span = range(2 * max_shift_px + 1)
    return {(y, x): padded[:, y : y + height, x : x + width] for y in span for x in span}


def test_each_image_is_a_crop_of_itself_padded() -> None:
    torch.manual_seed(0)
    img, floats = torch.randint(256, (11, 3, 7, 9), dtype=torch.uint8), torch.randn(11, 2)
    batch = TensorDict({"state_img": img, "next_state_img": img, "state_float": floats}, batch_size=11)
    shifted = ImageShifts(max_shift_px=2)(batch.clone())
    assert torch.equal(shifted["state_float"], floats)
    places = {}
    for name in ("state_img", "next_state_img"):
        assert shifted[name].shape == img.shape
        assert shifted[name].dtype == torch.uint8
        found = [
            [place for place, crop in crops(before, 2).items() if torch.equal(crop, after)]
            for before, after in zip(img, shifted[name], strict=True)
        ]
        assert all(len(each) == 1 for each in found)  # all frames of one state moved alike
        places[name] = [each[0] for each in found]
        assert len(set(places[name])) > 5
    assert places["state_img"] != places["next_state_img"]


def test_all_shifts_are_drawn_alike() -> None:
    torch.manual_seed(0)
    ramp = torch.arange(99, dtype=torch.uint8).view(1, 1, 9, 11).expand(3000, 1, 9, 11)
    batch = TensorDict({"state_img": ramp, "next_state_img": ramp}, batch_size=3000)
    centers = ImageShifts(max_shift_px=1)(batch)["state_img"][:, 0, 4, 5].long()
    for values, middle in ((centers // 11, 4), (centers % 11, 5)):
        counts = [(values == middle + step).sum().item() for step in (-1, 0, 1)]
        assert sum(counts) == 3000
        assert min(counts) > 900
