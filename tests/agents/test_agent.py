"""IQNAgent: learning a known answer, resuming to the byte, resets and averages, and the compiled update."""

import copy
import functools
import io
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._inductor.config
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

from ..lacking import lacks
from .conftest import needs_gpu


def bytes_of(agent):
    file = io.BytesIO()
    torch.save(agent.state_dict(), file)
    return file.getvalue()


def weights_of(agent):
    return parameters_to_vector(agent.loss_module.online.parameters()).detach()


@pytest.mark.parametrize("expected_reward_per_action", [0.0, 0.8])
def test_it_learns_values_that_are_known(make_agent, make_batch, update, expected_reward_per_action):
    """A mini-race of 10 actions with rewards of 1, 0 and -1: best from here is 1 for each action left."""
    duration, rewards = 10, torch.tensor([1.0, 0.0, -1.0])
    agent = make_agent(
        float_hidden_dim=32,
        dense_hidden_dimension=64,
        target_action="argmax_of_mean",
        soft_update_tau=0.1,
        expected_reward_per_action=expected_reward_per_action,
    )
    loss = agent.loss_module
    for network in (loss.online, loss.target):
        network.mini_race_duration_actions = duration

    for step in range(500):
        batch = make_batch(seed=step, batch_size=64)
        elapsed = torch.randint(duration, (64,), generator=torch.Generator().manual_seed(step))
        batch["state_float"][:, 0] = elapsed
        batch["next_state_float"][:, 0] = elapsed + 1
        batch["reward"] = rewards[batch["action"]]
        batch["gamma_n"] = (elapsed + 1 < duration).float()
        update(agent, batch, 3e-3)

    states = make_batch(seed=0, batch_size=duration)
    states["state_float"][:, 0] = torch.arange(duration)
    midpoints = ((torch.arange(8) + 0.5) / 8).expand(duration, 8)
    values = loss.online(states["state_img"], states["state_float"], midpoints).mean(dim=1)
    actions_left = torch.arange(duration, 0, -1)
    expected = rewards[None, :] + (actions_left - 1)[:, None]
    assert (values - expected).abs().mean() < 0.3
    assert torch.all(values.argmax(dim=1) == 0)


def test_a_resumed_agent_makes_the_same_bytes(make_agent, make_batch, update):
    straight, first_half, resumed = make_agent(), make_agent(), make_agent(seed=77)

    def run(agent, steps):
        for step in steps:
            update(agent, make_batch(seed=step), 1e-3)
            agent.average_weights()

    run(straight, range(9))
    run(first_half, range(4))
    assert bytes_of(resumed) != bytes_of(first_half)
    state = torch.load(io.BytesIO(bytes_of(first_half)), weights_only=True)
    for entry in state:
        with pytest.raises(KeyError, match=entry):
            make_agent().load_state_dict({name: value for name, value in state.items() if name != entry})
    resumed.load_state_dict(state)
    assert bytes_of(resumed) == bytes_of(first_half)
    run(resumed, range(4, 9))

    assert resumed.updates == straight.updates == 9
    assert bytes_of(resumed) == bytes_of(straight)


@pytest.mark.parametrize(
    "change",
    [
        {"iqn_kappa": 0.01},
        {"clip_grad_norm": 1e-3},
        {"weight_decay_lr_ratio": 5.0},
        {"adam_epsilon": 0.5},
        {"adam_beta1": 0.5},
        {"adam_beta2": 0.99},
        {"clip_grad_value": 1e-4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_followed_setting_counts_from_the_next_update_on_also_after_loading(make_agent, make_batch, change):
    def weights_after(changes, reload):
        agent = make_agent()
        for step in range(8):  # RAdam uses its epsilon from the sixth step on
            agent.apply_settings(agent.loss_module.settings.model_copy(update=changes if step == 7 else {}), 1e-2)
            if reload and step == 7:
                agent.load_state_dict(copy.deepcopy(agent.state_dict()))
            agent.update(make_batch(seed=step))
        return weights_of(agent)

    changed = weights_after(change, reload=False)
    assert not torch.equal(changed, weights_after({}, reload=False))
    assert torch.equal(changed, weights_after(change, reload=True))


def test_partial_reset_mixes_each_layer_by_its_share(make_agent, make_batch, update):
    agent = make_agent(overall_reset_mul_factor=0.0, last_layer_reset_mul_factor=1.0)
    update(agent, make_batch(), 1e-2)
    online = agent.loss_module.online
    before = copy.deepcopy(online.state_dict())
    agent.reset_partially()
    for name, value in online.state_dict().items():
        is_last_layer = name.startswith(("A_head.2", "V_head.2"))
        assert torch.equal(value, before[name]) != is_last_layer, name
    weight = online.A_head[2].weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(3))  # fresh: orthogonal
    assert not online.A_head[2].bias.any()


def test_evaluation_weights_are_an_exponential_average(make_agent, make_batch, update):
    agent = make_agent(evaluation_weights_decay=0.5)
    average = weights_of(agent).clone()
    for share in (10 / 11, 10 / 12, 10 / 13, 10 / 14, 10 / 15, 10 / 16, 10 / 17, 10 / 18, 10 / 19, 0.5, 0.5, 0.5):
        update(agent, make_batch(), 1e-2)
        agent.average_weights()
        average = (1 - share) * average + share * weights_of(agent)
    torch.testing.assert_close(parameters_to_vector(agent.evaluation_network.parameters()), average)
    assert agent.exploration_network is agent.loss_module.online is not agent.evaluation_network


@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_bfloat16_is_a_rougher_float32(make_agent, make_batch, update, monkeypatch, has_image, multiplied):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    options = {"has_image": has_image, "quantile_factors_multiply": multiplied, "use_layer_norm": not has_image}
    rough, exact = (make_agent(autocast_dtype=dtype, **options) for dtype in ("bfloat16", "float32"))
    for step in range(3):
        losses = [update(agent, make_batch(has_image=has_image, seed=step), 1e-3) for agent in (rough, exact)]
        assert losses[0]["loss"] != losses[1]["loss"]
        torch.testing.assert_close(losses[0]["loss"], losses[1]["loss"], rtol=0.02, atol=0)
        torch.testing.assert_close(losses[0]["grad_norm"], losses[1]["grad_norm"], rtol=0.05, atol=0)
    assert weights_of(rough).dtype == torch.float32


def our_records(caplog):
    return [
        record for record in caplog.records if record.name.startswith("trackmania_rl") and record.levelname != "INFO"
    ]


def assert_compiled_updates_equal_eager_ones(make_agent, make_batch, update, caplog, **options):
    """Losses, figures, priorities and weights, and losses in evaluation."""
    torch._dynamo.reset()  # forget another test's compiled code
    options = {"has_image": True, "use_layer_norm": True} | options
    compiled, eager = (make_agent(use_torch_compile=is_compiled, **options) for is_compiled in (True, False))
    for step in range(8):
        batches = [make_batch(has_image=True, seed=step) for _ in range(2)]
        losses = [update(agent, batch, 1e-3) for agent, batch in zip((compiled, eager), batches, strict=True)]
        assert set(losses[0].keys()) == set(losses[1].keys())
        for name, value in losses[0].items():
            torch.testing.assert_close(value, losses[1][name], rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")
        torch.testing.assert_close(batches[0]["td_error"], batches[1]["td_error"], rtol=1e-4, atol=1e-5)
    for ours, others in zip(compiled.loss_module.scaling.buffers(), eager.loss_module.scaling.buffers(), strict=True):
        torch.testing.assert_close(ours, others, rtol=1e-4, atol=1e-5)
    evaluated = [agent.loss_module.eval()(make_batch(has_image=True, seed=21))["loss"] for agent in (compiled, eager)]
    torch.testing.assert_close(*evaluated, rtol=1e-4, atol=1e-5)
    assert not our_records(caplog)
    torch.testing.assert_close(weights_of(compiled), weights_of(eager), rtol=1e-4, atol=1e-5)


@pytest.fixture
def graphs(monkeypatch):
    """How often something was compiled: traced, differentiated and guarded as ever, then run as it is, without C++."""
    from torch._dynamo.backends.debugging import aot_eager

    made = []

    def count(graph, inputs):
        made.append(graph)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=count))
    yield made
    torch._dynamo.reset()


def test_the_graphs_of_an_update_agree_with_the_eager_one(make_agent, make_batch, update, caplog, graphs):
    assert_compiled_updates_equal_eager_ones(make_agent, make_batch, update, caplog, use_ddqn=True)
    assert len(graphs) == 2, "the losses with their gradient; clipping; none again for another step"


def test_updates_compiled_ahead_by_a_thread_serve_all_agents(make_agent, make_batch, update, graphs, caplog):
    ahead, other = make_agent(use_torch_compile=True), make_agent(use_torch_compile=True)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ahead.compile_update, make_batch(seed=1)).result()
    assert len(graphs) == 2
    assert bytes_of(ahead) == bytes_of(other)
    for agent in (ahead, other):
        update(agent, make_batch(seed=2), 1e-3)
    assert bytes_of(ahead) == bytes_of(other)
    assert len(graphs) == 2, "none is compiled again, not for another agent either"
    update(ahead, make_batch(seed=2, batch_size=10), 1e-3)
    assert not isinstance(tqdm.get_lock(), TqdmDefaultWriteLock), "its semaphore outlives a killed process"
    assert len(graphs) == 3, "another batch size compiles again, in the thread of the updates"
    assert not our_records(caplog)


@pytest.mark.slow
def test_a_compiled_update_equals_the_eager_one(make_agent, make_batch, update, caplog):
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        lacks("no C++ compiler here")
    assert_compiled_updates_equal_eager_ones(
        make_agent, make_batch, update, caplog, quantile_factors_multiply="hidden_layers"
    )


def test_without_a_compiler_it_says_so_once_and_runs_eagerly(make_agent, make_batch, update, caplog, monkeypatch):
    torch._dynamo.reset()  # forget another test's compiled code
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nonexistent",))
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    without_compiler, eager = make_agent(use_torch_compile=True), make_agent()
    for step in range(3):
        for agent in (without_compiler, eager):
            update(agent, make_batch(seed=step), 1e-3)
    torch.testing.assert_close(weights_of(without_compiler), weights_of(eager), rtol=1e-5, atol=1e-7)
    (record,) = our_records(caplog)
    assert "use_torch_compile" in record.message
    assert "No working C++ compiler" in record.message
    assert "\n" not in record.message


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("use_torch_compile", [False, True])
def test_the_gradient_is_of_the_losses_that_a_hook_returns(make_agent, make_batch, use_torch_compile):
    agent, plain = make_agent(use_torch_compile=use_torch_compile, clip_grad_norm=1e9), make_agent()
    last_weight = agent.loss_module.online.A_head[2].weight

    def process(losses):
        return losses.copy().update({"loss": 2 * losses["loss"], "loss_of_weights": 3 * last_weight.square().sum()})

    losses = agent.update(make_batch(), process)
    loss = plain.loss_module(make_batch())["loss"]
    own = 3 * plain.loss_module.online.A_head[2].weight.square().sum()
    gradients = torch.autograd.grad(2 * loss + own, list(plain.loss_module.online.parameters()))
    torch.testing.assert_close(agent.weights.grad, torch.cat([gradient.reshape(-1) for gradient in gradients]))
    torch.testing.assert_close(losses["loss"], 2 * loss.detach())
    torch.testing.assert_close(losses["loss_of_weights"], own.detach())


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_gpu_learns_and_resumes_in_every_precision(make_agent, make_batch, update, dtype):
    agent = make_agent(device="cuda", has_image=True, autocast_dtype=dtype)
    before = weights_of(agent).clone()
    for step in range(8):
        losses = update(agent, make_batch(device="cuda", has_image=True, seed=step), 1e-3)
    assert losses["loss"].device.type == "cuda"
    assert torch.isfinite(losses["loss"])
    assert not torch.equal(before, weights_of(agent))
    restored = make_agent(device="cuda", has_image=True, autocast_dtype=dtype)
    restored.load_state_dict(agent.state_dict())
    assert torch.equal(weights_of(restored), weights_of(agent))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_a_gpu_compiles_records_and_plays_back_the_update_of_the_eager_agent(
    make_agent, make_batch, update, caplog, dtype, multiplied
):
    options = {"device": "cuda", "autocast_dtype": dtype, "quantile_factors_multiply": multiplied, "has_image": True}
    recorded, eager = (make_agent(use_torch_compile=is_recorded, **options) for is_recorded in (True, False))
    before = weights_of(recorded).clone()
    for agent in (recorded, eager):  # the scale that a GPU begins with overflows in one and not in the other
        agent.scaler.load_state_dict(agent.scaler.state_dict() | {"scale": 64.0} if dtype == "float16" else {})
    for step in range(8):
        for agent in (recorded, eager):
            update(agent, make_batch(has_image=True, device="cuda", seed=step), 1e-3)
    assert not torch.equal(before, weights_of(recorded))
    assert not our_records(caplog)
    if dtype == "float32":
        torch.testing.assert_close(weights_of(recorded), weights_of(eager), rtol=1e-4, atol=1e-5)
    else:  # roundings decide near ties between actions, which moves single weights
        assert (weights_of(recorded) - weights_of(eager)).norm() < 0.05 * (weights_of(eager) - before).norm()
