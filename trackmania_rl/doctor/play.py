"""The doctor's test drive: start a game, load a map, drive some seconds, write a picture, and end the game."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from trackmania_rl.doctor.findings import Check, Context, Finding, ok, problem, warning
from trackmania_rl.errors import PlainError, UserError
from trackmania_rl.files import write_png
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.race.races import Observation, RaceEnd
from trackmania_rl.settings import GameSettings, MapEntry
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S, GameLauncher, find_free_port
from trackmania_rl.tmi_interaction.race_machine import RaceMachine, compile_ahead
from trackmania_rl.tmi_interaction.tminterface2 import GameError, TMInterface
from trackmania_rl.track.game_map import GameMap, load_game_map, named_maps

DRIVE_MS: Final = 5_000
WARM_UP_MS: Final = 1_000
"""Start of the race, excluded from the speed: the game still loads or compiles."""
PICTURE_SIZE_PX: Final = (320, 240)
SILENT_FOR_S: Final = 120.0
"""Longest silence of the game. A simulated game compiles on its first use."""
MOVED_M: Final = 1.0
SLOW_BELOW: Final = 1.0
"""Race time by wall-clock time. A training needs several times real time."""
SHIPPED_MAP: Final = MapEntry(
    map_name="valley", map_path="valley.toml", reference_line="valley_0.5m.npy", is_explo=False, fill_buffer=False
)


def check_play(context: Context, picture_file: Path) -> list[Finding]:
    """Drive 5 s forward on the first map of the map cycle, or on a shipped track if it names none.

    Args:
        context: the configuration.
        picture_file: PNG file for the last frame.
    """
    game = context.settings.game
    is_simulated = game.game == "simulated"
    entry = next(iter(named_maps(context.settings)), SHIPPED_MAP)
    port = find_free_port() if is_simulated and not game.games_are_kept else game.base_tmi_port
    try:
        launcher = make_launcher(game, context.settings.user, port, context.maps_folder, context.system.platform)
        launcher.check_map(entry.map_path)
        game_map = load_game_map(entry, context.maps_folder, context.settings.observation)
        game_map = replace(game_map, path=launcher.map_argument(game_map.path))
    except UserError as error:
        return [problem(Check.PLAY_START, error)]
    return play(context, launcher, game_map, picture_file)


def play(context: Context, launcher: GameLauncher, game_map: GameMap, picture_file: Path) -> list[Finding]:
    """Start a launcher's game, drive it and end it."""
    game = _game_for_driving(context.settings.game)
    try:
        layout = ObservationLayout(context.settings.observation, game.actions)
        compile_ahead(game, layout, game_map)
        launcher.start()
        launcher.wait_until_connectable(LISTENS_WITHIN_S)
        with contextlib.closing(TMInterface(launcher.port, SILENT_FOR_S, launcher.show_window)) as transport:
            findings = [ok(Check.PLAY_START, f"it listens at port {launcher.port}, and is connected")]
            machine = RaceMachine(transport, game, layout, launcher.commands_on_connect)
            return findings + _drive(launcher, transport, machine, game_map, picture_file)
    except PlainError as error:
        return [problem(Check.PLAY_START, error)]
    finally:
        launcher.kill()


def _drive(
    launcher: GameLauncher, transport: TMInterface, machine: RaceMachine, game_map: GameMap, picture_file: Path
) -> list[Finding]:
    game = machine.settings
    launcher.show_window()
    try:
        seen: Observation | RaceEnd = machine.reset(game_map)
        launcher.focus_window()
        findings = [ok(Check.PLAY_MAP, f"{game_map.path} is loaded, and a race has begun")]
        findings += _check_plugin_version(transport, is_simulated=game.game == "simulated")
    except GameError as error:
        return [problem(Check.PLAY_MAP, error)]
    assert isinstance(seen, Observation)
    first, last, warm_ms, waited_before_s = seen, seen, 0, 0.0
    actions = actions_of_game(game)
    forward = PolicyDecision(actions.forward, True, np.zeros(actions.n_values, dtype=np.float32))
    try:
        while not isinstance(seen, RaceEnd) and seen.race_time_ms < DRIVE_MS:
            last = seen
            if warm_ms == 0 and seen.race_time_ms >= WARM_UP_MS:
                warm_ms, waited_before_s = seen.race_time_ms, machine.timings.wait_game_s
            seen = machine.step(forward)
    except GameError as error:
        return [*findings, problem(Check.PLAY_DRIVE, error)]
    last = seen if isinstance(seen, Observation) else last
    waited_s = machine.timings.wait_game_s - waited_before_s
    return [
        *findings,
        _check_way(first, last, seen.race_time_ms),
        _check_picture(last, picture_file),
        _check_speed((seen.race_time_ms - warm_ms) / 1000 / max(waited_s, 1e-9), is_simulated=game.game == "simulated"),
    ]


def _game_for_driving(game: GameSettings) -> GameSettings:
    width_px, height_px = PICTURE_SIZE_PX
    return game.model_copy(
        update={
            "image_width_px": width_px,
            "image_height_px": height_px,
            "frames_per_state": 1,
            "cutoff_no_progress_within_ms": 10 * DRIVE_MS,
            "cutoff_race_longer_than_ms": 10 * DRIVE_MS,
        }
    )


def _check_plugin_version(transport: TMInterface, is_simulated: bool) -> list[Finding]:
    """Check the version that the game runs: it loaded the plugin at its own start."""
    if is_simulated:
        return []
    version = transport.plugin_version()
    if version == LINK_VERSION:
        return [ok(Check.PLUGIN, f"the game runs version {version}")]
    runs = f"version {version}" if version else "another plugin than this project's"
    return [
        warning(
            Check.PLUGIN,
            f"the game runs {runs}, not version {LINK_VERSION}: remove other plugins that listen, and start it again",
        )
    ]


def _check_way(first: Observation, last: Observation, race_time_ms: int) -> Finding:
    way_m = float(np.linalg.norm(last.position_m - first.position_m))
    text = f"{race_time_ms / 1000:g} s forward took the car {way_m:.0f} m from its start, at {last.speed_m_s:.0f} m/s"
    if way_m < MOVED_M:
        return problem(
            Check.PLAY_DRIVE, f"{text}: it does not drive; is action_forward_idx an action that accelerates?"
        )
    return ok(Check.PLAY_DRIVE, text)


def _check_picture(seen: Observation, file: Path) -> Finding:
    picture = seen.frame[0]  # (H, W) uint8
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_png(file, picture)
    except OSError as error:
        return problem(Check.PLAY_FRAME, f"cannot write {file}: {error.strerror}; choose another one with --picture")
    if picture.min() == picture.max():
        return warning(
            Check.PLAY_FRAME, f"the picture {file} has one shade all over: is the window minimised, or the screen off?"
        )
    return ok(Check.PLAY_FRAME, f"the game's picture is in {file}")


def _check_speed(ratio: float, *, is_simulated: bool) -> Finding:
    text = f"{ratio:.1f} s of race for each second of waiting for the game, with a picture for each action"
    if ratio < SLOW_BELOW:
        remedy = "lower the game's graphics settings and resolution"
        if is_simulated:
            remedy = (
                "it draws them on the processor, so end what else keeps that busy; a training without an image "
                "(image_width_px = 0, as in config.py) draws none"
            )
        return warning(Check.PLAY_SPEED, f"{text}: slower than real time; {remedy}")
    return ok(Check.PLAY_SPEED, text)
