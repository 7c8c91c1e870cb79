"""Small states of runs, and their comparison."""

import numpy as np
import pytest
import torch

from trackmania_rl.experience_replay.ring_buffer import RowColumns
from trackmania_rl.runs.store import CheckpointStore

N_FLOATS = 5
IMAGE_SIZE_PX = (2, 3)


def make_state(number):
    """A state with all that one may hold, each of a size of its own."""
    torch.manual_seed(number)
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.RAdam(network.parameters())
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    return {
        "number": number,
        "agent": {
            "online": network.state_dict(),
            "averaged": {"weight": torch.full((3, 4), number, dtype=torch.bfloat16)},
            "optimizer": optimizer.state_dict(),
            "updates": 3 * number,
        },
        "numpy_rng": np.random.default_rng(number).bit_generator.state,  # holds integers of 128 bits
        "tensor": torch.full((100,), 2.625, dtype=torch.float64),
        "torch_rng": torch.get_rng_state(),
        "view": torch.arange(12).view(3, 4).T[1:],
        "empty": [torch.zeros(0, 7), torch.tensor(True), {}, [], ()],
        "maps": {"valley": {"best_time_ms": None, "times_ms": [31_250, 30_100]}, "flat": {"pair": (1, 2.5, -0.0)}},
        "odd": {"$tensor": 1, "a/b": {"c": torch.ones(1)}, "a": {"b/c": torch.zeros(2)}, 7: "é\n\0", "7": True},
        "infinite": [float("inf"), -float("inf"), 1e-320],
    }


def rows(first, n):
    """Rows whose every column tells their number."""
    numbers = torch.arange(first, first + n)
    columns = RowColumns.empty(n, N_FLOATS, IMAGE_SIZE_PX, torch.device("cpu"))
    for name, column in columns.by_name().items():
        per_row = column.flatten(1) if column.ndim > 1 else column[:, None]
        per_row[:] = (numbers[:, None] * 7 + torch.arange(per_row.shape[1]) + len(name)).to(column.dtype)
    return columns


def with_rows(state, ring):
    """The state of a run whose replay memory this is."""
    return state | {"replay": {"transitions_stored": 5, "memory": {"ring": ring.state_to_write()}}}


def ring_of(state):
    """The ring buffer's state in such a state."""
    ring = state["replay"]["memory"]["ring"]
    return ring


def assert_same(actual, expected):
    assert type(actual) is type(expected) or isinstance(expected, dict)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_same(*pair)
    else:
        assert repr(actual) == repr(expected)


def files_of(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def save(tmp_path):
    """`save(number)` writes the checkpoint of a state."""
    store = CheckpointStore(tmp_path)
    return lambda number, **how: store.save(make_state(number), 0, **how)
