"""The learner's number of threads, and the precision of a processor."""

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


@pytest.mark.parametrize(
    ("setting", "instructions", "is_faster", "dtype"),
    [
        ("auto", "amx_bf16", True, torch.bfloat16),
        ("auto", "avx512_bf16", True, torch.bfloat16),
        ("auto", "avx512_bf16", False, torch.float32),
        ("auto", "avx512_f", True, torch.float32),
        ("bfloat16", "avx512_bf16", False, torch.bfloat16),
        ("bfloat16", "avx512_f", True, torch.float32),
        ("float16", "avx512_bf16", True, torch.float32),
        ("float32", "avx512_bf16", True, torch.float32),
    ],
)
def test_bfloat16_on_a_processor(default_settings, monkeypatch, setting, instructions, is_faster, dtype):
    """Measured with the layer of a full-size network; the default one is too small to be measured."""
    measured = []
    timed = iter([0, 1, 1, 1.5 if is_faster else 1.9] * devices.PROBE_ROUNDS)
    monkeypatch.setattr(devices.time, "perf_counter", lambda: measured.append(setting) or next(timed))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True})
    settings, cpu = settings_from_flat(default_settings.flat() | {"autocast_dtype": setting}).agent, torch.device("cpu")
    devices.bfloat16_is_faster.cache_clear()
    assert devices.arithmetic_dtype(cpu, settings, torch.nn.Linear(1024, 2048)) == dtype
    assert bool(measured) == (setting == "auto" and instructions != "avx512_f")
    devices.bfloat16_is_faster.cache_clear()
    measured.clear()
    small = devices.arithmetic_dtype(cpu, settings, torch.nn.Linear(256, 256))
    assert (small == torch.bfloat16) == (setting == "bfloat16" and dtype == torch.bfloat16)
    assert not measured
