"""Hooks, networks, memories and transforms of a user, in a file beside the configuration."""

import copy
import functools
import logging
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.weights import packed
from trackmania_rl.channels.run_state import NO_WEIGHTS
from trackmania_rl.drivers.loading import load_weights
from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.parts import load_part
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.training.building import make_configured_memory, make_hooks
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.hook import Hook

from .conftest import edit

MY_HOOKS = """
from trackmania_rl.training.hooks.hook import Hook

class LogSpeed(Hook):
    n_races = 0
    def on_race(self, race):
        self.n_races += 1
        return {"mine/speed": race.columns["speed"].mean(), "mine/races": self.n_races}
    def state_dict(self):
        return {"n_races": self.n_races}
    def load_state_dict(self, state):
        self.n_races = state["n_races"]

class NoHook:
    pass

class Greedy(Hook):
    def __init__(self, wants_an_argument):
        pass
"""
MY_NETWORK = """
import torch
from torch import nn
from trackmania_rl.agents.iqn import QuantileNetwork

class NoQuantileNetwork(nn.Linear):
    def __init__(self, settings, sizes, generator):
        super().__init__(3, 4)

class Needy(QuantileNetwork):
    def __init__(self, settings, sizes):
        super().__init__(settings, sizes)

class ManyKinds(QuantileNetwork):
    def __init__(self, settings, sizes, generator):
        super().__init__(settings, sizes)
        self.frozen = nn.Linear(len(sizes.float_mean), 8).requires_grad_(False)
        self.unbiased = nn.Linear(8, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.bounded = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.returns = nn.Linear(8, sizes.n_actions)
        self.register_buffer("replaced", torch.zeros(1))
        self.initialize(generator)

    last_layers = property(lambda self: [self.returns])

    def forward(self, img, floats, tau):
        if self.training:
            self.replaced = self.replaced + 1
        hidden = self.bounded(self.norm(self.unbiased(self.frozen(self.normalized(floats)))))
        return self.returns(hidden.unsqueeze(1) * tau.unsqueeze(2))
"""
MY_MEMORIES = """
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.seeds import SeedTree
from trackmania_rl.training.building import make_memory

def torchrls(settings, spaces, seeds):
    return MiniRaceMemory(*(TensorDictReplayBuffer(storage=LazyTensorStorage(10)) for _ in range(2)), settings)

def of_two_rings(settings, spaces, seeds):
    one, other = (make_memory(settings, spaces, SeedTree(seed)) for seed in (1, 2))
    return MiniRaceMemory(one.buffer, other.buffer_test, settings)

def none(settings, spaces, seeds):
    return None
"""
MY_TRANSFORMS = """
from torchrl.envs.transforms import RewardScaling

def ten_times():
    return RewardScaling(loc=1.0, scale=10.0, in_keys=["reward"])
"""


@pytest.fixture
def write_parts(tmp_path, live, monkeypatch):
    """`write_parts(text)` puts `my_parts.py` beside the configuration."""
    (tmp_path / "config").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "config"), *sys.path])

    def write(text):
        (tmp_path / "config" / "my_parts.py").write_text(text)
        monkeypatch.delitem(sys.modules, "my_parts", raising=False)

    return write


def test_a_hook_of_ten_lines_logs_and_is_resumed(write_parts, live, make_run, make_race, caplog):
    write_parts(MY_HOOKS)
    before = make_run()
    assert before.hook(SaveCheckpoints).try_to_save()
    before.close_files()
    edit(live, hooks=("my_parts:LogSpeed",), tensorboard_interval_s=1e-9)
    races = [make_race(17, True), make_race(23, False), make_race(31, True)]
    for race in races:
        race.columns["speed"] = np.full(len(race.columns["actions"]), 40.0, dtype=np.float32)
    run = make_run(make_hooks(live.current))
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["the checkpoint has no hook LogSpeed, which starts with an empty state"]
    run.train_on(races[:2])
    assert run.hook(SaveCheckpoints).try_to_save()
    run.close_files()
    resumed = make_run(make_hooks(live.current))
    resumed.train_on(races[2:])
    resumed.close_files()
    events = EventAccumulator(str(run.context.folder.tensorboard)).Reload()
    written = {  # sorted, as the sessions' files may have the same second in their names
        name: sorted((event.step, event.value) for event in events.Scalars(f"mine/{name}"))
        for name in ("speed", "races")
    }
    assert written == {"speed": [(17, 40), (40, 40), (71, 40)], "races": [(17, 1), (40, 2), (71, 3)]}


class AtEveryPoint(Hook):
    """Counts its calls, and checks the arguments."""

    def __init__(self, floats, frames):
        self.calls = Counter()
        self.floats, self.frames = floats, frames
        self.batch_size = 13

    def _n_stored(self):
        memory = self.run.memory
        assert isinstance(memory, MiniRaceMemory)
        return len(memory.buffer) + len(memory.buffer_test)

    def _check_batch(self, point, batch):
        self.calls[point] += 1
        assert batch["state_float"].shape == (self.batch_size, self.floats.shape[1])
        assert batch["action"].shape == batch["reward"].shape == (self.batch_size,)

    def on_race(self, race):
        self.calls["on_race"] += 1
        np.testing.assert_array_equal(race.columns["state_float"], self.floats)
        np.testing.assert_array_equal(race.columns["frames"], self.frames)
        assert race.rewards.shape == (race.n_actions,)
        assert race.potentials.shape == (race.n_actions + 1,)
        assert race.facts.map_name == "valley"
        assert self._n_stored() == 60 * (self.calls["on_race"] - 1), "the race is stored afterwards"

    def before_updates(self):
        self.calls["before_updates"] += 1
        assert self._n_stored() == 60 * self.calls["on_race"]

    def on_batch(self, batch):
        self._check_batch("on_batch", batch)

    def on_update(self, batch, losses):
        self._check_batch("on_update", batch)
        assert batch["td_error"].shape == (self.batch_size,)
        assert bool((batch["td_error"] > 0).any())
        assert 0 < losses["loss"].detach().item() < np.inf
        assert 0 < losses["grad_norm"].item() < np.inf
        return {"mine/error": batch["td_error"].mean()}

    def after_updates(self):
        self.calls["after_updates"] += 1


def test_hook_receives_the_values_of_each_point(make_run, make_race):
    race = make_race(60, True)
    hook = AtEveryPoint(race.columns["state_float"], race.columns["frames"])
    run = make_run([hook])
    run.train_on([race, race])
    updates = run.agent.updates
    assert updates > 5
    of_races = ("on_race", "before_updates", "after_updates")
    assert hook.calls == dict.fromkeys(of_races, 2) | dict.fromkeys(("on_batch", "on_update"), updates)


class LacksAnArgument(Hook):
    def on_race(self):
        pass


def test_a_hook_that_lacks_an_argument_is_refused_in_one_line(make_run):
    with pytest.raises(UserError, match=r"hooks: LacksAnArgument\.on_race cannot be called with \(race\): too many"):
        make_run([LacksAnArgument()])


def make_network_of(settings):
    return IQN(settings, race_spaces(settings), SeedTree(1)).make_network()


def make_memory_of(settings):
    return make_configured_memory(settings, race_spaces(settings), SeedTree(1))


@pytest.mark.parametrize(
    ("setting", "make", "name", "message"),
    [
        ("hooks", make_hooks, "NoHook", r"hooks: a NoHook is no hook; derive it from Hook \(trackm"),
        ("hooks", make_hooks, "Greedy", r"'my_parts:Greedy' cannot be called without arguments: .*wants_an_argument"),
        ("network", make_network_of, "NoQuantileNetwork", r"network = .* made a NoQuantileNetwork; derive it from"),
        ("network", make_network_of, "Needy", r"Needy' cannot be called with \(settings, sizes, generator\): "),
        ("network", make_network_of, "Missing", r"my_parts\.py has no Missing"),
        ("memory", make_memory_of, "torchrls", r"have different rings; make both by one make_buffers"),
        ("memory", make_memory_of, "of_two_rings", r"have different rings; make both by one make_buffers"),
        ("memory", make_memory_of, "none", r"memory = 'my_parts:none' made a NoneType; derive it from Memory"),
    ],
)
def test_a_wrong_part_is_refused_in_one_line(write_parts, live, setting, make, name, message):
    write_parts({"hooks": MY_HOOKS, "network": MY_NETWORK, "memory": MY_MEMORIES}[setting])
    edit(live, **{setting: (f"my_parts:{name}",) if setting == "hooks" else f"my_parts:{name}"})
    with pytest.raises(UserError, match=message) as caught:
        make(live.current)
    assert "\n" not in str(caught.value)


def test_all_weights_of_a_network_drive_and_those_that_learn_are_learned(write_parts, live, make_run, make_race):
    """Buffers of each kind, a frozen layer, and one without bias."""
    write_parts(MY_NETWORK)
    edit(live, network="my_parts:ManyKinds")
    run, network = make_run(), make_network_of(live.current)
    first = copy.deepcopy(run.agent.exploration_network.state_dict())
    run.agent.reset_partially()
    run.train_on([make_race(60, True) for _ in range(3)])
    assert run.hook(SaveCheckpoints).try_to_save()
    online, averaged = run.agent.exploration_network.state_dict(), run.agent.averaged_network.state_dict()
    target = run.agent.loss_module.target.state_dict()
    kept = {"frozen.weight", "frozen.bias"}
    for name, weight in online.items():
        assert torch.equal(weight, first[name]) == (name in kept), name
        for mean in (averaged[name], target[name]):
            assert torch.equal(mean, first[name]) == (name in kept), name
    assert online["norm.num_batches_tracked"] == run.agent.updates
    run.run_state.publish(
        weights={"exploration": run.agent.exploration_network, "evaluation": run.agent.evaluation_network}
    )
    for kind, weights in (("exploration", online), ("evaluation", averaged)):
        run.run_state.pull_weights(kind, network, NO_WEIGHTS)
        assert all(torch.equal(weight, weights[name]) for name, weight in network.state_dict().items())
    driver = load_weights(run.context.folder.path, live.current)
    assert all(torch.equal(weight, averaged[name]) for name, weight in driver.weights.items())


def test_transforms_act_on_batches(write_parts, live, make_run, make_race):
    write_parts(MY_TRANSFORMS)
    race = make_race(60, True)
    plain = make_run(name="plain")
    edit(live, transforms=("my_parts:ten_times",))
    transformed = make_run(name="transformed")
    for run in (plain, transformed):
        run.train_on([race])
    one, other = plain.buffer.sample(), transformed.buffer.sample()
    torch.testing.assert_close(other["reward"], one["reward"] * 10.0 + 1.0)
    assert torch.equal(other["state_float"], one["state_float"])
    assert plain.agent.updates == transformed.agent.updates > 0
    assert not torch.equal(*(packed(run.agent.exploration_network) for run in (plain, transformed)))


def test_rounds_are_logged_resumed_and_end_the_training_after_the_last_epoch(live, make_run, make_race, logger):
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    epochs = []
    make_rounds = functools.partial(
        load_part("examples.rounds:Rounds", "hooks"),
        steps=10,
        rounds=1,
        epochs=2,
        agent_scheduler=lambda *_: epochs.append(_),
    )
    run = make_run([make_rounds()])
    run.train_on([make_race(50, True, meters=300.0)])
    assert run.hook(SaveCheckpoints).try_to_save()
    run.train_on([make_race(50, True, meters=700.0)])  # which is lost
    assert epochs == [(run.agent, 0), (run.agent, 1)]
    logger.calls.clear()
    resumed = make_run([make_rounds()])
    resumed.train_on([make_race(50, True, meters=500.0), make_race(50, False, meters=900.0, is_explo=False)])
    for _ in range(3):
        resumed.put(make_race(50, True))
    resumed.train()
    logged = [
        (step, name.removeprefix("round/"), value)
        for values, step in logger.of("figures")
        for name, value in values.items()
        if name.startswith("round/")
    ]
    means = {(step, name): value for step, name, value in logged}
    assert means[100, "explored_meters"] == 400
    assert means[100, "explored_time_s"] == 2.5
    assert means[100, "loss"] > 0 < means[100, "grad_norm"]
    assert means[200, "evaluated_meters"] == 900
    assert means[200, "evaluated_finished"] == 0
    assert resumed.agent.updates == 20, "of the 30 that its races allow"
