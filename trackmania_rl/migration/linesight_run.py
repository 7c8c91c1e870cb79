"""Convert a Linesight run to a run that `train.py` resumes, and back.

Both sides have the same network, optimizer and schedules, so weights, the optimizer's running means and the
frame count carry over. The replay memory does not: it is refilled before learning resumes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.iqn import IQN_Network, IQNAgent
from trackmania_rl.agents.networks import QuantileNetwork
from trackmania_rl.agents.weights import views_of
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.migration import linesight_files as files
from trackmania_rl.migration.linesight_config import read_linesight_config, settings_from_linesight
from trackmania_rl.migration.linesight_files import require_bounded
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.runs.folder import CHECKPOINTS, RunFolder
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.snapshot import read_snapshot, write_snapshot
from trackmania_rl.runs.store import save_checkpoint
from trackmania_rl.schedules import exponential
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.telemetry.statistics import MapStatistics, TrainingStatistics

CONFIG_FILES: Final = ("config_copy.py", "config.py", "config.bak.py", "misc_copy.py", "misc.py")
"""File names for a Linesight configuration in a run's folder."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinesightRun:
    """A Linesight run's contents: weights by name, optimizer state (None for a fresh one), counters."""

    online: Mapping[str, Tensor]
    target: Mapping[str, Tensor]
    moments: files.Moments | None = None
    loss_scale: Mapping[str, float] = field(default_factory=dict)
    statistics: files.LinesightStatistics = field(default_factory=files.LinesightStatistics)


def read_linesight_run(folder: Path) -> LinesightRun:
    """Read a run's folder. Log missing files, except the online weights.

    Raises:
        UserError: without online weights, or if a file cannot be read within a time limit.
    """
    others = (
        ("target", files.read_weights, files.TARGET_WEIGHTS, "the target network starts as the online"),
        ("moments", files.read_moments, files.OPTIMIZER, "the optimizer starts from zero"),
        ("loss_scale", files.read_loss_scale, files.SCALER, "the loss scale starts as in a new run"),
        ("statistics", files.read_statistics, files.STATISTICS, "frames and schedules start from 0 (see --frames)"),
    )
    require_bounded([(files.read_weights, folder / files.ONLINE_WEIGHTS), *((of[1], folder / of[2]) for of in others)])
    online = files.read_weights(folder / files.ONLINE_WEIGHTS)
    run = LinesightRun(online, target=online)
    for name, read, file, otherwise in others:
        try:
            run = replace(run, **{name: read(folder / file)})  # type: ignore[arg-type]
        except files.LinesightFileError as error:
            log.warning("%s: %s", error, otherwise)
    return run


def import_linesight_run(
    run: LinesightRun, output: Path, config_file: Path, overrides: tuple[str, ...] = ()
) -> RunFolder:
    """Make a run, save/{run_name}, that resumes a Linesight run.

    Raises:
        UserError: if the output is in use, the configuration is wrong, or the weights do not fit it.
    """
    if output.parent.name != "save":
        raise UserError(f"--output {output}: a run lies in save/RUN_NAME, below the project or an output folder")
    if (output / CHECKPOINTS).exists():
        raise UserError(f"{output} holds a run already ({CHECKPOINTS}); choose another --output")
    overrides = (*overrides, f"run_name={output.name!r}")
    settings = load_settings(config_file, overrides)
    network = _network_for(settings)
    for name, weights in ((files.ONLINE_WEIGHTS, run.online), (files.TARGET_WEIGHTS, run.target)):
        check_weights(weights, network, name)
    if run.moments is not None:
        _check_moments(run.moments, network)

    state = _trainer_state(run, settings, network)
    folder = RunFolder.create(output.parent.parent, output.name)
    write_snapshot(config_file, folder.path, overrides)
    save_checkpoint(folder.path, state, settings.run.minimum_free_disk_mb)
    return folder


def export_linesight_run(run_folder: Path, output: Path) -> None:
    """Write a run as a Linesight run's files, into an empty or new folder.

    Raises:
        UserError: if the run cannot be read, Linesight has no such network, or the output is in use.
    """
    settings = read_snapshot(run_folder)
    loaded = load_checkpoint(run_folder, with_rows=False)
    if loaded is None:
        raise UserError(f"{run_folder} holds no checkpoint")
    network = _network_for(settings)
    state = loaded.state
    agent = state["agent"]
    try:
        network.load_state_dict(agent["online"])
    except RuntimeError as error:
        raise UserError(f"{run_folder}: checkpoint and configuration do not fit: {one_line(error)}") from None
    if output.is_dir() and any(output.iterdir()):
        raise UserError(f"--output {output} is not empty; choose another folder")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {output}: cannot be made: {error.strerror}") from error

    files.write_weights(output / files.ONLINE_WEIGHTS, agent["online"])
    files.write_weights(output / files.TARGET_WEIGHTS, agent["target"])
    statistics = TrainingStatistics(clock=lambda: 0.0)  # nothing is trained here
    statistics.load_state_dict(state["statistics"])
    optimizer = agent["step"]["optimizer"]
    if optimizer["step"] > 0:
        moments = files.Moments(
            tuple(views_of(optimizer["exp_avg"], list(network.parameters()))),
            tuple(views_of(optimizer["exp_avg_sq"], list(network.parameters()))),
            int(optimizer["step"]),
        )
        files.write_moments(
            output / files.OPTIMIZER,
            moments,
            learning_rate=exponential(settings.agent.lr_schedule, statistics.frames_total),
            betas=(settings.agent.adam_beta1, settings.agent.adam_beta2),
            eps=settings.agent.adam_epsilon,
        )
    files.write_loss_scale(output / files.SCALER, agent["step"]["scaler"])
    files.write_statistics(
        output / files.STATISTICS,
        files.LinesightStatistics(
            frames=statistics.frames_total,
            transitions=state["replay"]["transitions_stored"],
            batches=agent["updates"],
            training_hours=statistics.training_s / 3600,
            best_times_ms={
                name: of_map.best_time_ms for name, of_map in statistics.maps.items() if of_map.best_time_ms is not None
            },
        ),
        settings.replay.batch_size,
        settings.agent.number_memories_trained_on_between_target_network_updates,
    )


def overrides_of_linesight_config(file: Path, config_file: Path, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    """Return overrides that turn our configuration into a Linesight run's. Values without a counterpart are logged.

    Raises:
        UserError: if either file cannot be read, or our schedules are stretched.
    """
    ours = load_settings(config_file, overrides)
    if ours.run.schedule_stretch != 1:
        raise UserError(
            f"{config_file} has schedule_stretch = {ours.run.schedule_stretch}, which would stretch Linesight's "
            "schedules as well: set it to 1 for the import, and in the run's settings.toml afterwards"
        )
    require_bounded([(read_linesight_config, file)])
    changes, problems = settings_from_linesight(read_linesight_config(file), ours)
    for problem in problems:
        log.warning("%s: not taken over: %s", file, problem)
    for name, value in changes.items():
        log.info("%s: %s = %r", file, name, value)
    return tuple(f"{name}={value!r}" for name, value in changes.items())


def find_linesight_config(folder: Path) -> Path | None:
    """Return the configuration in a run's folder."""
    return next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)


def check_weights(weights: Mapping[str, Tensor], network: QuantileNetwork, what: str) -> None:
    """Raise `UserError` if the weights' names or shapes are not a network's, or a number is not finite."""
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    differences = [
        f"{name} is {found.get(name, 'missing')} and should be {expected.get(name, 'absent')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if differences:
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        raise UserError(
            f"{what} does not fit the configuration: {'; '.join(differences[:4])}{more}. Give the run's own sizes with "
            "--linesight-config, --config or --set"
        )
    broken = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(f"{what} holds numbers that are not finite, in {', '.join(broken[:4])}")


def _network_for(settings: Settings) -> QuantileNetwork:
    """Return the configuration's network. Raise `UserError` if Linesight has no such network."""
    agent = settings.agent
    network = IQN(settings, race_spaces(settings), SeedTree(settings.run.seed)).make_network()
    multiplied = agent.quantile_factors_multiply
    unknown_there = {
        f"network = {agent.network!r}": type(network) is not IQN_Network,
        "use_layer_norm = True": agent.use_layer_norm,
        "fourier_wavelengths": bool(settings.observation.fourier_wavelengths),
        f"quantile_factors_multiply = {multiplied!r}": multiplied != "features",
        f"frames_per_state = {settings.game.frames_per_state}": settings.game.frames_per_state != 1,
        f"expected_reward_per_action = {agent.expected_reward_per_action}": agent.expected_reward_per_action != 0,
        "views": bool(settings.observation.views),
        "no image": not settings.game.has_image,
    }
    if any(unknown_there.values()):
        named = ", ".join(name for name, is_set in unknown_there.items() if is_set)
        raise UserError(f"Linesight's network has no counterpart to this configuration ({named}); see config_tmnf.py")
    return network


def _trainer_state(run: LinesightRun, settings: Settings, network: QuantileNetwork) -> dict[str, Any]:
    seed = SeedTree(settings.run.seed).integer("learner")
    agent = IQNAgent(network, settings.agent, device=torch.device("cpu"), seed=seed)
    agent.load_weights(run.online)
    agent.loss_module.target.load_state_dict(run.target)
    agent.updates = run.statistics.batches
    state = agent.state_dict()
    if run.moments is not None:
        state["step"]["optimizer"] = {
            "step": torch.tensor(float(run.moments.steps)),
            "exp_avg": _as_vector(run.moments.mean),
            "exp_avg_sq": _as_vector(run.moments.mean_square),
        }
    state["step"]["scaler"] = torch.amp.GradScaler("cpu").state_dict() | dict(run.loss_scale)
    return {
        "agent": state,
        "n_turns": 0,
        "statistics": _statistics(run.statistics, settings).state_dict(),
        "collectors": {"collectors": {}},
        "replay": {
            "transitions_stored": run.statistics.transitions,
            "transitions_drawn": 0,
            "transitions_due": 0.0,
            "memory": None,
        },
        "resets": {"counted_from_frames": run.statistics.frames},
        "hooks": {},
    }


def _statistics(counters: files.LinesightStatistics, settings: Settings) -> TrainingStatistics:
    """Return the run's statistics. Leave out unfinished races' best times, which are at the cut-off."""
    statistics = TrainingStatistics(clock=lambda: 0.0)
    statistics.frames_total = counters.frames
    for name, time_ms in counters.best_times_ms.items():
        if time_ms < settings.game.cutoff_race_longer_than_ms:
            statistics.maps[name] = MapStatistics()
            statistics.maps[name].explored.best_time_ms = time_ms
    state = statistics.state_dict() | {"training_s": counters.training_hours * 3600}
    statistics.load_state_dict(state)
    return statistics


def _check_moments(moments: files.Moments, network: QuantileNetwork) -> None:
    shapes = [parameter.shape for parameter in network.parameters()]
    for tensors in (moments.mean, moments.mean_square):
        if [tensor.shape for tensor in tensors] != shapes:
            raise UserError(f"{files.OPTIMIZER} does not fit the weights: it belongs to another network")


def _as_vector(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
