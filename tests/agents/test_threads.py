"""The learner's number of threads."""

import os

import pytest
import torch

from trackmania_rl.agents import devices
from trackmania_rl.agents.devices import pick_learner_threads
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import settings_from_flat

IMAGE = {"image_width_px": 16, "image_height_px": 16}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"learner_threads": 3}, 3),
        ({}, 1),
        (IMAGE, 6),
        (IMAGE | {"n_collectors": 16}, 1),
        (IMAGE | {"torch_device": "cuda"}, 1),
    ],
)
def test_free_cores_are_used_for_images(default_settings, monkeypatch, changes, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(devices, "pick_device", torch.device)
    run = {"torch_device": "cpu", "n_collectors": 2}
    settings = settings_from_flat(default_settings.flat() | run | changes)
    assert pick_learner_threads(settings, race_spaces(settings)) == expected
