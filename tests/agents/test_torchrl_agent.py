"""Agents of torchrl's losses: they act within the space, learn a known answer, and resume to the byte."""

import copy
import io

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tensordict import TensorDict
from tensordict.nn import set_interaction_type
from tensordict.nn.probabilistic import InteractionType
from torch.nn.utils import parameters_to_vector
from torchrl.objectives import ReinforceLoss, SACLoss

from trackmania_rl.agents import torchrl_agent
from trackmania_rl.agents.actor_critic import StateNetwork
from trackmania_rl.agents.builder import check_decision
from trackmania_rl.agents.inference import GREEDY, Exploration
from trackmania_rl.agents.torchrl_agent import FOR_NUMBERS, ON_POLICY, TorchRLAgent
from trackmania_rl.agents.weights import move_weights, not_finite_tensors, packed
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import SettingsError

from .conftest import needs_gpu

BATCH, FLOATS, CHOICES, NUMBERS = 11, 5, 7, 3
LOSSES = tuple(torchrl_agent.NETWORKS)
EXPLORED = Exploration(epsilon=0.5, epsilon_boltzmann=0.0, throttle_probability=None)


@pytest.fixture
def settings(default_settings):
    changes = {
        "float_hidden_dim": 13,
        "gamma_schedule": ((0, 0.9),),
        "conv_channels": (2, 4),
        "conv_kernel_sizes": (4, 3),
        "conv_strides": (2, 2),
        "evaluation_weights_decay": 0.5,
        "soft_update_tau": 0.05,
        "clip_grad_norm": 10.0,
    }
    run = default_settings.run.model_copy(update={"torch_device": "cpu"})
    agent = default_settings.agent.model_copy(update=changes)
    return default_settings.model_copy(update={"run": run, "agent": agent})


def spaces_for(loss, *, has_image=False, is_analog=False):
    low, high = np.array([-1.0, 0.0, -2.0], dtype=np.float32), np.array([1.0, 1.0, 4.0], dtype=np.float32)
    return Spaces(
        float_mean=(0.0, *[0.5] * (FLOATS - 1)),
        float_std=(1.0, *[2.0] * (FLOATS - 1)),
        action=Box(low, high) if is_analog or loss in FOR_NUMBERS else Discrete(CHOICES),
        image_shape=(2, 17, 23) if has_image else (1, 0, 0),
    )


def builder_of(loss, settings, **how):
    return TorchRLAgent(settings, spaces_for(loss, **how), SeedTree(3), loss=loss)


def batch_of(spaces, seed=0, n=BATCH):
    generator = torch.Generator().manual_seed(seed)
    if isinstance(spaces.action, Discrete):
        action = torch.randint(CHOICES, (n,), generator=generator)
    else:
        low, high = torch.from_numpy(spaces.action.low), torch.from_numpy(spaces.action.high)
        action = low + (high - low) * torch.rand((n, NUMBERS), generator=generator)
    entries = {"action": action, "reward": torch.randn(n, generator=generator), "gamma_n": torch.full((n,), 0.9**2)}
    entries["gamma_n"][0] = 0.0
    entries |= {"n_steps": torch.full((n,), 2), "weight": torch.ones(n)}
    for name in ("advantage", "value_target"):  # of on-policy agents
        entries[name] = torch.randn((n, 1), generator=generator)
    entries["action_log_prob"] = torch.full((n,), -2.0)
    for state in ("state", "next_state"):
        entries[f"{state}_float"] = torch.randn((n, FLOATS), generator=generator)
        entries[f"{state}_img"] = torch.randint(256, (n, *spaces.image_shape), generator=generator, dtype=torch.uint8)
    return TensorDict(entries, batch_size=[n])


def learner_of(builder, settings):
    learner = builder.make_learner(builder.make_network())
    learner.apply_settings(settings.agent, learning_rate=1e-2)
    return learner


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("has_image", [False, True])
def test_actors_act_within_the_space(loss, settings, has_image):
    spaces, builder = spaces_for(loss, has_image=has_image), builder_of(loss, settings, has_image=has_image)
    actor = builder.make_actor(builder.make_network(), torch.device("cpu"), np.random.default_rng(1))
    check_decision(actor, spaces)
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (BATCH, *spaces.image_shape), dtype=np.uint8)
    floats = rng.standard_normal((BATCH, FLOATS)).astype(np.float32)
    greedy = actor.act_batch(frames, floats)
    assert greedy.is_greedy.all()
    np.testing.assert_array_equal(actor.act_batch(frames, floats).actions, greedy.actions)
    mixed = actor.act_batch(frames, floats, [GREEDY, *[EXPLORED] * (BATCH - 1)])
    assert mixed.is_greedy.tolist() == [True] + [False] * (BATCH - 1)
    np.testing.assert_array_equal(mixed.actions[0], greedy.actions[0])
    assert not np.array_equal(mixed.actions, greedy.actions)
    assert all(spaces.action.contains(action) for decision in (greedy, mixed) for action in decision.actions)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
@pytest.mark.parametrize("loss", LOSSES)
def test_updates_move_the_network_that_drives(loss, settings, device):
    settings = settings.model_copy(update={"run": settings.run.model_copy(update={"torch_device": device})})
    builder = builder_of(loss, settings)
    learner, batch = learner_of(builder, settings), batch_of(spaces_for(loss))
    before = parameters_to_vector(learner.exploration_network.parameters()).detach()
    losses = learner.update(batch)
    after = parameters_to_vector(learner.exploration_network.parameters()).detach()
    assert after.isfinite().all()
    assert not torch.equal(before, after)
    assert losses["grad_norm"] > 0
    assert learner.explores_by_epsilon == (loss is torchrl_agent.DQNLoss)
    assert loss in ON_POLICY or batch["td_error"].shape == (BATCH,)
    layers = learner.layers()
    of_driver = {f"{tensor.shape}" for tensor in learner.exploration_network.parameters()}
    assert of_driver <= {f"{layer.weight.shape}" for layer in layers.values() if layer.gradient is not None}
    learner.average_weights()
    averaged = parameters_to_vector(learner.evaluation_network.parameters())
    torch.testing.assert_close(averaged, before.lerp(after, 10 / 11))
    learner.returns_at(batch["state_img"], batch["state_float"], torch.full((1,), 0.5))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_resumed_agent_makes_the_same_bytes(loss, settings):
    builder, spaces = builder_of(loss, settings), spaces_for(loss)
    straight, half = learner_of(builder, settings), learner_of(builder, settings)
    for seed in range(2):
        straight.update(batch_of(spaces, seed))
        half.update(batch_of(spaces, seed))
    half.average_weights()
    straight.average_weights()
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    torch.rand(3)  # nobody else's draws count
    resumed = learner_of(builder, settings)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(2, 4):
        straight.update(batch_of(spaces, seed))
        resumed.update(batch_of(spaces, seed))
    assert resumed.updates == straight.updates == 4
    for one, other in zip(straight.loss_module.parameters(), resumed.loss_module.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(*(packed(learner.evaluation_network) for learner in (straight, resumed)))


def test_targets_are_those_of_n_steps(settings):
    """The Q networks' loss against SAC's target: reward + gamma^n (1 - end) (min Q' - alpha log pi)."""
    loss = SACLoss
    learner = learner_of(builder_of(loss, settings), settings)
    inner = learner.loss_module.loss
    batch = batch_of(spaces_for(loss))
    state = learner.loss_module.random_state.state
    given = learner.loss_module(batch)["loss_qvalue"]
    learner.loss_module.random_state.state = state
    as_torchrl = learner.loss_module._as_torchrl_has_it(batch)
    assert as_torchrl["next", "terminated"].squeeze(1).tolist() == [True] + [False] * (BATCH - 1)
    with learner.loss_module.random_state(), torch.no_grad():
        after = as_torchrl["next"].clone(False)
        with inner.actor_network_params.to_module(inner.actor_network):
            dist = inner.actor_network.get_dist(after)
            action = dist.rsample()
        alpha_log_pi = inner._alpha * dist.log_prob(action)
        after["action"] = action
        next_value = inner._vmap_qnetworkN0(after, inner.target_qvalue_network_params)["state_action_value"]
        bootstrap = next_value.min(0)[0].squeeze(-1) - alpha_log_pi
        target = batch["reward"] + batch["gamma_n"] * bootstrap
        predicted = inner._vmap_qnetworkN0(as_torchrl, inner.qvalue_network_params)["state_action_value"].squeeze(-1)
        expected = torch.nn.functional.smooth_l1_loss(predicted, target.expand_as(predicted), reduction="none").sum(0)
    torch.testing.assert_close(given, expected.mean())


@pytest.mark.parametrize("name", ["SAC", "DiscreteSAC"])
def test_it_learns_a_known_answer(name, settings):
    """The reward is the action's first number, or whether it is the action 4: every episode ends after one action."""
    make = getattr(torchrl_agent, name)
    loss = make.keywords["loss"]
    spaces = spaces_for(loss)
    builder = make(settings, spaces, SeedTree(1), **({} if name == "SAC" else {"target_entropy_weight": 0.1}))
    learner = learner_of(builder, settings)
    for step in range(150):
        batch = batch_of(spaces, seed=step, n=64)
        action = batch["action"]
        batch["reward"] = action[:, 0] if name == "SAC" else (action == 4).float()
        batch["gamma_n"] = torch.zeros(64)
        learner.update(batch)
    actor = builder.make_actor(learner.exploration_network, torch.device("cpu"), np.random.default_rng(1))
    floats = np.random.default_rng(3).standard_normal((BATCH, FLOATS)).astype(np.float32)
    actions = actor.act_batch(np.zeros((BATCH, 1, 0, 0), dtype=np.uint8), floats).actions
    assert (actions[:, 0] > 0.5).all() if name == "SAC" else (actions == 4).all()


@pytest.mark.parametrize("loss", ON_POLICY)
@pytest.mark.parametrize("is_analog", [False, True])
def test_on_policy_agents_learn_from_their_actors_actions(loss, is_analog, settings):
    """Of one-step episodes with the actor's own actions: log-probabilities, advantages, and the learned policy."""
    spaces = spaces_for(loss, is_analog=is_analog)
    builder = TorchRLAgent(settings, spaces, SeedTree(1), loss=loss)
    learner = learner_of(builder, settings)
    actor = builder.make_actor(learner.exploration_network, torch.device("cpu"), np.random.default_rng(1))
    no_frames = np.zeros((64, 1, 0, 0), dtype=np.uint8)
    for step in range(200):
        batch = batch_of(spaces, seed=step, n=64).exclude("advantage", "value_target", "action_log_prob")
        decision = actor.act_batch(no_frames, batch["state_float"].numpy(), [EXPLORED] * 64)
        assert np.isnan(decision.q_values).all(), "the logits of a policy are no values"
        batch["action"] = torch.from_numpy(decision.actions)
        batch["action_log_prob"] = torch.from_numpy(decision.action_log_prob)
        batch["reward"] = batch["action"][:, 0] if is_analog else (batch["action"] == 4).float()
        batch.update({"gamma_n": torch.zeros(64), "n_steps": torch.ones(64), "done": torch.ones(64, dtype=torch.bool)})
        batch = learner.estimate_advantages(batch)
        if step == 0:
            as_torchrl = learner.loss_module._as_torchrl_has_it(batch)
            log_prob = learner.exploration_network.get_dist(as_torchrl).log_prob(as_torchrl["action"])
            torch.testing.assert_close(batch["action_log_prob"], log_prob, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(batch["value_target"].squeeze(1), batch["reward"])
            value = learner.loss_module.loss.critic_network(as_torchrl.clone())["state_value"]
            torch.testing.assert_close(batch["advantage"], batch["reward"].unsqueeze(1) - value)
        learner.update(batch)
    actions = actor.act_batch(no_frames, batch_of(spaces, seed=3, n=64)["state_float"].numpy()).actions
    assert (actions[:, 0] > 0.5).all() if is_analog else (actions == 4).all()


@pytest.mark.parametrize("loss", ON_POLICY)
def test_on_policy_networks_begin_orthogonal_and_choose_all_actions_alike(loss, settings):
    spaces = spaces_for(loss, is_analog=False)
    actor = TorchRLAgent(settings, spaces, SeedTree(1), loss=loss).make_network()
    first, *_, last = (module for module in actor.modules() if isinstance(module, torch.nn.Linear))
    narrow = min(first.weight.shape)
    product = first.weight @ first.weight.T if first.weight.shape[0] == narrow else first.weight.T @ first.weight
    torch.testing.assert_close(product, 2 * torch.eye(narrow), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(module, torch.nn.ReLU) for module in actor.modules())
    assert last.weight.abs().max() < 0.01
    assert not last.bias.any()


@pytest.mark.parametrize("loss", [SACLoss, torchrl_agent.DQNLoss, torchrl_agent.ClipPPOLoss, torchrl_agent.DDPGLoss])
def test_observations_are_normalized_by_their_running_figures(loss, settings):
    spaces = spaces_for(loss)
    builder = TorchRLAgent(settings, spaces, SeedTree(3), loss=loss, normalize_observations=True)
    learner, seen = learner_of(builder, settings), []
    for seed in range(5):
        batch = batch_of(spaces, seed)
        batch["state_float"] = batch["state_float"] * torch.tensor([0.0, 1, 10, 100, 1000]) + 7
        seen.append(batch["state_float"])
        losses = learner.update(batch)
    floats = torch.cat(seen)
    mean, std = floats.mean(dim=0), floats.std(dim=0, correction=0)
    std[0] = 1.0  # of a constant
    running = learner.exploration_network.normalization
    torch.testing.assert_close((running.mean, running.std), (mean, std), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((losses["observation_mean"], losses["observation_std"]), (mean.abs().mean(), std.mean()))
    assert running.n_states == 5 * BATCH
    # It is published with the weights, and restored with the state.
    network = builder.make_network()
    move_weights(network, learner.exploration_network, share=1.0)
    actor = builder.make_actor(network, torch.device("cpu"), np.random.default_rng(1))
    actions = actor.act_batch(np.zeros((BATCH, 1, 0, 0), np.uint8), seen[0].numpy()).actions
    with set_interaction_type(InteractionType.DETERMINISTIC):
        normalized = TensorDict({"state_float": (seen[0] - mean) / std}, [BATCH])
        expected = learner.exploration_network(normalized)["action"].detach().numpy()
    np.testing.assert_allclose(actions, expected, atol=1e-4)
    resumed = learner_of(builder, settings)
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    for one in (learner, resumed):
        one.update(batch_of(spaces, seed=9))
    assert torch.equal(*(packed(one.exploration_network) for one in (learner, resumed)))


class Doubled(torch.nn.Module):
    """A critic of one's own, beside the actor that ships."""

    def __init__(self, settings, spaces, role):
        super().__init__()
        self.linear = torch.nn.Linear(spaces.n_floats + role.n_action_numbers, role.n_outputs)

    def forward(self, floats, *action):
        return 2 * self.linear(torch.cat((floats, *action), dim=-1))


def own_critic(settings, spaces, role):
    return (StateNetwork if role.name == "actor" else Doubled)(settings, spaces, role)


@pytest.mark.parametrize("loss", LOSSES)
def test_networks_may_be_ones_own(loss, settings):
    agent = settings.agent.model_copy(update={"network": f"{__name__}:own_critic"})
    settings = settings.model_copy(update={"agent": agent})
    builder = builder_of(loss, settings)
    learner = learner_of(builder, settings)
    assert learner.update(batch_of(spaces_for(loss)))["grad_norm"] > 0
    assert any("linear.weight" in name for name in learner.layers())
    same = builder_of(loss, settings).make_network()
    assert torch.equal(packed(same), packed(builder.make_network()))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_gradient_that_is_not_finite_moves_no_weights_to_nowhere(loss, settings):
    builder = builder_of(loss, settings)
    learner = learner_of(builder, settings)
    batch = batch_of(spaces_for(loss), seed=1)
    batch["reward"][3] = batch["advantage"][3] = torch.nan
    losses = learner.update(batch)
    assert not torch.isfinite(losses["grad_norm"])
    assert not_finite_tensors(learner.state_dict()) == []
    assert torch.isfinite(learner.update(batch_of(spaces_for(loss), seed=2))["grad_norm"])
    assert not_finite_tensors(learner.state_dict()) == []


TWO_DISCOUNTS = {"gamma_schedule": ((0, 0.9), (1, 0.9))}


@pytest.mark.parametrize(
    ("loss", "options", "changes", "message"),
    [
        (SACLoss, {}, {}, r"SACLoss is for actions that are numbers, .* but the games take Discrete\(7\)"),
        (ReinforceLoss, {}, {}, r"TorchRLAgent\(loss=ReinforceLoss\): choose one of SACLoss, "),
        (torchrl_agent.DQNLoss, {"dubble_dqn": True}, {}, "DQNLoss has no option dubble_dqn"),
        (
            torchrl_agent.DQNLoss,
            {},
            TWO_DISCOUNTS,
            r"gamma_schedule = .* one discount all the time; set gamma_schedule =",
        ),
        (torchrl_agent.DQNLoss, {}, {"demonstrations_margin": 0.1}, "demonstrations_margin: DQNLoss has no margin"),
    ],
)
def test_misfits_are_named(settings, loss, options, changes, message):
    changes = {"gamma_schedule": ((0, 0.9),)} | changes
    settings = settings.model_copy(update={"agent": settings.agent.model_copy(update=changes)})
    with pytest.raises(SettingsError, match=message):
        TorchRLAgent(settings, spaces_for(torchrl_agent.DQNLoss), SeedTree(0), loss=loss, **options)
