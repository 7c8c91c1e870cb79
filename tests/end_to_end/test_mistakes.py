"""Each mistake of a user ends the training command at once: one line, a non-zero exit code, no run left behind."""

from __future__ import annotations

import gc
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.training.conftest import make_context, open_channels_here
from trackmania_rl.errors import ExitCode
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.runs.snapshot import LiveSettings, write_snapshot
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.training.building import begin_run
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints

from .conftest import settings_words


class Mistake(NamedTuple):
    """A command line, words of its one line of error, and the run that is there already, if any."""

    words: str
    told: tuple[str, ...]
    run: str | None = None


def map_cycle(map_path, line):
    entry = {"map_name": "m", "map_path": map_path, "reference_line": line, "is_explo": True, "fill_buffer": True}
    return shlex.quote(f"map_cycle={({**entry, 'repeat': 1},)}")


def demonstration(map_name):
    return shlex.quote(f"demonstrations={({'map_name': map_name, 'inputs': 'absent.inputs'},)}")


OTHER_SIZE = ("does not fit", "float_hidden_dim = 20 (was 11)", "run_name")
KEPT = "--set game_transport=socket --set games_are_kept=True --set base_tmi_port="
MISTAKES = {
    "unknown setting": Mistake("--set epsilon_shedule=3", ("epsilon_shedule", "did you mean epsilon_schedule")),
    "wrong value": Mistake("--set batch_size=-3", ("batch_size", "-3")),
    "unreadable override": Mistake("--set no_equals_sign", ("no_equals_sign", "name=value")),
    "missing configuration": Mistake("--config @/nowhere.py", ("nowhere.py", "no such configuration")),
    "broken configuration": Mistake("--config @/configuration/broken.py", ("broken.py", "line 3")),
    "missing map": Mistake(f"--set {map_cycle('atlantis.toml', 'valley_0.5m.npy')}", ("atlantis.toml",)),
    "damaged reference line": Mistake(
        f"--set maps_folder=@/maps --set {map_cycle('valley.toml', 'line.npy')}", ("line.npy",)
    ),
    "missing demonstration": Mistake(
        f"--set {demonstration('valley')}", ("demonstrations", "absent.inputs", "cannot be read")
    ),
    "demonstration on another map": Mistake(
        f"--set {demonstration('atlantis')}", ("atlantis", "not in map_cycle", "valley")
    ),
    "too few means": Mistake("--set n_prev_actions_in_inputs=6", ("previous_actions", "means")),
    "too small an image": Mistake("--set image_width_px=32 --set image_height_px=24", ("image", "convolution")),
    "analog games for an agent that chooses among keys": Mistake(
        "--set actions=analog", ("chooses among a few actions, Discrete(A), but the games take Box(-1.0, 1.0, (3,)",)
    ),
    "truncated checkpoint": Mistake("", ("weights.safetensors", "cannot read the checkpoint"), "truncated"),
    "random checkpoint": Mistake("", ("weights.safetensors", "cannot read the checkpoint"), "random"),
    "other rewards": Mistake(
        "--set constant_reward_per_ms=-0.5",
        ("constant_reward_per_ms = -0.5 (was -0.0012)", "--accept-change constant_reward_per_ms"),
        "good",
    ),
    "unknown change": Mistake("--accept-change constant_reward", ("constant_reward", "no such setting"), "good"),
    "other network sizes": Mistake("--set float_hidden_dim=20", OTHER_SIZE, "good"),
    "other network sizes in another configuration": Mistake(
        "--update-config --set float_hidden_dim=20", OTHER_SIZE, "good"
    ),
    "weights of another network": Mistake(
        "--weights-from @/good/save/tested --set float_hidden_dim=20",
        ("--weights-from", "does not fit", "float_hidden_dim = 20 (was 11)"),
    ),
    "weights from a folder without a checkpoint": Mistake("--weights-from @/maps", ("--weights-from", "no checkpoint")),
    "weights from no folder": Mistake("--weights-from @/nowhere", ("--weights-from", "there is no such run folder")),
    "unknown map": Mistake("--map atlantis", ("--map", "atlantis", "valley", "maps.py add")),
    "map of an environment": Mistake("--preset cartpole --map kart", ("--map", "has no maps")),
    "port in use": Mistake("--set game_transport=socket --set base_tmi_port=TAKEN", ("port", "base_tmi_port")),
    "no kept game": Mistake(f"{KEPT}FREE", ("no kept game greets at port FREE", "keep_games.py --ports FREE")),
    "full disk": Mistake("--set minimum_free_disk_mb=1000000000", ("minimum_free_disk_mb",)),
    "folder is a file": Mistake("--output-folder @/a_file", ("cannot make the folder",)),
    "no such device": Mistake("--set torch_device=cuda:99", ("cuda:99",)),
    "real game": Mistake("--set game=tmnf", ("launcher",)),
}
MAY_PASS = {"port in use", "no kept game"}


def write_run(output, config):
    """Write a run that was ended before its first race."""
    folder = RunFolder.create(output, "tested")
    snapshot = write_snapshot(config, folder.path, settings_words()[1::2])
    live, seeds = LiveSettings(snapshot, load_settings(snapshot)), SeedTree(0)
    channels = open_channels_here(live.current)
    hooks = begin_run(make_context(live, seeds, folder, channels))
    assert next(hook for hook in hooks if isinstance(hook, SaveCheckpoints)).try_to_save()


@pytest.fixture(scope="module")
def folder(repository_root, tmp_path_factory):
    """Files that command lines name by `@`, and the runs good, truncated and random."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_run(folder / "good", repository_root / "config_files" / "config.py")
    (checkpoint, *_) = find_manifests(folder / "good" / "save" / "tested")
    weights = (checkpoint / "weights.safetensors").read_bytes()
    for name, content in (
        ("truncated", weights[: len(weights) // 2]),
        ("random", np.random.default_rng(0).bytes(100_000)),
    ):
        shutil.copytree(folder / "good", folder / name)
        for copied in find_manifests(folder / name / "save" / "tested"):
            (copied / "weights.safetensors").write_bytes(content)

    shutil.copytree(repository_root / "config_files", folder / "configuration")
    (folder / "configuration" / "broken.py").write_text("seed = 1\nrun_name = 'x'\nbatch_size = = 3\n")
    shutil.copytree(repository_root / "maps", folder / "maps")
    (folder / "maps" / "line.npy").write_bytes((folder / "maps" / "valley_0.5m.npy").read_bytes()[:1000])
    (folder / "a_file").write_text("not a folder")
    return folder


@pytest.fixture
def train(script_module, monkeypatch):
    """`train(*words)` runs the command in this process, which has imported torch already."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        return script_module("train").main()

    yield run
    signal.signal(signal.SIGTERM, before)
    gc.unfreeze()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_line(name, train, folder, tmp_path, capfd):
    mistake, output, free = MISTAKES[name], tmp_path / "output", str(find_free_port(2))
    if mistake.run is not None:
        shutil.copytree(folder / mistake.run, output)
    own = output / "save" / "tested" / "settings.toml"
    before = own.read_bytes() if own.is_file() else None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = mistake.words.replace("TAKEN", str(taken.getsockname()[1])).replace("FREE", free)
        words = words.replace("@", str(folder))
        exit_code = train(*settings_words(), "--output-folder", str(output), *shlex.split(words))
    said = capfd.readouterr()
    assert exit_code == (ExitCode.TRY_AGAIN if name in MAY_PASS else ExitCode.NEEDS_A_PERSON), said
    (error,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert all(word.replace("FREE", free) in error for word in mistake.told), error
    assert "Traceback" not in said.out + said.err
    assert (own.read_bytes() if own.is_file() else None) == before
    if mistake.run is None:
        assert not output.exists() or not list(output.iterdir())


def test_a_program_without_main_guard_ends_in_one_line(repository_root: Path, tmp_path: Path) -> None:
    config = str(repository_root / "config_files" / "config.py")
    call = f"train({config!r}, overrides={settings_words()[1::2]!r}, output_folder='out')"
    (tmp_path / "mine.py").write_text(f"from trackmania_rl import train\n{call}\n")
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.startswith('error: mine.py calls train() without `if __name__ == "__main__":`; '), done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert len(list((tmp_path / "out" / "save").iterdir())) == 1
