"""Machine, map and game checks, as two tables: for the doctor, and for a run before it starts."""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil
import torch
from filelock import Timeout

from trackmania_rl.agents.devices import pick_device, usable_cores, why_unusable
from trackmania_rl.doctor.findings import GUIDE, Check, Context, Finding, Level, ok, problem, warning
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.experience_replay.ring_buffer import SPARE, RingBuffer
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.runs.folder import KEPT_CHECKPOINTS
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.loggers import missing_packages
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords
from trackmania_rl.tmi_interaction.launchers.game_windows import WindowError, open_windows
from trackmania_rl.tmi_interaction.launchers.kept_game import absent_text, greet, lock_of_kept_game, taken_text
from trackmania_rl.tmi_interaction.launchers.launcher import check_port_is_free
from trackmania_rl.tmi_interaction.launchers.plugin_files import (
    Outcome,
    find_game_documents,
    find_plugins_folder,
    install_plugin,
)
from trackmania_rl.tmi_interaction.launchers.tmnf import CHALLENGES, check_profile, find_tmloader, split_game_command
from trackmania_rl.tmi_interaction.tminterface2 import GameError
from trackmania_rl.track.game_map import load_map_files, named_maps, what_misses_checkpoints

GAME_BYTES: Final = 1 << 30
"""Memory per real game instance."""
PROCESS_BYTES: Final = 600 << 20
"""Memory per training process, mostly torch."""
TRANSITION_BYTES: Final = 16
"""Memory per transition beside the row: the row's number and a priority."""
MEMORIES_ON_DISK: Final = 3
"""Replay memories on disk: checkpoints share rows, but the best, the newest and those between may share none."""
MORE_CHECKPOINTS: Final = 2
"""Beside the newest ones: the best one and, for a moment, the next one."""
NETWORKS_BYTES: Final = 32 << 20
"""Checkpoint size without the replay memory."""
WINE_LIKE: Final = ("wine", "wine64", "proton", "umu-run", "lutris", "steam", "bottles-cli", "flatpak")
LOGIN: Final = re.compile(r"[A-Za-z0-9._-]+")
GREETS_WITHIN_S: Final = 5.0

log = logging.getLogger(__name__)


def check_start(context: Context) -> None:
    """Run the checks that a run must pass. Warnings about the game and its ports are logged.

    Raises:
        UserError: with every problem; a `PassingError` if only ports are in use.
    """
    problems = []
    for check in CHECKS_OF_A_START:
        for finding in check(context):
            if finding.level is Level.PROBLEM:
                problems.append(finding)
            elif finding.level is Level.WARNING and check in CHECKS_OF_PLAYING:
                log.warning("%s (%s, %s)", finding.text, GUIDE, finding.check)
    if problems:
        may_pass = all(finding.check is Check.PORTS for finding in problems)
        raise (PassingError if may_pass else UserError)("; and ".join(finding.text for finding in problems))


# The machine.


def needs_of(settings: Settings) -> tuple[int, int, int]:
    """Return upper estimates for a training's replay memory, total memory and disk, in bytes."""
    run = settings.run
    game = settings.game
    n_floats = ObservationLayout(settings.observation, game.actions).n_row_floats
    row_bytes = RingBuffer.bytes_per_row(n_floats, game.image_shape[1:]) + TRANSITION_BYTES
    # While the memory grows, the old columns exist too, but unused rows take no host memory: the larger counts.
    replay_bytes = row_bytes * max(size for _, size in settings.replay.memory_size_schedule)
    games_bytes = 0 if game.game == "simulated" else GAME_BYTES * game.n_collectors * game.games_per_collector
    memory_bytes = games_bytes + PROCESS_BYTES * (1 + game.n_collectors)
    disk_bytes = NETWORKS_BYTES * (KEPT_CHECKPOINTS + MORE_CHECKPOINTS) + (run.minimum_free_disk_mb << 20)
    if settings.replay.replay_storage == "disk":
        return 0, memory_bytes, disk_bytes + replay_bytes + replay_bytes // SPARE
    disk_bytes += MEMORIES_ON_DISK * replay_bytes * run.checkpoint_holds_replay
    return replay_bytes, replay_bytes + memory_bytes, disk_bytes


def check_machine(context: Context) -> Iterator[Finding]:
    """Show the machine beside the configuration's needs; each resource's check has the remedy."""
    game = context.settings.game
    n_cores = usable_cores()
    memory = psutil.virtual_memory()
    _, needed_bytes, disk_bytes = needs_of(context.settings)
    wants_gpu = "advised, as the network sees images" if game.has_image else "not needed"
    yield ok(
        Check.MACHINE,
        f"{platform.system()} {platform.release()}, {n_cores} cores, {_gib(memory.total)} of memory "
        f"({_gib(memory.available)} available), {_gib(_free_bytes(context))} of disk free, "
        f"{_gpu() or 'no GPU that torch can use'}; this configuration needs up to {_gib(needed_bytes)} of memory "
        f"and {_gib(disk_bytes)} of disk; a GPU is {wants_gpu}",
    )
    if game.n_collectors > n_cores:
        text = f"n_collectors = {game.n_collectors}, but there are {n_cores} cores: set it to {n_cores} or less"
        yield warning(Check.MACHINE, text)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _gpu() -> str | None:
    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.get_device_name()}, {_gib(torch.cuda.get_device_properties(0).total_memory)}"


def check_loggers(context: Context) -> Iterator[Finding]:
    """Check the configured loggers' packages."""
    for missing in missing_packages(context.settings):
        yield problem(Check.PACKAGES, missing)


def check_gpu(context: Context) -> Iterator[Finding]:
    """Check the network's device."""
    settings = context.settings
    gpu = _gpu()
    try:
        pick_device(settings.run.collector_device, "collector_device")
        device = pick_device(settings.run.torch_device)
    except UserError as error:
        yield problem(Check.GPU, error)
        return
    if device.type != "cpu":
        yield ok(Check.GPU, f"the network runs on {gpu or device}")
    elif settings.run.torch_device == "auto" and gpu is not None:
        yield warning(Check.GPU, f"the network runs on the processor, as {gpu} cannot be used: {why_unusable('cuda')}")
    elif settings.game.has_image:
        text = "the network, which sees images, runs on the processor, much slower than on a GPU: see docs/install.rst"
        yield warning(Check.GPU, text)
    else:
        yield ok(Check.GPU, "the network runs on the processor, which suffices without images")


def check_memory(context: Context) -> Iterator[Finding]:
    """Check the memory for the largest replay memory, the processes and the games."""
    available_bytes = psutil.virtual_memory().available
    replay_bytes, needed_bytes, _ = needs_of(context.settings)
    figures = f"about {_gib(needed_bytes)} needed, {_gib(replay_bytes)} of it for the replay memory; "
    if needed_bytes > available_bytes:
        remedy = "lower memory_size_schedule or n_collectors, or end other programs"
        yield warning(Check.MEMORY, f"{figures}only {_gib(available_bytes)} available: {remedy}")
    else:
        yield ok(Check.MEMORY, f"{figures}{_gib(available_bytes)} available")


def check_folder(context: Context) -> Iterator[Finding]:
    """Check that a run can write files. A missing folder is made by the run."""
    folder = context.output_folder
    existing = _nearest_existing(context.output_folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        where = folder if existing == folder.absolute() else f"{folder}, below {existing},"
        text = f"the folder {where} cannot be written to; choose another one with --output-folder"
        yield problem(Check.FOLDER, text)
    else:
        yield ok(Check.FOLDER, f"{folder} {'can be written to' if folder.is_dir() else 'will be made'}")


def check_disk(context: Context) -> Iterator[Finding]:
    """Check the space for checkpoints."""
    free_mb = _free_bytes(context) >> 20
    least_mb = context.settings.run.minimum_free_disk_mb
    needed_mb = needs_of(context.settings)[2] >> 20
    if free_mb < least_mb:
        yield problem(
            Check.DISK,
            f"the disk of {context.output_folder} has {free_mb} MB free, less than minimum_free_disk_mb = "
            f"{least_mb}: no checkpoint could be written; free some space",
        )
    elif free_mb < needed_mb:
        yield warning(
            Check.DISK,
            f"{free_mb:,} MB free, and checkpoints with a full replay memory take up to {needed_mb:,} MB: they are "
            "written without it when there is no room; free some space, or set checkpoint_holds_replay = False",
        )
    else:
        yield ok(Check.DISK, f"{free_mb:,} MB free")


def _free_bytes(context: Context) -> int:
    return shutil.disk_usage(_nearest_existing(context.output_folder)).free


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


# Maps and ports.


def check_maps(context: Context) -> Iterator[Finding]:
    """Check the map cycle's files, here and in the real game's folder."""
    for entry in named_maps(context.settings):
        try:
            points_m = load_map_files(context.settings, entry, context.maps_folder)
        except UserError as error:
            yield problem(Check.MAPS, f"map {entry.map_name}: {error}")
        else:
            yield ok(Check.MAPS, f"map {entry.map_name}: a reference line of {len(points_m):,} points")
            if (lack := what_misses_checkpoints(entry, context.maps_folder)) is not None:
                yield warning(Check.MAPS, f"map {entry.map_name}: {lack}")
    yield from check_maps_of_game(context)


def check_maps_of_game(context: Context) -> Iterator[Finding]:
    """Check that the real game has the maps, if the folder is known."""
    game = context.settings.game
    user = context.settings.user
    if game.game == "simulated" or game.n_collectors == 0:
        return
    try:
        launcher = make_launcher(game, user, game.base_tmi_port, context.maps_folder, sys.platform)
    except UserError:  # no launcher for this system, a finding of check_game
        return
    for entry in named_maps(context.settings):
        try:
            launcher.check_map(entry.map_path)
        except UserError as error:
            yield problem(Check.MAPS, f"map {entry.map_name}: {error}")


def check_ports(context: Context, records: GameRecords | None = None) -> Iterator[Finding]:
    """Check that each game instance's port is free or, with kept games, that the game greets."""
    records = records or GameRecords()
    ports = context.settings.game.tmi_ports
    if not ports:
        yield ok(Check.PORTS, "none needed: the collectors play their games themselves")
        return
    if context.settings.game.games_are_kept:
        yield from _check_kept_games(ports)
        return
    are_free = True
    for port in ports:
        try:
            check_port_is_free(port)
        except UserError as error:
            are_free = False
            left_behind = records.left_behind(port)
            if left_behind is None:
                yield problem(Check.PORTS, error)
            else:
                text = f"port {port} is in use by a game of an earlier run (process {left_behind.pid}); a start ends it"
                yield warning(Check.PORTS, text)
    if are_free:
        yield ok(Check.PORTS, f"{ports[0]} to {ports[-1]} are free")


def _check_kept_games(ports: Sequence[int]) -> Iterator[Finding]:
    """Check that kept games greet. It is a problem only if all of them fail."""
    texts = []
    for port in ports:
        try:
            with lock_of_kept_game(port).acquire(blocking=False):
                greet(port, GREETS_WITHIN_S)
        except Timeout:
            yield problem(Check.PORTS, taken_text(port))
            return
        except GameError as error:
            texts.append(absent_text(port, error))
    if len(texts) == len(ports):
        yield problem(Check.PORTS, texts[0])
    elif texts:
        yield from (warning(Check.PORTS, text) for text in texts)
    else:
        yield ok(Check.PORTS, f"the kept games at {ports[0]} to {ports[-1]} greet")


# The real game.


def check_game(context: Context) -> Iterator[Finding]:
    """Check the real game's launcher, folders, plugin, account and window."""
    game = context.settings.game
    user = context.settings.user
    if game.n_collectors == 0:
        yield ok(Check.GAME, "none is played, as n_collectors is 0")
    elif game.games_are_kept:
        yield ok(Check.GAME, "kept by scripts/keep_games.py, on this machine or another one")
    elif game.game == "simulated":
        yield ok(Check.GAME, "the simulated game, which is part of the project")
    elif sys.platform != "win32" and not sys.platform.startswith("linux"):
        text = f'TrackMania Nations Forever runs on Windows and Linux, not on {sys.platform}: set game = "simulated"'
        yield problem(Check.GAME, text)
    else:
        yield ok(Check.GAME, "TrackMania Nations Forever with TMInterface")
        if sys.platform == "win32":
            yield _ok_unless_error(Check.TMLOADER, lambda: find_tmloader(user))
            yield _ok_unless_error(Check.PROFILE, lambda: _profile(user.tmloader_profile_name))
        else:
            command = user.game_command
            yield _ok_unless_error(Check.GAME_COMMAND, lambda: " ".join(split_game_command(command, shutil.which)))
            yield _check_wine()
        yield _check_game_documents(user.trackmania_base_path)
        yield _check_plugin(user.trackmania_base_path)
        yield _check_login(user.username)
        yield _check_window()


def _ok_unless_error(check: Check, read: Callable[[], object]) -> Finding:
    try:
        return ok(check, read())
    except UserError as error:
        return problem(check, error)


def _profile(profile: str) -> str:
    check_profile(profile)
    return f"{profile!r}; only --play shows whether TMLoader has it, with TMInterface"


def _check_wine() -> Finding:
    found = [name for name in WINE_LIKE if shutil.which(name)]
    if found:
        return ok(Check.WINE, f"found {', '.join(found)}")
    text = f"none of {', '.join(WINE_LIKE)} is installed, and the game needs Wine, unless game_command brings its own"
    return warning(Check.WINE, text)


def _check_game_documents(base_path: str) -> Finding:
    if not base_path:
        text = "trackmania_base_path is empty, so nothing checks that the game has the maps: set it in user_config.py"
        return warning(Check.GAME_DOCUMENTS, text)
    folder = Path(base_path).expanduser()
    if (folder / CHALLENGES).is_dir():
        return ok(Check.GAME_DOCUMENTS, folder)
    found = find_game_documents()
    place = (
        f"{found}, which has it"
        if found
        else ("the game's folder in your documents, which the game makes when it is started for the first time")
    )
    text = f"trackmania_base_path = {base_path!r} has no folder {CHALLENGES}: set it in user_config.py to {place}"
    return problem(Check.GAME_DOCUMENTS, text)


def _check_plugin(base_path: str) -> Finding:
    try:
        folder = find_plugins_folder(base_path)
    except UserError as error:
        # It may be installed in another place, such as another Wine prefix.
        return (problem if base_path else warning)(Check.PLUGIN, error)
    try:
        installation = install_plugin(folder)
    except UserError as error:
        return problem(Check.PLUGIN, error)
    text = f"version {installation.version}, {installation.outcome}: {installation.path}"
    if installation.backup is not None:
        return warning(Check.PLUGIN, f"{text}; what was there before is in {installation.backup}")
    if installation.outcome is Outcome.NEWER:
        return warning(Check.PLUGIN, f"{text}; update this project, or remove that file")
    return ok(Check.PLUGIN, text)


def _check_login(username: str) -> Finding:
    if not username:
        text = "username is empty, so a game may stop at its login screen: set your online login in user_config.py"
        return warning(Check.LOGIN, text)
    if not LOGIN.fullmatch(username):
        text = f"username = {username!r} is no login: letters, digits, dots, dashes and underscores; see user_config.py"
        return problem(Check.LOGIN, text)
    return ok(Check.LOGIN, username)


def _check_window() -> Finding:
    try:
        open_windows()
    except WindowError as error:
        return warning(Check.WINDOW, f"the game's window cannot be shown by itself: {error}; keep it visible yourself")
    return ok(Check.WINDOW, "windows can be found and shown")


CHECKS_OF_PLAYING: Final = (check_maps, check_maps_of_game, check_game, check_ports)
CHECKS_OF_A_START: Final = (
    *(check_folder, check_disk, check_loggers, check_gpu),
    *(check_maps_of_game, check_game, check_ports),
)
ALL_CHECKS: Final = (
    *(check_machine, check_loggers, check_gpu, check_memory, check_folder, check_disk),
    *(check_maps, check_game, check_ports),
)
