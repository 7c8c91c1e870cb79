"""Drivers: from a run to a driver's file, and from an untrusted file to settings and a network here."""

from __future__ import annotations

import functools
import importlib
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trackmania_rl.agents.builder import AgentBuilder
from trackmania_rl.agents.networks import QuantileNetwork
from trackmania_rl.agents.weights import in_few_words, not_finite_tensors
from trackmania_rl.drivers.driver_file import (
    DriverCard,
    DriverFile,
    DriverFileError,
    DriverTrack,
    Interface,
    driver_values,
    is_driver_file,
    read_driver,
)
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.games.race_games import GamesBuilder, make_games_builder
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.folder import CHECKPOINTS, SETTINGS_FILE, is_run
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.snapshot import read_snapshot
from trackmania_rl.runs.store import FIRST_CHECKPOINT_AFTER_S
from trackmania_rl.settings import (
    DRIVER_SETTINGS,
    NamedPart,
    Settings,
    SettingsError,
    load_settings,
    settings_from_flat,
    shifts_of,
)
from trackmania_rl.settings.groups import DEFAULTS, RewardSettings

log = logging.getLogger(__name__)

CONFIG_FILE: Final = PROJECT_FOLDER / "config_files" / "config.py"
"""This machine's configuration, which has the settings that a driver's file lacks."""
STATISTICS: Final = "state_normalization"
"""May lack an unobserved block."""
_WITHOUT_LEARNING: Final[Mapping[str, Any]] = {
    **{name: DEFAULTS[name] for name in RewardSettings.model_fields if name != "reward"},
    "n_collectors": 1,
    "demonstrations": (),
    "offline": (),
    "oversample_long_term_steps": 0,
    "gamma_schedule": 1.0,
}
"""Learning settings, with values that fit any driver."""
LARGEST_NETWORKS: Final = 16
SMALLEST_BOUND: Final = 1 << 22
"""A builder may make this many times the driver's weight count, and this many more."""
MOST_FLOATS: Final = 10**6
MOST_PIXELS: Final = 1 << 26
"""A driver's largest observation, views and waves included."""


@dataclass(frozen=True)
class Learned:
    """Weights from a run's checkpoint or a driver's file, with the settings that make the network.

    Attributes:
        weights: of the evaluation network.
        statistics: run statistics: `frames_total`, `training_s`, and with a checkpoint all others.
        file: the checkpoint's folder, or the driver's file.
        made_with: training settings, as JSON.
        agent: agent's state in a checkpoint; None for a driver.
        card: driver card; None for a checkpoint.
    """

    settings: Settings
    weights: Mapping[str, Tensor]
    statistics: Mapping[str, Any]
    file: Path
    made_with: Mapping[str, Any]
    agent: Mapping[str, Any] | None = None
    card: DriverCard | None = None


def load_run_settings(run_folder: Path) -> Settings:
    """Load a run's settings. Raise `UserError` if the run does not exist, or they can't be used."""
    if not run_folder.is_dir():
        raise UserError(f"{run_folder}: there is no such run folder; scripts/train.py makes save/{{run_name}}")
    if not is_run(run_folder):
        file = run_folder / SETTINGS_FILE
        raise UserError(f"{run_folder} is no run folder: {file} is missing (a training writes it in its first seconds)")
    return read_snapshot(run_folder)


def load_weights(source: Path, settings: Settings) -> Learned:
    """Load the weights in a run's newest checkpoint, in one checkpoint, or in a driver's file, for these settings.

    These are averaged weights, or online ones without an average.

    Raises:
        UserError: if missing or damaged.
    """
    if is_driver_file(source):
        driver = read_driver(source)
        counts = {"frames_total": driver.card.frames_total, "training_s": driver.card.training_s}
        return Learned(settings, driver.weights, counts, source, driver.card.settings, card=driver.card)
    if not source.exists():
        raise CheckpointError(f"{source}: there is no such checkpoint; those of a run are in its {CHECKPOINTS}")
    loaded = load_checkpoint(source, with_rows=False)
    if loaded is None:
        raise CheckpointError(
            f"{source} holds no checkpoint yet: a training writes the first one {FIRST_CHECKPOINT_AFTER_S:g} s after "
            "the first finish, and one when it ends (Ctrl-C)"
        )
    kind = "averaged" if settings.agent.evaluation_weights_decay > 0 else "online"
    try:
        agent = loaded.state["agent"]
        known = loaded.state["statistics"]
        counts = {"frames_total": int(known["frames_total"]), "training_s": float(known["training_s"])}
        return Learned(settings, agent[kind], {**known, **counts}, loaded.folder, loaded.manifest.settings, agent)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{loaded.folder} is no checkpoint of a training: it holds no {error}") from error


def load_learned(source: Path, checkpoint: Path | None = None, code: Collection[str] = ()) -> Learned:
    """Load a run, or an untrusted driver's file, with its settings.

    Args:
        source: save/{run_name} or a driver's file.
        checkpoint: another checkpoint or driver in this run; None for the newest checkpoint.
        code: modules that a driver's file may import besides the shipped ones.

    Raises:
        UserError: if a file is missing, damaged or from another version, names other code, or cannot be used here.
    """
    if not is_driver_file(source):
        settings = load_run_settings(source)
        return load_weights(source if checkpoint is None else checkpoint, settings)
    learned = load_weights(source, load_settings(CONFIG_FILE))
    card = learned.card
    assert card is not None
    settings = settings_here(source, card)
    require_known_code(code_of_driver(settings), code, str(source))
    if difference := card.interface.difference(Interface.of(settings, make_games_builder(settings).spaces)):
        raise DriverFileError(
            f"{source} is for {difference} than this version of the program makes of its settings: drive it with "
            f"version {card.program!r}, which packed it"
        )
    return replace(learned, settings=settings)


@functools.cache
def ships(name: str) -> bool:
    """Return whether a part is an agent, network, loss or game in this program: these only drive and learn."""
    module, _, attribute = name.partition(":")
    if module.startswith("torchrl."):
        from trackmania_rl.agents.torchrl_agent import NETWORKS  # slow

        return name in {f"{loss.__module__}:{loss.__qualname__}" for loss in NETWORKS}
    if name in ("trackmania_rl.channels.over_grpc:SampleCompressor", "trackmania_rl.channels.over_grpc:HalfFloats"):
        return True
    if not module.startswith(("trackmania_rl.agents.", "trackmania_rl.games.")):
        return False
    try:
        part = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return False
    kind = part.func if isinstance(part, functools.partial) else part
    if not isinstance(kind, type) or kind is AgentBuilder:
        return False
    return issubclass(kind, AgentBuilder) or not {QuantileNetwork, GamesBuilder}.isdisjoint(kind.__mro__[1:])


def require_known_code(parts: Sequence[tuple[str, str]], code: Collection[str], source: str) -> None:
    """Raise `DriverFileError` if one of the parts, (setting, "module:attribute"), neither ships nor is in `code`."""
    for setting, name in parts:
        module = name.partition(":")[0]
        if not ships(name) and not f"{module}.".startswith(tuple(f"{allowed}." for allowed in code)):
            raise DriverFileError(
                f"{source}: its setting {setting} names code that does not ship: {name}; if you have read and trust "
                f"it, put {module} beside the configuration or into the current folder, and add --code {module}"
            )


def settings_here(file: Path, card: DriverCard) -> Settings:
    """Put a driver's settings into this machine's configuration, without importing parts that they name."""
    try:
        values = card.settings
        if values.keys() != DRIVER_SETTINGS:
            lacking = sorted(DRIVER_SETTINGS - values.keys())
            unknown = sorted(values.keys() - DRIVER_SETTINGS)
            raise SettingsError(
                "another version of this program packed it: of its settings this one misses "
                f"{', '.join(lacking) or 'none'}, and does not know {', '.join(unknown)[:200]!r}"
            )
        map_cycle = tuple(track.entry() for track in card.tracks)
        around = {**load_settings(CONFIG_FILE).flat(), **_WITHOUT_LEARNING, "map_cycle": map_cycle}
        settings = settings_from_flat({**around, **values}, "its settings")
        _require_bounded(settings)
    except (SettingsError, ValidationError, RecursionError) as error:
        raise DriverFileError(f"{file}: {one_line(error)}") from None
    return settings


def _require_bounded(settings: Settings) -> None:
    observation = settings.observation
    game = settings.game
    n_own = sum(len(mean) for mean, _ in observation.state_normalization.values())
    n_rows = sum(len(shifts_of(view.shift)) for view in observation.views.values())
    n_waves = sum(map(len, observation.fourier_wavelengths.values()))
    n_floats = n_own * (1 + n_rows) * (1 + n_waves)
    n_pixels = math.prod(game.image_shape)
    if n_floats > MOST_FLOATS or n_pixels > MOST_PIXELS:
        raise SettingsError(
            f"it asks for up to {n_floats:,} floats and {n_pixels:,} pixels, and a driver is shown {MOST_FLOATS:,} and "
            f"{MOST_PIXELS:,} at most"
        )


def fill_network(learned: Learned, builder: AgentBuilder) -> nn.Module:
    """Make a network with the learned weights. Raise `UserError` if they do not fit or are not finite."""
    if names := not_finite_tensors(dict(learned.weights)):
        raise CheckpointError(
            f"{learned.file}: its weights {in_few_words(names)} are not finite numbers, so it cannot drive"
        )
    try:
        with _Bounded(LARGEST_NETWORKS * sum(map(Tensor.numel, learned.weights.values())) + SMALLEST_BOUND):
            network = builder.make_network()
        network.load_state_dict(dict(learned.weights))
    except RuntimeError as error:
        raise CheckpointError(f"{learned.file} does not fit its settings: {one_line(error)}") from error
    return network


class _Bounded(TorchFunctionMode):
    """Context that limits the size of modules made in it, because a small file may ask for any network."""

    def __init__(self, most_numbers: int) -> None:
        super().__init__()
        self._left = most_numbers

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.empty:  # which makes module parameters
            self._left -= math.prod(args[0] if args and isinstance(args[0], Sequence) else args)
            if self._left < 0:
                raise RuntimeError("the settings ask for a far larger network than its weights are")
        return function(*args, **(kwargs or {}))


def pack_run(run_folder: Path, checkpoint: Path | None = None) -> DriverFile:
    """Make a driver's file from the weights in a run's checkpoint, by default the newest; `write_driver` writes it."""
    run = load_learned(run_folder, checkpoint)
    best_times_ms: dict[str, int | None] = {}
    for name, of_map in run.statistics.get("maps", {}).items():  # explored and evaluated
        times_ms = [history["best_time_ms"] for history in of_map.values() if history["best_time_ms"] is not None]
        best_times_ms[name] = min(times_ms, default=None)
    return DriverFile.of_network(
        run.settings.run.run_name,
        run.settings,
        make_games_builder(run.settings).spaces,
        run.weights,
        tracks_of(run.settings, best_times_ms),
        frames_total=run.statistics["frames_total"],
        training_s=run.statistics["training_s"],
    )


def tracks_of(settings: Settings, best_times_ms: Mapping[str, int | None]) -> list[DriverTrack]:
    """Return a map cycle's tracks with best times by map name."""
    entries = {entry.map_name: entry for entry in settings.game.map_cycle}
    return [DriverTrack.of_entry(entry, best_times_ms.get(name)) for name, entry in entries.items()]


def first_weights(learned: Learned, spaces: Spaces) -> Mapping[str, Tensor]:
    """Return the weights that a new run begins with. Log other driver settings that differ.

    Raises:
        DriverFileError: if the run has another observation or other actions than the driver.
    """
    if learned.card is None:
        return learned.agent["online"] if learned.agent else learned.weights
    if difference := learned.card.interface.difference(Interface.of(learned.settings, spaces)):
        raise DriverFileError(
            f"{learned.file} is for {difference} than this run; begin with its own settings, which "
            "scripts/tools/driver.py configuration writes"
        )
    if others := differences_of_driver(learned.card.settings, learned.settings):
        log.warning("%s drove with other values of %s", learned.file, ", ".join(others))
    return learned.weights


def differences_of_driver(values: Mapping[str, Any], settings: Settings) -> list[str]:
    """List a driver's settings that differ from a configuration's; among the statistics, those that both have."""
    ours = driver_values(settings)
    in_both = ours[STATISTICS].keys() & values[STATISTICS].keys()
    mine, its = ({**side, STATISTICS: {block: side[STATISTICS][block] for block in in_both}} for side in (ours, values))
    return sorted(name for name, value in mine.items() if its.get(name) != value)


def code_of_driver(settings: Settings) -> list[tuple[str, str]]:
    """List the imports in a driver's settings, as (setting, "module:attribute") pairs."""
    parts: list[tuple[str, str | NamedPart]] = [
        ("games", settings.game.games),
        ("agent", settings.agent.agent),
        ("network", settings.agent.network),
    ]
    for entry in settings.game.map_cycle:
        if isinstance(entry.generator, str | NamedPart):
            parts.append(("map_cycle", entry.generator))
    return [(setting, name) for setting, part in parts for name in names_in(part)]


def names_in(part: str | NamedPart) -> list[str]:
    """List a part's imports, as "module:attribute", Gymnasium ids ("module:Name-v0") included."""
    if isinstance(part, str):
        return [part]
    given = (*part.args, *part.keywords.values())
    named = [value for value in given if isinstance(value, NamedPart) or (isinstance(value, str) and ":" in value)]
    return [part.name, *(name for value in named for name in names_in(value))]


def own_code(settings: Settings) -> list[str]:
    """Return the parts in a driver's settings that do not ship, as texts."""
    return [f"{setting}: {name}" for setting, name in code_of_driver(settings) if not ships(name)]
