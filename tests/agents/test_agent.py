"""IQNAgent: its update against torch's own parts one by one, resuming to the byte, resets and averages."""

import contextlib
import copy
import io
import os
import shutil

import pytest
import torch
import torch._inductor.config
from tensordict import TensorDict, TensorDictBase
from torch import nn

from trackmania_rl.agents.agent import IQNAgent
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.iqn import (
    SelfLossScaling,
    Transitions,
    draw_taus,
    of_action,
    quantile_huber_loss,
    target_returns,
)

CPU = torch.device("cpu")


@pytest.fixture
def make_agent(agent_settings, make_network):
    def make(
        *,
        seed: int = 2,
        has_image: bool = False,
        device: torch.device = CPU,
        use_torch_compile: bool = False,
        **changes,
    ) -> IQNAgent:
        settings = agent_settings(**changes)
        network = make_network(settings, has_image=has_image)
        return IQNAgent(network, settings, device=device, seed=seed, use_torch_compile=use_torch_compile)

    return make


def update(agent: IQNAgent, batch: Transitions, learning_rate: float) -> TensorDictBase:
    """One update; returns its losses, with the batch's `td_error`."""
    agent.follow(agent.loss_module.settings, learning_rate)
    columns = as_columns(batch)
    losses = agent.update(columns)
    return TensorDict({**losses, "td_error": columns["td_error"]})


def as_columns(batch: Transitions) -> TensorDict:
    return TensorDict(batch._asdict(), batch_size=[len(batch.action)])


def loss_of_unseen(agent: IQNAgent, batch: Transitions) -> torch.Tensor:
    """The loss of transitions that are not trained on."""
    agent.loss_module.eval()
    with torch.no_grad():
        loss = agent.loss_module(as_columns(batch))["loss"]
    agent.loss_module.train()
    return loss


@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("use_ddqn", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_update_equals_its_parts_one_by_one(make_agent, make_batch, has_image, use_ddqn, multiplied):
    agent = make_agent(
        has_image=has_image,
        use_ddqn=use_ddqn,
        quantile_factors_multiply=multiplied,
        clip_grad_value=2.0,
        clip_grad_norm=3.0,
    )
    settings = agent.loss_module.settings
    online, target = copy.deepcopy(agent.loss_module.online), copy.deepcopy(agent.loss_module.target)
    optimizer = torch.optim.RAdam(
        online.parameters(), eps=settings.adam_epsilon, betas=(settings.adam_beta1, settings.adam_beta2)
    )
    scaling, generator = SelfLossScaling(), torch.Generator().manual_seed(2)
    was_clipped = False
    for step in range(8):
        batch = make_batch(seed=step, has_image=has_image)
        learning_rate = 1e-2 / (step + 1)
        losses = update(agent, batch, learning_rate)
        agent.target_updater.step()

        optimizer.zero_grad()
        taus = draw_taus(len(batch.action), settings, generator)
        targets = target_returns(online, target, batch, settings, taus)
        predictions = of_action(online(batch.state_img, batch.state_float, taus.prediction), batch.action)
        each = quantile_huber_loss(targets, predictions, taus.prediction, settings.iqn_kappa)
        total = (batch.weight * scaling(targets, taus.target, settings) * each).sum()
        total.backward()
        nn.utils.clip_grad_value_(online.parameters(), settings.clip_grad_value)
        norm = nn.utils.clip_grad_norm_(online.parameters(), settings.clip_grad_norm)
        was_clipped |= norm.item() > settings.clip_grad_norm
        optimizer.param_groups[0]["lr"] = learning_rate
        with torch.no_grad():  # decoupled weight decay
            for parameter in online.parameters():
                parameter.mul_(1 - learning_rate * settings.weight_decay_lr_ratio)
        optimizer.step()
        with torch.no_grad():
            for parameter, slow in zip(online.parameters(), target.parameters(), strict=True):
                slow.lerp_(parameter, settings.soft_update_tau)

        torch.testing.assert_close(losses["loss"], total.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(losses["grad_norm"], norm, rtol=1e-4, atol=1e-5)
        td_error = (targets.mean(dim=1) - predictions.mean(dim=1)).abs().detach()
        torch.testing.assert_close(losses["td_error"], td_error, rtol=1e-3, atol=1e-4)
    assert was_clipped
    for ours, plain in ((agent.loss_module.online, online), (agent.loss_module.target, target)):
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_it_learns_the_rewards_of_terminal_transitions(make_agent, make_batch):
    agent = make_agent()
    batch = make_batch(batch_size=11)
    batch.gamma_n.zero_()
    first = update(agent, batch, 1e-2)
    for _ in range(400):
        last = update(agent, batch, 1e-2)
    assert last["td_error"].mean() < 0.1 * first["td_error"].mean()
    assert agent.updates == 401


@pytest.mark.parametrize("expected_reward_per_action", [0.0, 0.8])
def test_it_learns_values_that_are_known(make_agent, make_batch, expected_reward_per_action):
    """A mini-race of 10 actions with rewards of 1, 0 and -1: best from here is 1 for each action left."""
    duration, rewards = 10, torch.tensor([1.0, 0.0, -1.0])
    agent = make_agent(
        float_hidden_dim=32,
        dense_hidden_dimension=64,
        target_action="argmax_of_mean",
        soft_update_tau=0.1,
        expected_reward_per_action=expected_reward_per_action,
    )
    for network in (agent.loss_module.online, agent.loss_module.target):
        network.mini_race_duration_actions = duration

    for step in range(500):
        batch = make_batch(seed=step, batch_size=64)
        elapsed = torch.randint(duration, (64,), generator=torch.Generator().manual_seed(step))
        batch.state_float[:, 0] = elapsed
        batch.next_state_float[:, 0] = elapsed + 1
        batch.reward[:] = rewards[batch.action]
        batch.gamma_n[:] = (elapsed + 1 < duration).float()
        update(agent, batch, 3e-3)
        agent.target_updater.step()

    states = make_batch(seed=0, batch_size=duration)
    states.state_float[:, 0] = torch.arange(duration)
    midpoints = ((torch.arange(8) + 0.5) / 8)[None]
    values = agent.loss_module.online(states.state_img, states.state_float, midpoints).mean(dim=1)
    actions_left = torch.arange(duration, 0, -1)
    expected = rewards[None, :] + (actions_left - 1)[:, None]
    assert (values - expected).abs().mean() < 0.3
    assert torch.all(values.argmax(dim=1) == 0)


def bytes_of(agent):
    file = io.BytesIO()
    torch.save(agent.state_dict(), file)
    return file.getvalue()


def test_a_resumed_agent_makes_the_same_bytes(make_agent, make_batch):
    straight, first_half, resumed = make_agent(), make_agent(), make_agent(seed=77)

    def run(agent, steps):
        for step in steps:
            update(agent, make_batch(seed=step), 1e-3)
            agent.target_updater.step()
            agent.average_weights()

    run(straight, range(9))
    run(first_half, range(4))
    resumed.load_state_dict(torch.load(io.BytesIO(bytes_of(first_half)), weights_only=True))
    run(resumed, range(4, 9))

    assert resumed.updates == straight.updates == 9
    assert bytes_of(resumed) == bytes_of(straight)
    assert torch.equal(loss_of_unseen(straight, make_batch(seed=50)), loss_of_unseen(resumed, make_batch(seed=50)))


def test_an_interrupted_rehearsal_leaves_no_trace(make_agent, make_batch, monkeypatch):
    interrupted, other = make_agent(), make_agent()
    whole_update = interrupted.update

    def update_until_ctrl_c(batch):
        whole_update(batch)
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, "update", update_until_ctrl_c)

    def interruptibly(work):
        with contextlib.suppress(KeyboardInterrupt):
            work()

    interrupted.rehearse_update(as_columns(make_batch(seed=2)), interruptibly)
    assert bytes_of(interrupted) == bytes_of(other)


def test_a_rehearsed_update_leaves_no_trace(make_agent, make_batch):
    rehearsed, other = make_agent(), make_agent()
    for agent in (rehearsed, other):
        update(agent, make_batch(seed=1), 1e-3)
    rehearsed.rehearse_update(as_columns(make_batch(seed=2)))
    assert bytes_of(rehearsed) == bytes_of(other)
    for agent in (rehearsed, other):
        update(agent, make_batch(seed=3), 1e-3)
    assert bytes_of(rehearsed) == bytes_of(other)


def test_a_checkpoint_from_another_kind_of_device_goes_on_from_its_weights(make_agent, make_batch):
    trained, resumed = make_agent(), make_agent(seed=77)
    update(trained, make_batch(), 1e-2)
    gpus_generator = torch.zeros(16, dtype=torch.uint8)
    resumed.load_state_dict(trained.state_dict() | {"device_type": "cuda", "generator": gpus_generator})
    assert torch.equal(flatten_parameters(resumed.loss_module.online), flatten_parameters(trained.loss_module.online))
    update(resumed, make_batch(seed=1), 1e-3)
    assert resumed.updates == 2


def test_evaluating_changes_no_weight_and_no_running_mean(make_agent, make_batch):
    agent = make_agent()
    update(agent, make_batch(), 1e-3)
    before = copy.deepcopy(agent.state_dict())
    loss = loss_of_unseen(agent, make_batch(seed=1))
    after = agent.state_dict()
    assert loss.ndim == 0
    assert not loss.requires_grad
    assert all(torch.equal(before["online"][key], after["online"][key]) for key in before["online"])
    assert before["scaling"] == after["scaling"]
    assert before["updates"] == after["updates"]


def test_changed_optimizer_settings_take_effect_also_after_loading(make_agent, make_batch):
    def weights_after_a_change(epsilon, reload):
        agent = make_agent()
        for step in range(8):  # RAdam uses its epsilon from the sixth step on
            update(agent, make_batch(seed=step), 1e-3)
        agent.loss_module.settings = agent.loss_module.settings.model_copy(update={"adam_epsilon": epsilon})
        if reload:
            agent.load_state_dict(copy.deepcopy(agent.state_dict()))
        update(agent, make_batch(seed=9), 1e-3)
        return flatten_parameters(agent.loss_module.online).clone()

    unchanged = weights_after_a_change(1e-4, reload=False)
    assert not torch.equal(unchanged, weights_after_a_change(0.5, reload=False))
    assert torch.equal(weights_after_a_change(0.5, reload=False), weights_after_a_change(0.5, reload=True))


def test_soft_update_moves_the_target_by_tau(make_agent, make_batch):
    agent = make_agent(soft_update_tau=0.25)
    update(agent, make_batch(), 1e-2)
    before = flatten_parameters(agent.loss_module.target).clone()
    agent.target_updater.step()
    expected = before + 0.25 * (flatten_parameters(agent.loss_module.online) - before)
    torch.testing.assert_close(flatten_parameters(agent.loss_module.target), expected)


def test_partial_reset_mixes_each_layer_by_its_share(make_agent, make_batch):
    agent = make_agent(overall_reset_mul_factor=0.0, last_layer_reset_mul_factor=1.0)
    update(agent, make_batch(), 1e-2)
    before = copy.deepcopy(agent.loss_module.online.state_dict())
    agent.reset_partially()
    for name, value in agent.loss_module.online.state_dict().items():
        is_last_layer = name.startswith(("A_head.2", "V_head.2"))
        assert torch.equal(value, before[name]) != is_last_layer, name
    weight = agent.loss_module.online.A_head[2].weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(3))  # fresh: orthogonal
    assert not agent.loss_module.online.A_head[2].bias.any()

    between = make_agent(overall_reset_mul_factor=0.5, last_layer_reset_mul_factor=0.0)
    bias = between.loss_module.online.iqn_fc[0].bias
    with torch.no_grad():
        bias.fill_(3.0)
    between.reset_partially()
    torch.testing.assert_close(bias.detach(), torch.full_like(bias, 1.5))


def test_resets_draw_from_the_seed(make_agent):
    agents = [make_agent(seed=seed, overall_reset_mul_factor=0.5) for seed in (5, 5, 6)]
    for agent in agents:
        agent.reset_partially()
    first, same, other = (flatten_parameters(agent.loss_module.online) for agent in agents)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_evaluation_weights_are_an_exponential_average(make_agent, make_batch):
    agent = make_agent(evaluation_weights_decay=0.5)
    average = flatten_parameters(agent.loss_module.online).clone()
    for share in (10 / 11, 10 / 12, 10 / 13, 10 / 14, 10 / 15, 10 / 16, 10 / 17, 10 / 18, 10 / 19, 0.5, 0.5, 0.5):
        update(agent, make_batch(), 1e-2)
        agent.average_weights()
        average = (1 - share) * average + share * flatten_parameters(agent.loss_module.online)
    torch.testing.assert_close(flatten_parameters(agent.evaluation_network), average)


def test_without_averaging_the_online_network_is_evaluated(make_agent):
    agent = make_agent(evaluation_weights_decay=0.0)
    assert agent.evaluation_network is agent.loss_module.online


def test_loaded_weights_are_in_all_networks_and_still_train(make_agent, make_network, make_batch, agent_settings):
    agent, trained = make_agent(), make_network(agent_settings(), seed=9)
    agent.load_weights(trained.state_dict())
    for network in (agent.loss_module.online, agent.loss_module.target, agent.evaluation_network):
        assert torch.equal(flatten_parameters(network), flatten_parameters(trained))
    update(agent, make_batch(), 1e-2)
    assert not torch.equal(flatten_parameters(agent.loss_module.online), flatten_parameters(trained))


def test_weights_of_another_size_are_refused(make_agent, make_network, agent_settings):
    other = make_network(agent_settings(float_hidden_dim=10))
    with pytest.raises(RuntimeError, match="size mismatch"):
        make_agent().load_weights(other.state_dict())


def test_a_processor_without_matrix_instructions_computes_in_float32(make_agent, make_batch, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    dtypes = ("float16", "bfloat16", "float32")
    losses = [update(make_agent(autocast_dtype=dtype), make_batch(), 1e-3)["loss"] for dtype in dtypes]
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_bfloat16_is_a_rougher_float32(make_agent, make_batch, monkeypatch, has_image, multiplied):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    options = {"has_image": has_image, "quantile_factors_multiply": multiplied, "use_layer_norm": not has_image}
    rough, exact = (make_agent(autocast_dtype=dtype, **options) for dtype in ("bfloat16", "float32"))
    for step in range(3):
        metrics = [update(agent, make_batch(has_image=has_image, seed=step), 1e-3) for agent in (rough, exact)]
        assert metrics[0]["loss"] != metrics[1]["loss"]
        torch.testing.assert_close(metrics[0]["loss"], metrics[1]["loss"], rtol=0.02, atol=0)
        torch.testing.assert_close(metrics[0]["grad_norm"], metrics[1]["grad_norm"], rtol=0.05, atol=0)
    assert flatten_parameters(rough.loss_module.online).dtype == torch.float32


def our_records(caplog):
    return [record for record in caplog.records if record.name.startswith("trackmania_rl")]


@pytest.mark.slow
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_a_compiled_update_equals_the_eager_one(make_agent, make_batch, caplog, multiplied):
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler here")
    options = {"has_image": True, "quantile_factors_multiply": multiplied, "use_layer_norm": True}
    compiled, eager = (make_agent(use_torch_compile=is_compiled, **options) for is_compiled in (True, False))
    for step in range(4):
        metrics = [update(agent, make_batch(has_image=True, seed=step), 1e-3) for agent in (compiled, eager)]
        for name in ("loss", "mean_q", "grad_norm", "td_error"):
            torch.testing.assert_close(metrics[0][name], metrics[1][name], rtol=1e-4, atol=1e-5)
    assert not our_records(caplog)
    torch.testing.assert_close(
        flatten_parameters(compiled.loss_module.online), flatten_parameters(eager.loss_module.online)
    )


def test_without_a_compiler_it_says_so_once_and_runs_eagerly(make_agent, make_batch, caplog, monkeypatch):
    torch._dynamo.reset()  # forget what another test compiled
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nonexistent",))
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    without_compiler, eager = make_agent(use_torch_compile=True), make_agent()
    for step in range(3):
        for agent in (without_compiler, eager):
            update(agent, make_batch(seed=step), 1e-3)
    weights = (flatten_parameters(agent.loss_module.online) for agent in (without_compiler, eager))
    torch.testing.assert_close(*weights)  # not to the byte: the step that was to be compiled is written in another way
    (record,) = our_records(caplog)
    assert "use_torch_compile" in record.message
    assert "No working C++ compiler" in record.message
    assert "\n" not in record.message


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_gpu_learns_and_resumes_in_every_precision(make_agent, make_batch, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    device = torch.device("cuda")
    agent = make_agent(device=device, has_image=True, autocast_dtype=dtype)
    before = flatten_parameters(agent.loss_module.online).clone()
    for step in range(8):
        metrics = update(agent, make_batch(device="cuda", has_image=True, seed=step), 1e-3)
        agent.target_updater.step()
    assert metrics["loss"].device.type == "cuda"
    assert torch.isfinite(metrics["loss"])
    assert not torch.equal(before, flatten_parameters(agent.loss_module.online))
    restored = make_agent(device=device, has_image=True, autocast_dtype=dtype)
    restored.load_state_dict(agent.state_dict())
    assert torch.equal(flatten_parameters(restored.loss_module.online), flatten_parameters(agent.loss_module.online))


@pytest.mark.gpu
def test_a_gpu_learns_from_batches_in_host_memory(make_agent, make_batch, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    agents = [make_agent(device=torch.device("cuda"), has_image=True) for _ in range(2)]
    for step in range(8):
        for agent, device in zip(agents, ("cpu", "cuda"), strict=True):
            update(agent, make_batch(device=device, has_image=True, seed=step), 1e-3)
    assert torch.equal(*(flatten_parameters(agent.loss_module.online) for agent in agents))
    assert loss_of_unseen(agents[0], make_batch(device="cpu", has_image=True)).device.type == "cuda"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_a_gpu_compiles_records_and_plays_back_the_update_of_the_eager_agent(
    make_agent, make_batch, caplog, dtype, multiplied
):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    options = {"device": torch.device("cuda"), "autocast_dtype": dtype, "quantile_factors_multiply": multiplied}
    recorded, eager = (
        make_agent(use_torch_compile=is_recorded, has_image=True, use_target_self_loss_scaling=True, **options)
        for is_recorded in (True, False)
    )
    recorded.rehearse_update(as_columns(make_batch(has_image=True, device="cuda")))
    for step in range(8):
        before = flatten_parameters(recorded.loss_module.online).clone()
        for agent in (recorded, eager):
            update(agent, make_batch(has_image=True, device="cuda", seed=step), 1e-3)
            agent.target_updater.step()
        assert not torch.equal(before, flatten_parameters(recorded.loss_module.online))
    assert not our_records(caplog)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 0.05, "atol": 0.01}
    torch.testing.assert_close(
        flatten_parameters(recorded.loss_module.online), flatten_parameters(eager.loss_module.online), **tolerance
    )


@pytest.mark.parametrize("use_target_self_loss_scaling", [False, True])
def test_a_gradient_with_a_nan_counts_as_zero_and_leaves_no_trace(make_agent, make_batch, use_target_self_loss_scaling):
    agent = make_agent(use_target_self_loss_scaling=use_target_self_loss_scaling, weight_decay_lr_ratio=0.0)
    before = flatten_parameters(agent.loss_module.online).clone()
    batch = make_batch(seed=1)
    batch.reward[3] = torch.nan
    update(agent, batch, 1e-3)
    assert torch.equal(flatten_parameters(agent.loss_module.online), before)
    for step in range(2, 5):
        metrics = update(agent, make_batch(seed=step), 1e-3)
        assert torch.isfinite(metrics["loss"])
    assert torch.isfinite(flatten_parameters(agent.loss_module.online)).all()
    assert not torch.equal(before, flatten_parameters(agent.loss_module.online))


def test_a_full_reset_gives_a_fresh_network(make_agent, make_batch):
    agent = make_agent(use_layer_norm=True, overall_reset_mul_factor=1.0, last_layer_reset_mul_factor=1.0)
    norms = [layer for layer in agent.loss_module.online.modules() if isinstance(layer, torch.nn.LayerNorm)]
    assert norms
    with torch.no_grad():
        for norm in norms:
            norm.weight.fill_(3.0)
            norm.bias.fill_(2.0)
    agent.reset_partially()
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()


def test_several_moves_of_the_target_at_once_are_as_many_one_by_one(make_agent, make_batch):
    agents = [make_agent(soft_update_tau=0.25) for _ in range(2)]
    for agent in agents:
        update(agent, make_batch(), 1e-2)
    agents[0].target_updater.step(3)
    for _ in range(3):
        agents[1].target_updater.step()
    torch.testing.assert_close(*(flatten_parameters(agent.loss_module.target) for agent in agents))
