"""Where the replay memory is kept."""

import pytest
import torch

from trackmania_rl.experience_replay.memory import pick_replay_device
from trackmania_rl.experience_replay.ring_buffer import RingBuffer

GPU, CPU = torch.device("cuda"), torch.device("cpu")
GROWING = ((0, 500), (7_000, 1_100), (9_000, 900))
ROW_BYTES = RingBuffer.bytes_per_row(5, (7, 9))


def test_a_row_has_no_room_to_spare():
    assert ROW_BYTES == 7 * 9 + 5 * 4 + 2 + 4 + 4 + 2 + 4


@pytest.mark.parametrize(("schedule", "most_rows"), [(GROWING, 1_100 + 900), (GROWING[:1], 500)])
@pytest.mark.parametrize(("share", "device"), [(0.71, CPU), (0.69, GPU)])
def test_it_leaves_a_gpu_that_old_and_new_columns_would_fill(monkeypatch, caplog, schedule, most_rows, share, device):
    free_bytes = int(most_rows * ROW_BYTES / share)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, 10 * free_bytes))
    assert pick_replay_device(GPU, schedule, 5, (7, 9)) == device
    assert ("kept in host memory" in caplog.text) == (device == CPU)
