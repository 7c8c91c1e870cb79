"""The examples of parts train, by the names that their commands give them, and do as they say."""

from __future__ import annotations

import argparse
import ast
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium.utils.env_checker import check_env
from tensordict import TensorDict

from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.parts import load_part
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.telemetry.loggers import open_loggers
from trackmania_rl.training.hooks.checkpoints import state_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(example: str) -> tuple[str, tuple[str, ...]]:
    """The configuration and the settings of the command that an example's docstring prints."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{example}.py").read_text(encoding="utf-8"))) or ""
    words = shlex.split(docstring.partition("scripts/train.py ")[2].partition("\n\n")[0])
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config_files/config.py")
    parser.add_argument("--set", action="append")
    arguments = parser.parse_args(words)
    return Path(arguments.config).name, tuple(arguments.set)


PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reward": printed("steady_reward"),
    "float": printed("slip_angle"),
    "network": printed("small_network"),
    "agent": printed("soft_q_agent"),
    "environment": printed("hovering"),
    "cartpole": ("config_cartpole.py", ()),
    "pendulum": ("config_pendulum.py", ("batch_size=16", "sampling=asynchronous")),
    "previous reward": (
        "config_pendulum.py",
        (*printed("previous_reward")[1], "batch_size=16", "sampling=asynchronous"),
    ),
    "running normalization": (
        "config_cartpole.py",
        (*printed("running_normalization")[1], "send_shared_network_every_n_batches=1"),
    ),
    "hook": printed("speed_hook"),
    "rounds": printed("rounds"),
    "memory": printed("disk_memory"),
    "sac": ("config_sac.py", ()),
    "discrete sac": ("config_discrete_sac.py", ()),
    "ppo": ("config_ppo.py", ("sampling=asynchronous",)),
    "analog ppo": ("config_ppo.py", ("sampling=asynchronous", "actions=analog")),
}


@pytest.mark.parametrize("part", PARTS)
def test_it_trains(train_a_little: Callable[..., Any], part: str) -> None:
    config, overrides = PARTS[part]
    run = train_a_little(*overrides, config=config, n_races=8)
    assert run.context.agent.updates > 2
    if part == "hook":
        state = state_of(run.context)["hooks"]["LogSpeed"]
        assert state["highest_m_s"] > 5
        hook = load_part("examples.speed_hook:LogSpeed", "hooks")()
        hook.load_state_dict(state)
        assert hook.highest_m_s == state["highest_m_s"]
    if part == "memory":
        memory = run.context.memory
        assert not isinstance(memory, MiniRaceMemory)
        assert len(memory) == memory.buffer.write_count > memory.sample(3).batch_size[0] == 3
    if part == "running normalization":
        agent = run.context.agent
        updated, drives = agent.exploration_network.normalization, agent.evaluation_network.normalization
        assert updated.n_states == agent.updates * 16
        floats = updated(run.context.memory.sample(1000)["state_float"])
        assert (floats.mean(dim=0).abs() < 0.5).all()
        assert ((floats.std(dim=0) - 1).abs() < 0.5).all()
        assert drives.n_states > 0
    weights = run.context.agent.exploration_network.state_dict()
    assert all(tensor.isfinite().all() for tensor in weights.values() if tensor.is_floating_point())


def test_the_reward_charges_changes_of_keys(repository_root: Path) -> None:
    settings = load_settings(repository_root / "config_files" / "config.py")
    arguments = settings, race_spaces(settings), SeedTree(0)
    steady = load_part("examples.steady_reward:SteadyReward", "reward")(*arguments)
    race = {
        "state_float": np.zeros((6, race_spaces(settings).n_floats), dtype=np.float32),
        "meters_advanced_along_centerline": np.arange(6.0),
    }
    shipped = RaceReward(*arguments)(race | {"actions": np.zeros(5)}, settings, 0).rewards
    for actions in (np.array([0, 0, 3, 3, 1]), np.array([[0, 1], [0, 1], [0, 0], [0, 0], [1, 0]], dtype=np.float32)):
        rewards = steady(race | {"actions": actions}, settings, 0).rewards
        assert rewards.dtype == np.float32
        np.testing.assert_allclose(shipped - rewards, [0, 0, 0.003, 0, 0.003], atol=1e-6)


def test_the_float_is_the_angle_of_the_slide(repository_root: Path) -> None:
    settings = load_settings(repository_root / "config_files" / "config.py")
    games = load_part("examples.slip_angle:SlipAngle", "games")(settings)
    floats = np.zeros((3, games.spaces.n_floats - 1), dtype=np.float32)
    floats[:, games.layout["velocity_m_s"]] = [[10, 0, 10], [-5, 0, 0], [0.1, 0, 0]]
    np.testing.assert_allclose(games.extra_floats(floats), [[math.pi / 4], [-math.pi / 2], [0]], atol=1e-6)


@pytest.mark.parametrize("actions", ["keys", "analog"])
def test_the_learner_rebuilds_previous_actions(
    train_a_little: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, actions: str
) -> None:
    races = []
    monkeypatch.setattr(MiniRaceMemory, "extend", lambda _, race, *rest: races.append(race.copy()) or 0)
    config = {"keys": "config.py", "analog": "config_sac.py"}[actions]
    settings = train_a_little(f"actions={actions}", config=config, n_races=1).context.settings
    compressor = load_part("examples.action_history:DropActionHistory", "sample_compressor")(settings)
    (race,) = races
    for start in (0, 3):  # a whole race, and one whose first rows came in an earlier fragment
        columns = {name: column[start:] for name, column in race.columns.items()}
        sent = compressor.compress(columns)
        assert sent["state_float"].shape[1] < columns["state_float"].shape[1]
        rebuilt = compressor.decompress(sent)
        assert rebuilt.keys() == columns.keys()
        np.testing.assert_array_equal(rebuilt["state_float"], columns["state_float"], strict=True)


def test_the_environment_keeps_gymnasiums_rules() -> None:
    check_env(load_part("examples.hovering:Hovering", "games")())


def test_a_state_has_the_previous_reward(repository_root: Path) -> None:
    settings = load_settings(repository_root / "config_files" / "config_pendulum.py")
    builder = load_part("examples.previous_reward:PendulumGames", "games")(settings)
    games = builder.make_games(1, repository_root / "maps", np.random.default_rng(0))
    games.begin(0, settings.game.map_cycle[0])
    ids = np.array([0])
    for _ in range(4):
        games.send(ids, BatchDecision(np.ones((1, 1), np.float32), np.array([True]), np.zeros((1, 1), np.float32)))
    columns = games.under_way(0, range(5)).columns
    np.testing.assert_allclose(columns["state_float"][:, -1], [0, *columns["rewards"]])
    assert (columns["rewards"] < 0).all()
    games.close()


def test_the_agents_loss_is_the_soft_one() -> None:
    values = {0.0: torch.tensor([1.0, 2.0]), 1.0: torch.tensor([0.5, 0.5])}

    class Values(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, batch: TensorDict) -> TensorDict:
            rows = torch.stack([values[state] for state in batch["state_float"][:, 0].tolist()])
            return batch.set("action_value", rows * self.scale)

    loss = load_part("examples.soft_q_agent:SoftQLoss", "agent")(Values(), 0.9)
    after = {
        "state_float": torch.tensor([[1.0], [1.0]]),
        "reward": torch.tensor([[0.25], [0.25]]),
        "terminated": torch.tensor([[False], [True]]),
    }
    batch = TensorDict(
        {
            "state_float": torch.zeros(2, 1),
            "action": torch.tensor([0, 1]),
            "next": after,
            "steps_to_next_obs": torch.tensor([[2], [2]]),
        },
        batch_size=[2],
    )
    soft = 0.5 + 0.01 * math.log(2)
    errors = [0.25 + 0.9**2 * soft - 1.0, 0.25 - 2.0]
    assert loss(batch)["loss"].item() == pytest.approx(np.mean(np.square(errors)), rel=1e-5)
    np.testing.assert_allclose(batch["td_error"][:, 0], np.abs(errors), rtol=1e-5)


def crops(img: torch.Tensor, max_shift_px: int) -> dict[tuple[int, int], torch.Tensor]:
    """Every crop (S, H, W) of one image that was padded with its border, by (down, right)."""
    padded = F.pad(img[None].float(), (max_shift_px,) * 4, mode="replicate")[0].to(img.dtype)
    height, width = img.shape[1:]
    span = range(2 * max_shift_px + 1)
    return {(y, x): padded[:, y : y + height, x : x + width] for y in span for x in span}


def test_the_transform_shows_each_image_as_a_crop_of_itself_padded() -> None:
    torch.manual_seed(0)
    img, floats = torch.randint(256, (11, 3, 7, 9), dtype=torch.uint8), torch.randn(11, 2)
    batch = TensorDict({"state_img": img, "next_state_img": img, "state_float": floats}, batch_size=11)
    shifted = load_part("examples.image_shifts:ImageShifts", "transforms")(max_shift_px=2)(batch.clone())
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


def test_the_logger_writes_each_figure_as_a_line(repository_root: Path, tmp_path: Path) -> None:
    named = {"loggers": "examples.table_logger:TableLogger", "seed": 7}
    settings = load_settings(repository_root / "config_files" / "config.py", named)
    folder = RunFolder.create(tmp_path, "told")
    for frames in (100, 200):
        (logger,) = open_loggers(settings, folder, resumed_at_frame=frames - 100)
        values = {"learner/loss": 0.25, "meters/explored/valley": 30.0}
        logger.do("figures", values, frames)
        logger.close()
    lines = (folder.path / "figures.txt").read_text().splitlines()
    assert lines.count("setting\tseed\t7") == 2
    assert [line for line in lines if not line.startswith("setting")] == [
        f"{frames}\t{figure}"
        for frames in (100, 200)
        for figure in ("learner/loss\t0.25", "meters/explored/valley\t30")
    ]
