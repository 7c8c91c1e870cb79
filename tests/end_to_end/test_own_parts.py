"""A network and a hook of a user, in a file beside the configuration, in a training with its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trackmania_rl.checkpoints import load_checkpoint
from trackmania_rl.settings.live import write_snapshot

pytestmark = pytest.mark.slow
"""Each part alone: tests/test_parts.py, tests/training/test_own_parts.py, tests/examples; a call: test_run_call.py."""

MY_PARTS = """
import torch
from torch import nn

from trackmania_rl.agents.iqn import QuantileNetwork
from trackmania_rl.training.hooks.hook import Hook


class SmallNetwork(QuantileNetwork):
    def __init__(self, settings, sizes, generator):
        super().__init__(settings, sizes)
        self.layers = nn.Sequential(
            nn.Linear(len(sizes.float_mean) + 1, 8), nn.LeakyReLU(), nn.Linear(8, sizes.n_actions)
        )
        self.initialize(generator)

    def forward(self, img, floats, tau):
        n_states, n_taus = len(floats), tau.shape[1]
        seen = self.normalized(floats).unsqueeze(1).expand(n_states, n_taus, -1)
        at = tau.expand(n_states, n_taus).unsqueeze(2)
        return self.layers(torch.cat((seen, at), dim=2)) + self.baseline(floats)[:, None, None]


class LogSpeed(Hook):
    n_races = 0

    def post_steps_log(self, race):
        self.n_races += 1
        return {"mine/races": self.n_races}

    def state_dict(self):
        return {"n_races": self.n_races}

    def load_state_dict(self, state):
        self.n_races = state["n_races"]
"""


@pytest.fixture(scope="module")
def commands(start_training: Any, tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> list[Any]:
    """Two commands, one after the other, with the configuration's two lines."""
    folder = tmp_path_factory.mktemp("own parts")
    config = write_snapshot(repository_root / "config_files" / "config.py", folder / "my configuration")
    with config.open("a") as file:
        file.write('network = "my_driving_parts:SmallNetwork"\nhooks = ("my_driving_parts:LogSpeed",)\n')
    (config.parent / "my_driving_parts.py").write_text(MY_PARTS)
    commands = []
    for max_frames in (500, 1000):
        options = ("--config", str(config), "--max-frames", str(max_frames))
        commands.append(start_training(folder, options, tensorboard_interval_s=1e-9))
        assert commands[-1].process.wait(120) == 0, commands[-1].output
    return commands


def test_both_commands_train_without_a_complaint(commands: list[Any]) -> None:
    for command in commands:
        assert "WARNING" not in command.output
        assert "Warning" not in command.output
        assert "a network of" in command.output
    assert "resumed" in commands[1].output


def test_the_network_is_the_runs(commands: list[Any]) -> None:
    state = load_checkpoint(commands[0].run_folder)
    assert state is not None
    assert state["agent"]["online"].keys() == {f"layers.{n}.{name}" for n in (0, 2) for name in ("weight", "bias")}
    assert state["agent"]["updates"] > 0


def test_the_hook_counts_on(commands: list[Any]) -> None:
    state = load_checkpoint(commands[0].run_folder)
    assert state is not None
    assert state["hooks"]["LogSpeed"] == {"n_races": len(commands[0].races)}
    events = EventAccumulator(str(commands[0].folder / "tensorboard" / "tested")).Reload()
    assert [event.value for event in events.Scalars("mine/races")] == list(range(1, len(commands[0].races) + 1))
