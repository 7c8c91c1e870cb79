"""The real game on this machine: its launcher, its folders, the plugin, the account, its window."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from trackmania_rl.doctor.findings import Check, Context, Finding, ok, problem, warning
from trackmania_rl.errors import UserError
from trackmania_rl.tmi_interaction.launchers.plugin_files import (
    Installation,
    Outcome,
    find_plugins_folder,
    install_plugin,
)
from trackmania_rl.tmi_interaction.launchers.tmnf import CHALLENGES, check_profile, find_tmloader, split_game_command

WINE_LIKE: Final = ("wine", "wine64", "proton", "umu-run", "lutris", "steam", "bottles-cli", "flatpak")
"""Programs that run the game on Linux, or lead to one that does."""
LOGIN: Final = re.compile(r"[A-Za-z0-9._-]+")
USUAL_DOCUMENTS: Final = tuple(
    Path(documents, name) for name in ("TrackMania", "TmForever") for documents in ("Documents", "OneDrive/Documents")
)
"""Where the game's own folder is, from the user's."""


def check_game(context: Context) -> list[Finding]:
    """Everything that the game needs; the simulated one needs nothing."""
    if context.settings.game.n_collectors == 0:
        return [ok(Check.GAME, "none is played, as n_collectors is 0")]
    if context.settings.game.games_are_kept:
        return [ok(Check.GAME, "kept by scripts/keep_games.py, on this machine or another one")]
    if context.settings.game.game == "simulated":
        return [ok(Check.GAME, "the simulated game, which is part of the project")]
    system = context.system
    if system.is_windows:
        launcher = [*check_tmloader(context), *_check_profile(context)]
    elif system.platform.startswith("linux"):
        launcher = [*check_game_command(context), *check_wine(context)]
    else:
        text = f'TrackMania Nations Forever runs on Windows and Linux, not on {system.platform}: set game = "simulated"'
        return [problem(Check.GAME, text)]
    return [
        ok(Check.GAME, "TrackMania Nations Forever with TMInterface"),
        *launcher,
        *check_game_documents(context),
        *check_plugin(context),
        *check_login(context),
        *check_window(context),
    ]


def check_tmloader(context: Context) -> list[Finding]:
    """Windows: the program that starts the game."""
    try:
        return [ok(Check.TMLOADER, str(find_tmloader(context.settings.user, context.system.home)))]
    except UserError as error:
        return [problem(Check.TMLOADER, error)]


def _check_profile(context: Context) -> list[Finding]:
    profile = context.settings.user.tmloader_profile_name
    try:
        check_profile(profile)
    except UserError as error:
        return [problem(Check.PROFILE, error)]
    return [ok(Check.PROFILE, f"{profile!r}; only --play shows whether TMLoader has it, with TMInterface")]


def check_game_command(context: Context) -> list[Finding]:
    """Linux: the command that starts the game."""
    try:
        words = split_game_command(context.settings.user.game_command, context.system.which)
    except UserError as error:
        return [problem(Check.GAME_COMMAND, error)]
    return [ok(Check.GAME_COMMAND, " ".join(words))]


def check_wine(context: Context) -> list[Finding]:
    """Linux: something that runs Windows programs."""
    found = [name for name in WINE_LIKE if context.system.which(name)]
    if found:
        return [ok(Check.WINE, f"found {', '.join(found)}")]
    return [
        warning(
            Check.WINE,
            f"none of {', '.join(WINE_LIKE)} is installed, and the game needs Wine or what is based on it; no matter "
            "if game_command brings its own",
        )
    ]


def check_game_documents(context: Context) -> list[Finding]:
    """The game's folder in the user's documents, where maps are."""
    setting = context.settings.user.trackmania_base_path
    if not setting:
        usual = [context.system.home / folder for folder in USUAL_DOCUMENTS]
        guess = next((folder for folder in usual if (folder / CHALLENGES).is_dir()), usual[0])
        return [
            warning(
                Check.GAME_DOCUMENTS,
                "trackmania_base_path is empty, so nothing checks that the game has the maps: set it in "
                f"user_config.py, such as {str(guess)!r}",
            )
        ]
    folder = Path(setting).expanduser()
    if not (folder / CHALLENGES).is_dir():
        text = (
            f"trackmania_base_path = {setting!r} has no folder {CHALLENGES}: set it in user_config.py to the game's "
            "folder in your documents, which the game makes when it is started for the first time"
        )
        return [problem(Check.GAME_DOCUMENTS, text)]
    return [ok(Check.GAME_DOCUMENTS, str(folder))]


def check_plugin(context: Context) -> list[Finding]:
    """The plugin in TMInterface's folder, which is put there or brought up to date."""
    setting = context.settings.user.trackmania_base_path
    try:
        folder = find_plugins_folder(setting, context.system.home)
    except UserError as error:
        # Somewhere else, such as in another Wine prefix, it may be in place all the same.
        return [(problem if setting else warning)(Check.PLUGIN, str(error))]
    try:
        return [_installed(install_plugin(folder))]
    except UserError as error:
        return [problem(Check.PLUGIN, error)]


def _installed(installation: Installation) -> Finding:
    text = f"version {installation.version}, {installation.outcome}: {installation.path}"
    if installation.backup is not None:
        return warning(Check.PLUGIN, f"{text}; what was there before is in {installation.backup}")
    if installation.outcome is Outcome.NEWER:
        return warning(Check.PLUGIN, f"{text}; update this project, or remove that file")
    return ok(Check.PLUGIN, text)


def check_login(context: Context) -> list[Finding]:
    """The account that the game logs in."""
    username = context.settings.user.username
    if not username:
        return [
            warning(
                Check.LOGIN,
                "username is empty, so a game may stop at its login screen: set it in user_config.py to the login of "
                "your online account",
            )
        ]
    if not LOGIN.fullmatch(username):
        text = f"username = {username!r} is no login: letters, digits, dots, dashes and underscores; see user_config.py"
        return [problem(Check.LOGIN, text)]
    return [ok(Check.LOGIN, username)]


def check_window(context: Context) -> list[Finding]:
    """Whether the game's window can be shown when somebody minimises it."""
    reason = context.system.why_no_windows()
    if reason is None:
        return [ok(Check.WINDOW, "windows can be found and shown")]
    return [warning(Check.WINDOW, f"the game's window cannot be shown by itself: {reason}; keep it visible yourself")]
