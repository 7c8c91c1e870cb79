"""Linesight runs in, the same numbers out, and back."""

import copy
import pickle

import pytest
import torch

from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.iqn import IQNAgent
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.schedules import exponential
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings

from .conftest import make_gradients, write_run


def resumed_agent(run_folder):
    """The agent as `train.py` resumes it, apart from its loop."""
    settings = load_settings(run_folder / "settings.toml")
    network = IQN(settings, race_spaces(settings), SeedTree(99)).make_network()
    agent = IQNAgent(network, settings.agent, device=torch.device("cpu"), seed=3)
    state = load_checkpoint(run_folder).state
    agent.load_state_dict(state["agent"])
    return agent, state, settings


def batch_of_states(settings, B, N, seed=0):
    """Images (B, 1, H, W) uint8, floats (B, F), quantiles (B, N)."""
    layout = ObservationLayout(settings.observation)
    generator = torch.Generator().manual_seed(seed)
    height, width = settings.game.image_height_px, settings.game.image_width_px
    images = torch.randint(256, (B, 1, height, width), generator=generator, dtype=torch.uint8)
    noise = torch.randn(B, layout.float_input_dim, generator=generator)
    floats = torch.tensor(layout.mean) + noise * torch.tensor(layout.std)
    return images, floats.float(), torch.rand(B, N, generator=generator)


def assert_same_returns(ours, published, settings, B=3, N=5):
    images, floats, tau = batch_of_states(settings, B, N)
    with torch.no_grad():
        found = ours(images, floats, tau)  # (B, N, A)
        expected = published((images.float() - 128) / 128, floats, tau.t().reshape(-1, 1))  # (N B, A)
    expected = expected.view(N, B, -1).transpose(0, 1)
    assert found.shape == expected.shape == (B, N, 12)
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_full_size_runs_give_the_same_returns(full_size_config, tmp_path, tool):
    settings = load_settings(full_size_config)
    written = write_run(tmp_path / "linesight", settings, prefix="_orig_mod.", n_steps=1)
    assert sum(parameter.numel() for parameter in written.online.parameters()) == 6_578_333
    assert tool("import_linesight", written.folder, "--output", tmp_path / "save" / "big") == 0
    agent, _, settings = resumed_agent(tmp_path / "save" / "big")
    assert_same_returns(agent.loss_module.online, written.online, settings)
    assert_same_returns(agent.loss_module.target, written.target, settings)
    assert len(ObservationLayout(settings.observation).mean) == 184


@pytest.fixture(scope="module")
def imported(tmp_path_factory, small_settings, small_words, script_module):
    """A small run, and the folder of its import."""
    folder = tmp_path_factory.mktemp("imported")
    run = write_run(folder / "linesight", small_settings, prefix="_orig_mod.")
    words = [run.folder, "--output", folder / "save" / "mine", *small_words]
    assert script_module("tools/import_linesight").main([str(word) for word in words]) == 0
    return run, folder / "save" / "mine"


def assert_schedules_are_at(frames, state, transitions=1_200_000):
    """Schedules continue at the frames, and no stored transition waits to be trained on."""
    assert state["statistics"]["frames_total"] == frames
    assert state["resets"]["counted_from_frames"] == frames
    assert state["replay"]["transitions_stored"] == transitions
    assert state["replay"]["transitions_due"] == 0


def test_weights_counters_and_best_times_are_imported(imported):
    run, output = imported
    agent, state, settings = resumed_agent(output)
    assert settings.run.run_name == "mine"
    assert_same_returns(agent.loss_module.online, run.online, settings)
    assert_same_returns(agent.loss_module.target, run.target, settings)
    assert_same_returns(agent.evaluation_network, run.online, settings)
    assert_schedules_are_at(1_234_567, state)
    assert state["agent"]["updates"] == 71_234
    statistics = state["statistics"]
    assert statistics["training_s"] == 7.5 * 3600
    best_times_ms = {name: kinds["explored"]["best_time_ms"] for name, kinds in statistics["maps"].items()}
    assert best_times_ms == {"hock": 54_320, "map5": 118_450}
    scale = state["agent"]["step"]["scaler"]
    assert (scale["scale"], scale["_growth_tracker"]) == (8192, 123)


def test_the_optimizer_goes_on_with_the_same_steps(imported):
    run, output = imported
    online = copy.deepcopy(run.online)
    optimizer = torch.optim.RAdam(online.parameters())
    optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    agent, _, _ = resumed_agent(output)
    assert agent.optimizer.state[agent.weights]["step"] == 7
    agent.apply_settings(agent.loss_module.settings.model_copy(update={"weight_decay_lr_ratio": 0.0}), 1e-3)
    for seed in (100, 101, 102):
        make_gradients(online, seed)
        agent.weights.grad = torch.cat([parameter.grad.reshape(-1) for parameter in online.parameters()])
        optimizer.step()
        agent.optimizer.step()
    for (name, ours), theirs in zip(agent.loss_module.online.named_parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)


def test_there_and_back(imported, tmp_path, tool):
    small_run, output = imported
    back, settings = tmp_path / "back", load_settings(output / "settings.toml")
    assert tool("export_linesight", output, "--output", back) == 0
    for name, network in (("weights1", small_run.online), ("weights2", small_run.target)):
        weights = torch.load(back / f"{name}.torch", weights_only=True)
        assert list(weights) == list(network.state_dict())
        assert all(torch.equal(weights[key], value) for key, value in network.state_dict().items())
    fresh = torch.optim.RAdam(small_run.online.parameters())
    fresh.load_state_dict(torch.load(back / "optimizer1.torch", weights_only=True))
    for parameter in small_run.online.parameters():
        for part in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(fresh.state[parameter][part], small_run.optimizer.state[parameter][part])
    assert fresh.param_groups[0]["lr"] == pytest.approx(exponential(settings.agent.lr_schedule, 1_234_567))
    assert fresh.param_groups[0]["eps"] == 1e-4
    assert fresh.param_groups[0]["betas"] == (0.9, 0.999)
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(torch.load(back / "scaler.torch", weights_only=True))
    assert scaler.get_scale() == 8192
    statistics = pickle.loads((back / "accumulated_stats.joblib").read_bytes())
    assert statistics["cumul_number_frames_played"] == 1_234_567, "which Linesight's schedules follow"
    assert statistics["cumul_number_memories_generated"] == 1_200_000
    assert statistics["alltime_min_ms"] == {"hock": 54_320, "map5": 118_450}
    assert statistics["unheard of"] == 0
    used = 71_234 * settings.replay.batch_size
    every = settings.agent.number_memories_trained_on_between_target_network_updates
    assert statistics["cumul_number_batches_done"] == 71_234
    assert statistics["cumul_training_hours"] == pytest.approx(7.5)
    assert statistics["cumul_number_single_memories_used"] == used
    assert statistics["cumul_number_target_network_updates"] == used // every


@pytest.mark.parametrize("absent", ["weights2.torch", "optimizer1.torch", "scaler.torch", "accumulated_stats.joblib"])
@pytest.mark.parametrize("damage", ["absent", "cut short"])
def test_only_the_online_weights_must_be_there(small_run, small_words, tmp_path, tool, caplog, absent, damage):
    file = small_run.folder / absent
    content = file.read_bytes()
    file.unlink()
    if damage != "absent":
        file.write_bytes(content[: len(content) // 2])
    assert tool("import_linesight", small_run.folder, "--output", tmp_path / "save" / "mine", *small_words) == 0
    assert absent in caplog.text
    agent, state, settings = resumed_agent(tmp_path / "save" / "mine")
    assert_same_returns(agent.loss_module.online, small_run.online, settings)
    if absent == "weights2.torch":
        assert_same_returns(agent.loss_module.target, small_run.online, settings)
    if absent == "optimizer1.torch":
        assert state["agent"]["step"]["optimizer"]["step"] == 0
    if absent == "accumulated_stats.joblib":
        assert state["statistics"]["frames_total"] == 0


def test_mistakes_are_named(small_run, small_words, tmp_path, tool, error_line):
    output = tmp_path / "save" / "mine"
    words = ("import_linesight", small_run.folder, "--output")
    assert "is no folder" in error_line(tool, "import_linesight", tmp_path / "nowhere", "--output", output)
    assert "a run lies in save/RUN_NAME" in error_line(tool, *words, tmp_path / "mine", *small_words)
    wrong_size = error_line(tool, *words, output)
    assert "weights1.torch does not fit the configuration" in wrong_size
    assert "A_head.0.bias is (7,) and should be (512,)" in wrong_size
    for name, value, told in (
        ("use_layer_norm", True, "no counterpart to this configuration (use_layer_norm = True)"),
        ("schedule_stretch", 2, "schedule_stretch = 2"),
    ):
        (small_run.folder / "config_copy.py").write_text("batch_size = 333\n")
        assert told in error_line(tool, *words, output, *small_words, "--set", f"{name}={value}")
    assert not output.exists()
    assert tool(*words, output, *small_words) == 0
    assert "holds a run already" in error_line(tool, *words, output, *small_words)
    assert "is not empty" in error_line(tool, "export_linesight", output, "--output", small_run.folder)


def test_contents_that_are_not_this_networks_are_refused(small_run, small_words, tmp_path, tool, error_line):
    other = torch.optim.RAdam([torch.nn.Parameter(torch.ones(3))])
    other.param_groups[0]["params"][0].grad = torch.ones(3)
    other.step()
    weights = {name: value * float("nan") for name, value in small_run.target.state_dict().items()}
    for file, content, told in (
        ("optimizer1.torch", other.state_dict(), "optimizer1.torch does not fit the weights"),
        ("weights2.torch", weights, "weights2.torch holds numbers that are not finite"),
    ):
        torch.save(content, small_run.folder / file)
        words = ("import_linesight", small_run.folder, "--output", tmp_path / "save" / "mine", *small_words)
        assert told in error_line(tool, *words)
