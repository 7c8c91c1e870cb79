"""A driver as one file: its contents, that it drives as its run does, and that bad files are refused in one line."""

import contextlib
import json

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from trackmania_rl.agents import torchrl_agent
from trackmania_rl.agents.builder import check_decision, make_agent_builder
from trackmania_rl.agents.torchrl_agent import FOR_NUMBERS, ON_POLICY, TorchRLAgent
from trackmania_rl.channels.over_grpc import settings_for_workers
from trackmania_rl.drivers.driver_file import (
    ENTRY,
    LARGEST_HEADER_BYTES,
    DriverFile,
    DriverFileError,
    DriverTrack,
    read_driver,
    write_driver,
)
from trackmania_rl.drivers.evaluation import evaluate_map, load_driver
from trackmania_rl.drivers.loading import own_code
from trackmania_rl.errors import UserError
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.multiprocess.worker import WorkerConfig
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import DRIVER_SETTINGS, NamedPart, load_settings
from trackmania_rl.settings.groups import UserSettings
from trackmania_rl.track.named_maps import map_entries


def edited(driver_file, target, edit, weights=None):
    """A driver's file whose card was edited, with the right check sum."""
    driver = read_driver(driver_file)
    card = driver.card.model_dump(mode="json")
    edit(card)

    class Card:
        """Any card, also one that is refused."""

        @staticmethod
        def model_dump(mode):
            return card

    return write_driver(target, DriverFile(Card(), driver.weights if weights is None else weights))


def with_settings(**values):
    return lambda card: card["settings"].update(values)


def test_a_driver_holds_weights_meaning_and_times_and_nothing_of_its_machine(
    driver_file, run_folder, maps_folder, tmp_path
):
    driver = read_driver(driver_file)
    averaged = load_checkpoint(run_folder / "checkpoints" / "000001").state["agent"]["averaged"]
    assert driver.weights.keys() == averaged.keys()
    assert all(torch.equal(driver.weights[name], weight) for name, weight in averaged.items())
    card = driver.card
    assert (card.frames_total, card.training_s) == (1234, 567.5)
    assert card.tracks == (DriverTrack(map_name="bend", map_path="curve.npy", reference_line="curve.npy"),)
    assert card.settings.keys() == DRIVER_SETTINGS
    assert card.interface.n_floats == sum(n for _, n in card.interface.blocks) == 184
    assert card.interface.actions[:4] == ("accelerate", "left + accelerate", "right + accelerate", "nothing")
    content = driver_file.read_bytes()
    for own in (str(run_folder), str(maps_folder), "game_command", "checkpoint_interval_s", "lr_schedule"):
        assert own.encode() not in content
    assert len(content) < 60_000
    again = write_driver(tmp_path / "deeper" / "again.driver", driver)
    assert again.read_bytes() == content
    assert [file.name for file in again.parent.iterdir()] == ["again.driver"]
    assert load(content).keys() == driver.weights.keys(), "others can read ours"


def test_a_file_drives_as_its_run_does(driver_file, run_folder, run_settings, maps_folder, repository_root):
    [bend] = map_entries(run_settings, maps_folder)
    drivers = load_driver(run_folder), load_driver(driver_file), load_driver(run_folder, driver_file)
    with contextlib.closing(InProcessGames(1, run_settings.game, run_settings.observation, maps_folder)) as games:
        one, *others = [evaluate_map(driver, games, bend, n_races=1).figures() for driver in drivers]
    assert others == [one, one]
    assert one["finish_rate"] == 1
    assert [driver.frames_total for driver in drivers] == [1234] * 3
    settings, here = drivers[1].settings, load_settings(repository_root / "config_files" / "config.py")
    assert settings.agent.float_hidden_dim == 11
    assert (settings.user, settings.run, settings.game.maps_folder) == (here.user, here.run, here.game.maps_folder)
    assert [entry.map_name for entry in settings.game.map_cycle] == ["bend"]


def test_a_driver_that_ships_finishes_its_track(repository_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it is found from anywhere
    driver = load_driver("drivers/ring.driver", torch_device="cpu")
    settings, maps_folder = driver.settings, repository_root / "maps"
    [track] = map_entries(settings, maps_folder)
    with contextlib.closing(InProcessGames(1, settings.game, settings.observation, maps_folder)) as games:
        evaluation = evaluate_map(driver, games, track, n_races=1)
    assert (track.map_name, evaluation.figures()["finish_rate"]) == ("ring", 1.0)
    assert (repository_root / "drivers" / "ring.driver").stat().st_size < 1_500_000


CONFIGS = {"config.py", "config_sac.py", "config_discrete_sac.py", "config_offline_iql.py", "config_ppo.py"}
CONFIGS |= {"config_lidar.py", "config_tmnf.py", "config_cartpole.py", "config_pendulum.py"}
AGENTS = [name for name, value in vars(torchrl_agent).items() if getattr(value, "func", None) is TorchRLAgent]


@pytest.mark.parametrize(
    ("config", "agent"),
    [*((config, None) for config in sorted(CONFIGS)), *(("config_sac.py", name) for name in AGENTS)],
)
def test_drivers_of_all_that_ships_load_beside_the_default_configuration(config, agent, repository_root, tmp_path):
    sizes = {"conv_channels": (2, 2), "conv_kernel_sizes": (8, 8), "conv_strides": (8, 8), "float_hidden_dim": 8}
    sizes |= {"dense_hidden_dimension": 8}
    if agent is not None:
        is_analog = getattr(torchrl_agent, agent).keywords["loss"] in (*FOR_NUMBERS, *ON_POLICY)
        sizes |= {"agent": f"trackmania_rl.agents.torchrl_agent:{agent}", "actions": "analog" if is_analog else "keys"}
    settings = load_settings(repository_root / "config_files" / config, sizes)
    spaces = make_games_builder(settings).spaces
    network = make_agent_builder(settings, spaces, SeedTree(0)).make_network()
    tracks = [DriverTrack.of_entry(entry, None) for entry in settings.game.map_cycle]
    counts = {"frames_total": 0, "training_s": 0.0}
    driver = DriverFile.of_network("x", settings, spaces, network.state_dict(), tracks, **counts)
    loaded_driver = load_driver(write_driver(tmp_path / "one.driver", driver), torch_device="cpu")
    check_decision(loaded_driver.actor, spaces)
    assert own_code(settings) == []
    of_run = json.dumps(settings_for_workers(settings, seed=1))
    assert WorkerConfig(repository_root, UserSettings()).settings_of(of_run).agent == settings.agent
    loaded = loaded_driver.settings
    assert {name: loaded.flat()[name] for name in DRIVER_SETTINGS} == {
        name: settings.flat()[name] for name in DRIVER_SETTINGS
    }
    assert {entry.map_name for entry in loaded.game.map_cycle} == {e.map_name for e in settings.game.map_cycle}
    if (config, agent) == ("config_sac.py", None):
        assert isinstance(loaded.agent.agent, NamedPart)
        assert loaded.agent.agent.keywords["alpha_init"] == 0.002, "a part's arguments come with it"


# ----------------------------------------------------------------------------------------------------------- bad files


@hypothesis.settings(max_examples=25)
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), noise=st.binary(max_size=300))
def test_damaged_and_other_bytes_are_refused(driver_file, tmp_path_factory, share, bit, noise):
    content, file = driver_file.read_bytes(), tmp_path_factory.getbasetemp() / "damaged.driver"
    at = int(share * len(content))
    flipped = bytearray(content)
    flipped[at] ^= 1 << bit
    for damaged in (bytes(flipped), content[:at], noise, len(noise).to_bytes(8, "little") + noise):
        refused(damaged, file)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@hypothesis.settings(max_examples=10)
@given(name=st.sampled_from(sorted(DRIVER_SETTINGS)), value=json_values)
def test_any_settings_in_a_driver_are_used_or_refused(driver_file, tmp_path_factory, name, value):
    file = tmp_path_factory.getbasetemp() / "settings.driver"
    try:
        edited(driver_file, file, with_settings(**{name: value}))
    except ValueError:  # JSON has no such number
        return
    with contextlib.suppress(DriverFileError, CheckpointError):
        load_driver(file)


def refused(content, file):
    """Somebody's bytes are no driver, and that is said in one line."""
    file.write_bytes(content)
    with pytest.raises(DriverFileError) as told:
        read_driver(file)
    assert str(file) in str(told.value)
    assert "\n" not in str(told.value)


def test_faults_of_a_driver_are_named(driver_file, tmp_path):
    weights = read_driver(driver_file).weights
    name, *_ = weights
    cases = {
        "its format is 2, this program reads format 1": (lambda card: card.update(format_version=2), None),
        "are not finite numbers": (lambda card: None, {**weights, name: weights[name] * float("nan")}),
        "far larger network": (with_settings(float_hidden_dim=100_000), None),
        "size mismatch": (with_settings(float_hidden_dim=12), None),
        "larger than any number of a driver": (with_settings(iqn_k=10**9), None),
        "float_hidden_dim = -1": (with_settings(float_hidden_dim=-1), None),
        "does not know 'surprise'": (with_settings(surprise=1), None),
        "misses iqn_k": (lambda card: card["settings"].pop("iqn_k"), None),
        "a driver is shown": (with_settings(views={"past": {"column": "speed_m_s", "shift": "-1000:-1", "input": True},
            "more": {"column": "speed_m_s", "shift": "-1000:-1", "input": True},
            "most": {"column": "speed_m_s", "shift": "-1000:-1", "input": True}}), None),
        "tracks": (lambda card: card["tracks"][0].update(map_path="/etc/passwd"), None),
        "name": (lambda card: card.update(name="\x1b[2J"), None),
        "for another observation (gear)": (
            lambda card: card["interface"].update(blocks=[b for b in card["interface"]["blocks"] if b[0] != "gear"]),
            None,
        ),
        "for other actions (2 and 12": (lambda card: card["interface"].update(actions=["left", "right"]), None),
    }  # fmt: skip
    for told, (edit, its_weights) in cases.items():
        file = edited(driver_file, tmp_path / "bad.driver", edit, its_weights)
        with pytest.raises(UserError) as error:
            load_driver(file)
        assert told in str(error.value)
        assert str(file) in str(error.value)
        assert "\n" not in str(error.value)


def test_files_that_are_no_drivers_are_refused(driver_file, run_folder, tmp_path):
    content = driver_file.read_bytes()
    for length in (LARGEST_HEADER_BYTES + 1, 2**63, len(content)):
        refused(length.to_bytes(8, "little") + content[8:], tmp_path / "long.driver")
    (tmp_path / "other.driver").write_bytes(save({"weight": torch.zeros(3)}))
    with pytest.raises(DriverFileError, match="is no driver, though it holds weights"):
        read_driver(tmp_path / "other.driver")
    (tmp_path / "deep.driver").write_bytes(save({"weight": torch.zeros(3)}, metadata={ENTRY: "[" * 200_000}))
    with pytest.raises(DriverFileError, match="is damaged, or no driver"):
        read_driver(tmp_path / "deep.driver")
    with pytest.raises(DriverFileError, match=r"absent\.driver: cannot be read: No such file"):
        load_driver(tmp_path / "absent.driver")
    with pytest.raises(UserError, match="is a driver, which has no checkpoints"):
        load_driver(driver_file, run_folder / "checkpoints" / "000001")


# ----------------------------------------------------------------------------------------------------------- own code

OWN_NETWORK = """
from trackmania_rl.agents.iqn import IQN_Network

print("imported")

class Network(IQN_Network):
    pass
"""


def test_a_driver_imports_nothing_that_its_user_does_not_name(driver_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts_of_a_stranger.py").write_text(OWN_NETWORK)
    file = edited(driver_file, tmp_path / "own.driver", with_settings(network="parts_of_a_stranger:Network"))
    for code in ((), ("parts_of",), ("parts_of_a_stranger.more",)):
        with pytest.raises(DriverFileError, match=r"its setting network names code .* --code parts_of_a_stranger"):
            load_driver(file, code=code)
    assert "imported" not in capsys.readouterr().out
    driver = load_driver(file, code=("parts_of_a_stranger",))
    assert type(driver.actor.network).__name__ == "Network"
    system = {"name": "os:system", "args": ["true"], "keywords": {}}
    parts = [
        system,
        {"name": "trackmania_rl.parts:make_part", "args": ["os:system", "agent", "true"], "keywords": {}},
        {"name": "trackmania_rl.agents.torchrl_agent:TorchRLAgent", "args": [], "keywords": {"loss": system}},
    ]
    for part in parts:
        with pytest.raises(DriverFileError, match="its setting agent names code that does not ship"):
            load_driver(edited(driver_file, file, with_settings(agent=part)))
    track = {"map_name": "own", "generator": "parts_of_a_stranger:Network"}
    with pytest.raises(DriverFileError, match="its setting map_cycle names code that does not ship"):
        load_driver(edited(driver_file, file, lambda card: card.update(tracks=[track])))
