"""From a run to a driver's file; from a file, which may be a stranger's, to settings and a network on this machine."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trackmania_rl.agents.builder import AgentBuilder
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.places import PROJECT_FOLDER
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import (
    CHECKPOINTS,
    FIRST_CHECKPOINT_AFTER_S,
    RACES_FILE,
    CheckpointError,
    load_newest,
    read_checkpoint,
)
from trackmania_rl.runs.driver_file import (
    DriverCard,
    DriverFile,
    DriverFileError,
    DriverTrack,
    Interface,
    is_driver_file,
    read_driver,
)
from trackmania_rl.settings import (
    DRIVER_SETTINGS,
    Settings,
    SettingsError,
    code_of_driver,
    differences_of_driver,
    load_settings,
    settings_of_driver,
    shifts_of,
)
from trackmania_rl.settings.snapshot import own_file, read_own
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.training.finite_numbers import in_few_words, not_finite_tensors

log = logging.getLogger(__name__)

CONFIG_FILE: Final = PROJECT_FOLDER / "config_files" / "config.py"
"""This machine's configuration, for what a driver's file says nothing about."""
SHIPPED_CODE: Final = frozenset(
    (
        "trackmania_rl.games.race_games:RaceGames",
        "trackmania_rl.agents.builder:IQN",
        "trackmania_rl.agents.iqn:IQN_Network",
        "trackmania_rl.agents.behaviour_cloning:BehaviourCloning",
        "trackmania_rl.agents.torchrl_agent:TorchRLAgent",
        *(
            f"trackmania_rl.agents.torchrl_agent:{name}"
            for name in ("SAC", "DiscreteSAC", "TD3", "CrossQ", "REDQ", "DQN", "IQL", "DiscreteIQL")
        ),
        *(
            f"torchrl.objectives.{module}:{name}"
            for module, name in (
                *(("sac", "SACLoss"), ("sac", "DiscreteSACLoss"), ("td3", "TD3Loss"), ("crossq", "CrossQLoss")),
                *(("redq", "REDQLoss"), ("dqn", "DQNLoss"), ("iql", "IQLLoss"), ("iql", "DiscreteIQLLoss")),
            )
        ),
    )
)
"""Parts that any driver may name: what ships, and does nothing but drive and learn."""
LARGEST_NETWORKS: Final = 16
SMALLEST_BOUND: Final = 1 << 22
"""All that a builder makes is so many times larger than the network that drives, at most, and so many numbers."""
MOST_FLOATS: Final = 10**6
MOST_PIXELS: Final = 1 << 26
"""Bounds of what a driver is shown at a time, views and waves included."""


@dataclass(frozen=True)
class Learned:
    """What drives: that of a run, or of a driver's file.

    Attributes:
        settings: that go with the weights.
        weights: of the network that evaluates.
        statistics: of the run: `frames_total`, `training_s`, and of a run's checkpoint all others.
        file: where the weights were read from.
        has_to_fit: what else has to fit the weights, for errors.
    """

    settings: Settings
    weights: Mapping[str, Tensor]
    statistics: Mapping[str, Any]
    file: Path
    has_to_fit: str


def load_run_settings(run_folder: Path) -> Settings:
    """Load a run's own settings.

    Raises:
        UserError: if there is no such run, or its settings can't be used.
    """
    if not run_folder.is_dir():
        raise UserError(f"{run_folder}: there is no such run folder; scripts/train.py makes save/{{run_name}}")
    if not (file := own_file(run_folder)).is_file():
        raise UserError(f"{run_folder} is no run folder: {file} is missing (a training writes it in its first seconds)")
    return read_own(run_folder)


def _when_it_comes(run_folder: Path, settings: Settings) -> str:
    """When a run that has no checkpoint will have one, and how far it is from there."""
    n_races = n_finished = 0
    with contextlib.suppress(OSError), (run_folder / RACES_FILE).open(encoding="utf-8") as lines:
        for line in lines:
            n_races += 1
            n_finished += '"race_finished": true' in line
    return (
        f"the training writes the first one {FIRST_CHECKPOINT_AFTER_S:g} s after the first finish, at the latest after "
        f"{settings.run.checkpoint_interval_s:g} s, and when it ends (Ctrl-C); so far {n_finished} of {n_races} races "
        "have finished"
    )


def read_run(run_folder: Path, checkpoint: Path | None = None) -> Learned:
    """Read what a run has learned: its averaged weights, or the online ones if it keeps no average.

    Args:
        run_folder: save/{run_name}.
        checkpoint: another checkpoint of this run, or one of its drivers; None for its newest checkpoint.

    Raises:
        UserError: if folder, configuration or checkpoint are missing or damaged.
    """
    settings = load_run_settings(run_folder)
    has_to_fit = f"the configuration in {run_folder}"
    if checkpoint is not None and is_driver_file(checkpoint):
        driver = read_driver(checkpoint)
        counts = {"frames_total": driver.card.frames_total, "training_s": driver.card.training_s}
        return Learned(settings, driver.weights, counts, checkpoint, has_to_fit)
    file, state = read_state(run_folder, checkpoint, settings, with_rows=False)
    kind = "averaged" if settings.agent.evaluation_weights_decay > 0 else "online"
    try:
        weights, known = state["agent"][kind], state["hooks"]["CountRaces"]
        counts = {"frames_total": int(known["frames_total"]), "training_s": float(known["training_s"])}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is no checkpoint of a training: it holds no {error}") from error
    return Learned(settings, weights, {**known, **counts}, file, has_to_fit)


def read_state(
    run_folder: Path, checkpoint: Path | None, settings: Settings, with_rows: bool = True
) -> tuple[Path, dict[str, Any]]:
    """Read all that a run's newest checkpoint holds, or another one of its; returns its folder as well.

    Args:
        run_folder: save/{run_name}.
        checkpoint: another checkpoint of this run.
        settings: of the run.
        with_rows: whether the replay memory's rows are read.

    Raises:
        CheckpointError: if there is none, or it cannot be read.
    """
    if checkpoint is not None:
        if not checkpoint.exists():
            raise CheckpointError(
                f"{checkpoint}: there is no such checkpoint; those that are there are in {run_folder / CHECKPOINTS}"
            )
        return checkpoint, read_checkpoint(checkpoint, with_rows)
    loaded = load_newest(run_folder, with_rows)
    if loaded is None:
        raise CheckpointError(f"{run_folder} holds no checkpoint yet: {_when_it_comes(run_folder, settings)}")
    return loaded.folder, loaded.state


def read_file(file: Path, code: Collection[str] = ()) -> Learned:
    """Read a driver's file, which may be a stranger's, for this machine.

    Args:
        file: of the driver.
        code: modules that it may import, beside what ships.

    Raises:
        UserError: if it is missing, damaged or of another version, names other code, or cannot be used here.
    """
    driver = read_driver(file)
    card = driver.card
    settings = settings_here(file, card)
    require_known_code(file, settings, code)
    here = Interface.of(settings, make_games_builder(settings).spaces)
    if difference := card.interface.difference(here):
        raise DriverFileError(
            f"{file} is for {difference} than this version of the program makes of its settings: drive it with version "
            f"{card.program!r}, which packed it"
        )
    counts = {"frames_total": card.frames_total, "training_s": card.training_s}
    return Learned(settings, driver.weights, counts, file, "its own settings")


def pack_run(run_folder: Path, checkpoint: Path | None = None) -> DriverFile:
    """Make a driver's file of what a run has learned; `write_driver` writes it.

    Args:
        run_folder: save/{run_name}.
        checkpoint: another checkpoint of this run; None for its newest one.

    Raises:
        UserError: if folder, configuration or checkpoint are missing or damaged, or a setting cannot be written.
    """
    run = read_run(run_folder, checkpoint)
    settings = run.settings
    best_times_ms = {name: _best_time_ms(of_map) for name, of_map in run.statistics.get("maps", {}).items()}
    return DriverFile.of_network(
        settings.run.run_name,
        settings,
        make_games_builder(settings).spaces,
        run.weights,
        tracks_of(settings, best_times_ms),
        frames_total=run.statistics["frames_total"],
        training_s=run.statistics["training_s"],
    )


def weights_to_begin_with(file: Path, settings: Settings, spaces: Spaces) -> Mapping[str, Tensor]:
    """Read the weights with which another run begins; settings that differ, but may, are told by a warning.

    Args:
        file: of a driver.
        settings: of the run.
        spaces: of its games.

    Raises:
        DriverFileError: if the file cannot be used, or the run has another observation or other actions.
    """
    driver = read_driver(file)
    if difference := driver.card.interface.difference(Interface.of(settings, spaces)):
        raise DriverFileError(
            f"{file} is for {difference} than this run; begin with its own settings, which scripts/tools/driver.py "
            "configuration writes"
        )
    others = differences_of_driver(driver.card.settings, settings)
    if others:
        log.warning("%s drove with other values of %s", file, ", ".join(others))
    return driver.weights


def tracks_of(settings: Settings, best_times_ms: Mapping[str, int | None]) -> list[DriverTrack]:
    """List the tracks of a map cycle, each with the best time there by its name."""
    entries = {entry.map_name: entry for entry in settings.game.map_cycle}
    return [DriverTrack.of_entry(entry, best_times_ms.get(name)) for name, entry in entries.items()]


def _best_time_ms(of_map: Mapping[str, Any]) -> int | None:
    """Find the fastest finish in a map's statistics, explored or evaluated."""
    times = (history["best_time_ms"] for history in of_map.values())
    return min((time_ms for time_ms in times if time_ms is not None), default=None)


def own_code(settings: Settings) -> list[str]:
    """List the code that a driver's settings name and that does not ship, as texts for a person."""
    return [f"{setting}: {name}" for setting, name in code_of_driver(settings) if name not in SHIPPED_CODE]


def settings_here(file: Path, card: DriverCard, config: Path = CONFIG_FILE) -> Settings:
    """Put a driver's settings into this machine's configuration; nothing that they name is imported.

    Args:
        file: of the driver, for errors.
        card: what it says.
        config: this machine's configuration file.

    Raises:
        UserError: if they cannot be used, or ask for more memory than a driver may.
    """
    around = load_settings(config)
    try:
        settings = settings_of_driver(card.settings, [track.entry() for track in card.tracks], around)
        _require_bounded(settings)
    except (SettingsError, ValidationError, RecursionError) as error:
        raise DriverFileError(f"{file}: {one_line(error)}") from None
    return settings


def require_known_code(file: Path, settings: Settings, code: Collection[str]) -> None:
    """See that a driver imports nothing but what ships and what its user trusts.

    Args:
        file: of the driver, for errors.
        settings: the driver's.
        code: modules that it may import.

    Raises:
        DriverFileError: if it names another one.
    """
    allowed = tuple(f"{module}." for module in code)
    for setting, name in code_of_driver(settings):
        module = name.partition(":")[0]
        if name not in SHIPPED_CODE and not f"{module}.".startswith(allowed):
            raise DriverFileError(
                f"{file}: its setting {setting} names code that does not ship: {name}; if you have read and trust it, "
                f"put {module} beside the configuration or into the current folder, and name it with --code {module}"
            )


@contextlib.contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Let every error of the block name the driver's file."""
    try:
        yield
    except UserError as error:
        if str(file) in str(error):
            raise
        raise DriverFileError(f"{file}: {one_line(error)}") from error


def fill_network(learned: Learned, builder: AgentBuilder) -> nn.Module:
    """Make a network with the weights that were learned.

    Args:
        learned: what drives.
        builder: makes the network.

    Raises:
        UserError: if the weights are those of another network, or not finite.
    """
    if names := not_finite_tensors(dict(learned.weights)):
        raise CheckpointError(
            f"{learned.file}: its weights {in_few_words(names)} are not finite numbers, so it cannot drive"
        )
    told = f"{learned.file} does not fit {learned.has_to_fit}"
    try:
        with _Bounded(LARGEST_NETWORKS * sum(map(Tensor.numel, learned.weights.values())) + SMALLEST_BOUND):
            network = builder.make_network()
        network.load_state_dict(dict(learned.weights))
    except RuntimeError as error:
        raise CheckpointError(f"{told}: {one_line(error)}") from error
    return network


class _Bounded(TorchFunctionMode):
    """A context in which modules are made of so many numbers at most, as a small file may ask for any network."""

    def __init__(self, most_numbers: int) -> None:
        super().__init__()
        self._left = most_numbers

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count what is asked for before it is given."""
        if function is torch.empty:  # of which modules make their parameters
            self._left -= math.prod(args[0] if args and isinstance(args[0], Sequence) else args)
            if self._left < 0:
                raise RuntimeError("the settings ask for a far larger network than its weights are")
        return function(*args, **(kwargs or {}))


def _require_bounded(settings: Settings) -> None:
    """Raise `SettingsError` where few settings ask for a great deal of memory."""
    observation, game = settings.observation, settings.game
    n_own = sum(len(mean) for mean, _ in observation.state_normalization.values())
    n_rows = sum(len(shifts_of(view.shift)) for view in observation.views.values())
    n_waves = sum(map(len, observation.fourier_wavelengths.values()))
    n_floats, n_pixels = n_own * (1 + n_rows) * (1 + n_waves), math.prod(game.image_shape)
    if n_floats > MOST_FLOATS or n_pixels > MOST_PIXELS:
        raise SettingsError(
            f"it asks for up to {n_floats:,} floats and {n_pixels:,} pixels, and a driver is shown {MOST_FLOATS:,} and "
            f"{MOST_PIXELS:,} at most"
        )


def described(driver: DriverFile, settings: Settings) -> dict[str, str]:
    """Say what a driver is, in a few lines: heading and text.

    Args:
        driver: what its file holds.
        settings: the driver's, as of `settings_here`.
    """
    card, game, image = driver.card, settings.game, driver.card.interface.image_shape
    tracks = [
        f"{track.map_name} {'not finished' if track.best_time_ms is None else format_time(track.best_time_ms)}"
        for track in card.tracks
    ]
    actions, blocks = card.interface.actions, len(card.interface.blocks)
    duration = settings.replay.temporal_mini_race_duration_actions
    of_blocks = f" in {blocks} blocks" if blocks else ""
    return {
        "driver": card.name,
        "best times": ", ".join(tracks),
        "trained": f"{card.frames_total:,} frames, {card.training_s / 60:.1f} minutes",
        "sees": f"{card.interface.n_floats} floats{of_blocks}, "
        + (f"image of {image[2]} x {image[1]} pixels, {image[0]} at a time" if image[1] else "no image"),
        "decides": f"every {game.ms_per_action} ms among {len(actions)}: {', '.join(actions)}"
        if game.actions == "keys"
        else f"every {game.ms_per_action} ms on {', '.join(actions)}",
        "mini-race": "none" if duration is None else f"{duration} actions",
        "network": f"{driver.n_parameters:,} parameters",
        "agent": str(settings.agent.agent),
        "needs code": "; ".join(own_code(settings)) or "none but this program",
        "packed by": f"version {card.program}",
    }


def configuration_text(file: Path, settings: Settings) -> str:
    """Write a configuration file, based on config.py, by which a training goes on with a driver.

    Args:
        file: of the driver, for the text.
        settings: the driver's, as of `settings_here`.
    """
    groups = (group.model_dump(include=set(DRIVER_SETTINGS), warnings=False) for _, group in settings)
    values = {name: value for group in groups for name, value in group.items()}
    lines = [f"{name} = {value!r}\n" for name, value in values.items()]
    return f'"""The settings of the driver {file.name}."""\n\nbased_on = "{CONFIG_FILE.name}"\n\n' + "".join(lines)
