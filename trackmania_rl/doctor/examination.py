"""The checks in their order: all of them for the doctor, and those that a run must pass before it starts."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trackmania_rl.doctor.findings import (
    GUIDE,
    Check,
    Context,
    Finding,
    Level,
    System,
    ok,
    problem,
    warning,
)
from trackmania_rl.doctor.game_checks import check_game
from trackmania_rl.doctor.machine_checks import (
    check_disk,
    check_distribution,
    check_folder,
    check_gpu,
    check_loggers,
    check_machine,
    check_memory,
    check_packages,
    check_python,
    pinned,
)
from trackmania_rl.doctor.play_checks import SHIPPED_MAP, can_play, check_play
from trackmania_rl.doctor.run_checks import check_maps, check_maps_of_game, check_ports
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.places import DISTRIBUTION, IS_CHECKOUT
from trackmania_rl.settings import Settings, SettingsError, load_settings

log = logging.getLogger(__name__)


def examine(
    config_file: Path,
    overrides: Sequence[str],
    output_folder: Path,
    project: Path,
    picture_file: Path | None = None,
    system: System | None = None,
) -> Iterator[Finding]:
    """Check everything, one finding after the other.

    Args:
        config_file: the configuration.
        overrides: `name=value` texts that win over it.
        output_folder: where a run would write.
        project: the project's folder.
        picture_file: where to write a picture of a game that is played for some seconds; None to play none.
        system: this machine.
    """
    system = system or System()
    settings: Settings | SettingsError
    try:
        settings = load_settings(config_file, overrides)
        yield from check_machine(Context(settings, output_folder, project, system))
    except SettingsError as error:
        settings = error
    yield from check_python(system)
    if IS_CHECKOUT:
        yield from check_packages(system, pinned(project / "requirements.txt"))
    else:
        yield from check_distribution(system, importlib.metadata.distribution(DISTRIBUTION))
    if isinstance(settings, SettingsError):
        yield problem(Check.CONFIGURATION, settings)
        return
    context = Context(settings, output_folder, project, system)
    yield ok(Check.CONFIGURATION, f"{config_file} holds no mistake")
    yield from check_loggers(settings)
    yield from check_gpu(settings, system)
    yield from check_memory(settings, system)
    yield from check_folder(output_folder)
    yield from check_disk(context)
    of_game = [*check_maps(context), *check_game(context), *check_ports(settings)]
    yield from of_game
    if picture_file is None:
        return
    if can_play(of_game):
        yield from check_play(context, picture_file)
    else:
        yield from check_play_without_game(context, picture_file)


def check_play_without_game(context: Context, picture_file: Path) -> Iterator[Finding]:
    """Drive the simulated game through a socket, as the real one is driven: it proves all but the real game itself."""
    is_real = context.settings.game.game != "simulated"
    wanted = "the real game" if is_real else "this configuration"
    driven = "the simulated game is driven" if is_real else f"the shipped track {SHIPPED_MAP.map_name} is driven"
    yield warning(Check.GAME, f"{wanted} cannot be played yet, because of the problems above; {driven} in its place")
    changes = {"game": "simulated", "game_transport": "socket", "map_cycle": (SHIPPED_MAP,), "maps_folder": "maps"}
    game = context.settings.game.model_copy(update={**changes, "games_are_kept": False})
    yield from check_play(replace(context, settings=context.settings.model_copy(update={"game": game})), picture_file)


def check_start(context: Context) -> None:
    """Check what a run needs; what only may go wrong with the game is logged.

    Raises:
        UserError: naming every problem; a `PassingError` where only ports are taken.
    """
    findings = [
        *check_folder(context.output_folder),
        *check_disk(context),
        *check_loggers(context.settings),
        *check_gpu(context.settings, context.system),
        *check_maps_of_game(context),
        *(of_game := check_game(context)),
        *(of_ports := check_ports(context.settings)),
    ]
    for finding in (*of_game, *of_ports):
        if finding.level is Level.WARNING:
            log.warning("%s (%s, %s)", finding.text, GUIDE, finding.check)
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if problems:
        may_pass = all(problem.check is Check.PORTS for problem in problems)
        raise (PassingError if may_pass else UserError)("; and ".join(problem.text for problem in problems))
