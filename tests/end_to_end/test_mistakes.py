"""What a user can get wrong ends the command at once: one clear line, a non-zero exit code, no process left."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.checkpoints import find_manifests

ENDS_WITHIN_S = 120.0

MISTAKES = {
    "unknown setting": ("epsilon_shedule", "did you mean epsilon_schedule"),
    "wrong value": ("batch_size", "-3"),
    "unreadable override": ("no_equals_sign", "name=value"),
    "missing configuration": ("nowhere.py", "no such configuration"),
    "configuration without companions": ("lonely.py", "inputs_list.py", "copy it from config_files"),
    "broken configuration": ("broken.py", "line 3"),
    "missing map": ("atlantis.toml",),
    "damaged reference line": ("line.npy",),
    "missing demonstration": ("demonstrations", "absent.inputs", "cannot be read"),
    "demonstration on another map": ("atlantis", "not in map_cycle", "valley"),
    "too few means": ("previous_actions", "means"),
    "too small an image": ("image", "convolution"),
    "truncated checkpoint": ("averaged.safetensors", "cannot read the checkpoint"),
    "random checkpoint": ("averaged.safetensors", "cannot read the checkpoint"),
    "checkpoint of an older version": ("checkpoint.pt", "older version", "run_name"),
    "other rewards": ("constant_reward_per_ms = -0.5 (was -0.0012)", "--accept-change constant_reward_per_ms"),
    "unknown change": ("--accept-change", "constant_reward", "no such setting"),
    "other network sizes": ("does not fit", "float_hidden_dim is 20", "but was 11", "run_name"),
    "other network sizes in another configuration": ("does not fit", "float_hidden_dim is 20", "run_name"),
    "weights of another network": ("--weights-from", "does not fit", "float_hidden_dim is 20", "but was 11"),
    "weights from nowhere": ("--weights-from", "no checkpoint"),
    "weights from no folder": ("--weights-from", "there is no such run folder"),
    "map of nobody": ("--map", "atlantis", "valley", "maps.py add"),
    "map of an environment": ("--map", "has no maps"),
    "port in use": ("port", "base_tmi_port"),
    "full disk": ("minimum_free_disk_mb",),
    "folder is a file": ("cannot make the folder",),
    "no such device": ("cuda:99",),
    "real game": ("launcher",),
}
"""Each mistake, and what its line must mention."""

READ_BY_NAME = {
    "wrong value",
    "broken configuration",
    "missing demonstration",
    "unknown change",
    "map of nobody",
    "unreadable override",
    "configuration without companions",
    "demonstration on another map",
    "too few means",
    "too small an image",
    "random checkpoint",
    "other network sizes in another configuration",
    "weights from nowhere",
    "weights from no folder",
    "map of an environment",
    "folder is a file",
    "no such device",
    "real game",
}
"""Those whose line is made where another's is, or that a faster test reads: each is a training of its own."""

LEAVE_NOTHING = [
    "missing map",
    "damaged reference line",
    "port in use",
    "full disk",
    "weights of another network",
    "weights from nowhere",
    "too few means",
    "too small an image",
    "weights from no folder",
    "map of nobody",
]
"""Mistakes that are seen before a new run's folder is made."""


def marked(mistakes: Iterable[str]) -> list[Any]:
    """Mark those as slow that are read by name only."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in READ_BY_NAME)) for name in mistakes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds an output folder for each command."""
    return tmp_path_factory.mktemp("mistakes")


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, start_training: Any, folder: Path, repository_root: Path
) -> dict[str, tuple[int, str, list[Any]]]:
    """(exit code, output, survivors) by mistake that a test of this run asks for; all run at the same time."""
    commands = {}
    asked = {item.callspec.params.get("mistake") for item in request.session.items if hasattr(item, "callspec")}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for mistake, arguments in _arguments(start_training, folder, repository_root, taken).items():
            if mistake in asked:
                commands[mistake] = arguments(mistake)
        for command in commands.values():
            command.process.wait(ENDS_WITHIN_S)
    return {name: (c.process.returncode, c.output, c.survivors()) for name, c in commands.items()}


def _arguments(
    start_training: Any, folder: Path, repository_root: Path, taken: socket.socket
) -> dict[str, Callable[[str], Any]]:
    """How each command with a mistake is started, in a folder of the name that is handed in."""
    good = start_training(folder / "good", options=("--max-wall-s", "0"))
    assert good.process.wait(ENDS_WITHIN_S) == 0, good.output
    weights = (next(iter(find_manifests(good.run_folder))) / "averaged.safetensors").read_bytes()

    def with_weights(name: str, content: bytes) -> Path:
        shutil.copytree(good.folder, folder / name)
        for checkpoint in find_manifests(folder / name / "save" / "tested"):
            (checkpoint / "averaged.safetensors").write_bytes(content)
        return folder / name

    def of_older_version(name: str) -> Path:
        run = with_weights(name, weights) / "save" / "tested"
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoint.pt").write_bytes(b"PK")
        return folder / name

    def start(*options: str, **settings: object) -> Callable[[str], Any]:
        return lambda here: start_training(folder / here, options, **settings)

    configuration = folder / "configuration"
    shutil.copytree(repository_root / "config_files", configuration)
    (configuration / "broken.py").write_text("seed = 1\nrun_name = 'x'\nbatch_size = = 3\n")
    (folder / "lonely").mkdir()
    (folder / "lonely" / "lonely.py").write_text("seed = 1\n")
    maps = folder / "maps"
    shutil.copytree(repository_root / "maps", maps)
    (maps / "line.npy").write_bytes((maps / "valley_0.5m.npy").read_bytes()[:1000])
    np.save(folder / "random.npy", np.random.default_rng(0).integers(0, 255, 100_000))
    (folder / "a_file").write_text("not a folder")

    def map_cycle(map_path: str, line: str) -> str:
        entry = {"map_name": "m", "map_path": map_path, "reference_line": line, "is_explo": True, "fill_buffer": True}
        return repr(({**entry, "repeat": 1},))

    def demonstrations(map_name: str) -> str:
        return repr(({"map_name": map_name, "inputs": "absent.inputs"},))

    return {
        "unknown setting": start(epsilon_shedule=3),
        "wrong value": start(batch_size=-3),
        "unreadable override": start("--set", "no_equals_sign"),
        "missing configuration": start("--config", str(configuration / "nowhere.py")),
        "configuration without companions": start("--config", str(folder / "lonely" / "lonely.py")),
        "broken configuration": start("--config", str(configuration / "broken.py")),
        "missing map": start(map_cycle=map_cycle("atlantis.toml", "valley_0.5m.npy")),
        "damaged reference line": start(maps_folder=repr(str(maps)), map_cycle=map_cycle("valley.toml", "line.npy")),
        "missing demonstration": start(demonstrations=demonstrations("valley")),
        "demonstration on another map": start(demonstrations=demonstrations("atlantis")),
        "too few means": start(n_prev_actions_in_inputs=6),
        "too small an image": start(image_width_px=32, image_height_px=24),
        "truncated checkpoint": lambda here: start_training(with_weights(here, weights[: len(weights) // 2])),
        "random checkpoint": lambda here: start_training(with_weights(here, (folder / "random.npy").read_bytes())),
        "checkpoint of an older version": lambda here: start_training(of_older_version(here)),
        "other rewards": lambda here: start_training(with_weights(here, weights), constant_reward_per_ms=-0.5),
        "unknown change": lambda here: start_training(
            with_weights(here, weights), ("--accept-change", "constant_reward")
        ),
        "other network sizes": lambda here: start_training(with_weights(here, weights), float_hidden_dim=20),
        "other network sizes in another configuration": lambda here: start_training(
            with_weights(here, weights),
            ("--update-config",),
            float_hidden_dim=20,
        ),
        "weights of another network": start("--weights-from", str(good.run_folder), float_hidden_dim=20),
        "weights from nowhere": start("--weights-from", str(maps)),
        "weights from no folder": start("--weights-from", str(folder / "nowhere")),
        "map of nobody": start("--map", "atlantis"),
        "map of an environment": start("--preset", "cartpole", "--map", "kart"),
        "port in use": start(game_transport="'socket'", base_tmi_port=taken.getsockname()[1]),
        "full disk": start(minimum_free_disk_mb=10**9),
        "folder is a file": start("--output-folder", str(folder / "a_file")),
        "no such device": start(torch_device="'cuda:99'"),
        "real game": start(game="'tmnf'"),
    }


@pytest.mark.parametrize("mistake", marked(MISTAKES))
def test_one_clear_line(outcomes: dict[str, tuple[int, str, list[Any]]], mistake: str) -> None:
    exit_code, output, survivors = outcomes[mistake]
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert exit_code == (75 if mistake == "port in use" else 78), output
    assert "Traceback" not in output, output
    assert len(errors) == 1, output
    assert all(word in errors[0] for word in MISTAKES[mistake]), output
    assert not survivors


@pytest.mark.usefixtures("outcomes")
@pytest.mark.parametrize("mistake", marked(["other network sizes", "other network sizes in another configuration"]))
def test_a_run_keeps_its_configuration_if_its_checkpoint_does_not_fit_the_command(folder: Path, mistake: str) -> None:
    before, after = (folder / run / "save" / "tested" / "config" for run in ("good", mistake))
    assert {file.name: file.read_bytes() for file in after.glob("*.py")} == {
        file.name: file.read_bytes() for file in before.glob("*.py")
    }


@pytest.mark.usefixtures("outcomes")
@pytest.mark.parametrize("mistake", marked(LEAVE_NOTHING))
def test_a_mistake_leaves_nothing_of_a_new_run_behind(folder: Path, mistake: str) -> None:
    assert [file.name for file in (folder / mistake).iterdir()] == ["terminal.txt"]
