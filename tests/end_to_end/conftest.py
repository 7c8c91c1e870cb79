"""The training command as its users have it: a process, its children, its files."""

import pytest

from benchmarks.training_command import TrainCommand

SMALL = {
    "use_torch_compile": False,  # a quarter of a minute for each of many short runs
    # Sizes that all differ, also from the 12 actions and from a head's width (9, half of 18): a swapped axis fails.
    "float_hidden_dim": 11,
    "dense_hidden_dimension": 18,
    "iqn_embedding_dimension": 7,
    "iqn_n": 4,
    "iqn_k": 6,
    "batch_size": 23,
    "games_per_collector": 2,
    "memory_size_schedule": "((0, 5000),)",
    "memory_size_start_learn_schedule": "((0, 300),)",
    "number_times_single_memory_is_used_before_discard": 2.0,
    "cutoff_race_longer_than_ms": 15_000,
}


def settings_words():
    """The small settings as words of a command line."""
    settings = {"run_name": "tested", "terminal_view": "off", **SMALL}
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def start_training():
    """`start_training(folder, options=(...), name=value, ...)` starts the command; all end with the module."""
    commands = []

    def start(folder, options=(), environment=None, **settings):
        commands.append(TrainCommand(folder, {**SMALL, **settings}, options, environment))
        return commands[-1]

    yield start
    for command in commands:
        command.end()
