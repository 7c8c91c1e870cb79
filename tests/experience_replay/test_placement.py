"""Where the replay memory is kept."""

import pytest
import torch

from trackmania_rl.experience_replay.placement import most_replay_bytes, pick_replay_device
from trackmania_rl.experience_replay.ring_buffer import RingBuffer

GPU, CPU = torch.device("cuda"), torch.device("cpu")
GROWING = ((0, 500), (7_000, 1_100), (9_000, 900))
ROW_BYTES = RingBuffer.bytes_per_row(5, (7, 9))


def test_while_it_grows_old_and_new_columns_are_there():
    assert ROW_BYTES == 7 * 9 + 5 * 4 + 2 + 4 + 4 + 2 + 4
    assert most_replay_bytes(GROWING, 5, (7, 9), ()) == (1_100 + 900) * ROW_BYTES
    assert most_replay_bytes(GROWING[:1], 5, (7, 9), ()) == 500 * ROW_BYTES


@pytest.mark.parametrize(("free_bytes", "device"), [(3_000 * ROW_BYTES, GPU), (2_800 * ROW_BYTES, CPU)])
def test_it_leaves_a_gpu_that_it_would_fill(monkeypatch, caplog, free_bytes, device):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, 10 * free_bytes))
    assert pick_replay_device(GPU, GROWING, 5, (7, 9)) == device
    assert ("kept in host memory" in caplog.text) == (device == CPU)
