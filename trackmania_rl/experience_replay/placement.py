"""Where the replay memory is kept: on the training device where it fits there, else in host memory."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Final

import torch

from trackmania_rl.experience_replay.ring_buffer import RingBuffer

SHARE_OF_FREE_MEMORY: Final = 0.7
"""How much of a GPU's free memory the replay may take: networks, batches and the collectors' networks come on top."""

log = logging.getLogger(__name__)


def most_replay_bytes(
    schedule: Sequence[tuple[int, int]], n_floats: int, image_size_px: tuple[int, int], action_shape: tuple[int, ...]
) -> int:
    """Compute the GPU memory that rows need at the worst: as the memory grows, old columns are there beside new ones.

    Args:
        schedule: `memory_size_schedule`, (frame, rows) in ascending order.
        n_floats: floats of one state.
        image_size_px: (height, width) of a frame; (0, 0) for no image.
        action_shape: () of an index, or (D,) of numbers.
    """
    sizes = [n_rows for _, n_rows in schedule]
    most_rows = max([sizes[0], *(old + new for old, new in itertools.pairwise(sizes))])
    return most_rows * RingBuffer.bytes_per_row(n_floats, image_size_px, action_shape)


def pick_replay_device(
    training_device: torch.device,
    schedule: Sequence[tuple[int, int]],
    n_floats: int,
    image_size_px: tuple[int, int],
    action_shape: tuple[int, ...] = (),
) -> torch.device:
    """Choose the device for the replay memory.

    Batches that are drawn in host memory are copied to the GPU for each update, which costs less than a training that
    ends with "out of memory" when the memory grows, days later.

    Args:
        training_device: where the network learns.
        schedule: `memory_size_schedule`, (frame, rows) in ascending order.
        n_floats: floats of one state.
        image_size_px: (height, width) of a frame; (0, 0) for no image.
        action_shape: () of an index, or (D,) of numbers.
    """
    if training_device.type != "cuda":
        return training_device
    free_bytes, _ = torch.cuda.mem_get_info(training_device)
    needed_bytes = most_replay_bytes(schedule, n_floats, image_size_px, action_shape)
    if needed_bytes <= SHARE_OF_FREE_MEMORY * free_bytes:
        return training_device
    log.warning(
        "the replay memory is kept in host memory: it needs up to %.1f GiB, and the GPU has %.1f GiB free; a smaller "
        "memory_size_schedule would fit",
        needed_bytes / 2**30,
        free_bytes / 2**30,
    )
    return torch.device("cpu")
