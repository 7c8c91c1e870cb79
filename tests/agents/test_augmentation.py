"""Random shifts against padding and cropping, and where the learner uses them."""

import copy

import pytest
import torch
import torch.nn.functional as F

from trackmania_rl.agents.augmentation import shift_images, with_shifted_images
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.iqn import Transitions
from trackmania_rl.agents.learner import IQNLearner

CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def crops(img, max_shift_px):
    """Every crop (S, H, W) of one image that was padded with its border, by (down, right)."""
    pad = (max_shift_px,) * 4
    padded = F.pad(img[None].float(), pad, mode="replicate")[0].to(img.dtype)
    height, width = img.shape[1:]
    span = range(2 * max_shift_px + 1)
    return {(y, x): padded[:, y : y + height, x : x + width] for y in span for x in span}


def test_each_image_is_a_crop_of_itself_padded():
    img = torch.randint(256, (11, 3, 7, 9), dtype=torch.uint8, generator=generator())
    shifted = shift_images(img, 2, generator(1))
    assert shifted.shape == img.shape
    assert shifted.dtype == torch.uint8
    chosen = []
    for before, after in zip(img, shifted, strict=True):
        places = [place for place, crop in crops(before, 2).items() if torch.equal(crop, after)]
        assert len(places) == 1  # all frames of one state moved alike
        chosen += places
    assert len(set(chosen)) > 5


def test_all_shifts_are_drawn_alike():
    ramp = torch.arange(99, dtype=torch.uint8).view(1, 1, 9, 11).expand(3000, 1, 9, 11)
    centers = shift_images(ramp, 1, generator())[:, 0, 4, 5].long()
    rows, columns = centers // 11, centers % 11
    for values, middle in ((rows, 4), (columns, 5)):
        counts = [(values == middle + step).sum().item() for step in (-1, 0, 1)]
        assert sum(counts) == 3000
        assert min(counts) > 900


def test_states_and_next_states_shift_for_themselves(make_batch):
    batch = Transitions.from_batch(make_batch(has_image=True), CPU)
    batch = batch._replace(next_state_img=batch.state_img)
    shifted = with_shifted_images(batch, 3, generator())
    assert not torch.equal(shifted.state_img, shifted.next_state_img)
    assert shifted.state_float is batch.state_float


@pytest.fixture
def make_learner(agent_settings, make_network):
    def make(**changes):
        settings = agent_settings(**changes)
        return IQNLearner(make_network(settings, has_image=True), settings, device=CPU, seed=2)

    return make


def test_the_learner_trains_on_shifted_images_and_tests_on_unshifted_ones(make_learner, make_batch):
    shifting, plain = make_learner(image_shift_px=2), make_learner()
    batch = make_batch(has_image=True)
    assert torch.equal(shifting.evaluate(batch), plain.evaluate(batch))
    random_state = copy.deepcopy(shifting.state_dict()["generator"])
    shifting.update(batch, 1e-3)

    by_hand = torch.Generator()
    by_hand.set_state(random_state)
    shifted = with_shifted_images(Transitions.from_batch(batch, CPU), 2, by_hand)
    plain._generator.set_state(by_hand.get_state())
    plain.update(shifted, 1e-3)
    assert torch.equal(flatten_parameters(shifting.online), flatten_parameters(plain.online))
