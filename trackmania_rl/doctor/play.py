"""The doctor's test drive: start a game, load a map, drive some seconds, write a picture, and end the game."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from trackmania_rl.doctor.findings import Check, Context, Finding, ok, problem, warning
from trackmania_rl.errors import PlainError, UserError
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.race.actions import PolicyDecision, actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.race import Race
from trackmania_rl.race.races import Observation
from trackmania_rl.settings import MapEntry
from trackmania_rl.settings.game import VALLEY
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S, find_free_port
from trackmania_rl.tmi_interaction.race_machine import RaceMachine, compile_ahead
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface
from trackmania_rl.track.game_map import load_game_map, named_maps

DRIVE_MS: Final = 5_000
WARM_UP_MS: Final = 1_000
"""Race start, excluded from the speed: the game still loads or compiles."""
IMAGE: Final = {"image_width_px": 320, "image_height_px": 240, "frames_per_state": 1}
NO_CUTOFF: Final = dict.fromkeys(("cutoff_no_progress_within_ms", "cutoff_race_longer_than_ms"), 10 * DRIVE_MS)
SILENT_FOR_S: Final = 120.0
"""Longest silence from the game. A simulated game compiles on first use."""
MOVED_M: Final = 1.0
SLOW_BELOW: Final = 1.0
"""Race time by wall-clock time. A training needs several times real time."""
SHIPPED_MAP: Final = MapEntry.model_validate(VALLEY | {"is_explo": False, "fill_buffer": False})


def check_play(context: Context, picture_file: Path) -> Iterator[Finding]:
    """Drive 5 s forward on the first map, or a shipped track if there is none. Write the last frame as a PNG file."""
    game = context.settings.game
    is_simulated = game.game == "simulated"
    entry = next(iter(named_maps(context.settings)), SHIPPED_MAP)
    port = find_free_port() if is_simulated and not game.games_are_kept else game.base_tmi_port
    try:
        launcher = make_launcher(game, context.settings.user, port, context.maps_folder)
    except UserError as error:
        yield problem(Check.PLAY_START, error)
        return
    stage = Check.PLAY_START
    try:
        launcher.check_map(entry.map_path)
        game_map = load_game_map(entry, context.maps_folder, context.settings.observation)
        game_map = replace(game_map, path=launcher.map_argument(game_map.path))
        game = game.model_copy(update=IMAGE | NO_CUTOFF)
        layout = ObservationLayout(context.settings.observation, game.actions)
        compile_ahead(game, layout, entry, game_map)
        launcher.start()
        launcher.wait_until_connectable(LISTENS_WITHIN_S)
        with contextlib.closing(TMInterface(launcher.port, SILENT_FOR_S, launcher.show_window)) as transport:
            yield ok(stage, f"it listens at port {launcher.port}, and is connected")
            stage = Check.PLAY_MAP
            machine = RaceMachine(transport, game, layout, launcher.commands_on_connect)
            launcher.show_window()
            start = machine.reset(entry, game_map)
            launcher.focus_window()
            yield ok(stage, f"{game_map.path} is loaded, and a race has begun")
            if not is_simulated:
                yield _check_plugin_version(transport.plugin_version())
            stage = Check.PLAY_DRIVE
            last, speed = _drive(machine, start)
            yield _check_way(start, last)
            yield _check_picture(last, picture_file)
            yield _check_speed(speed, is_simulated=is_simulated)
    except PlainError as error:
        yield problem(stage, error)
    finally:
        launcher.kill()


def _drive(machine: RaceMachine, start: Observation) -> tuple[Observation, float]:
    """Drive forward; return the last observation, and race time per time spent waiting for the game."""
    actions = actions_of_game(machine.settings)
    forward = PolicyDecision(actions.forward, True, np.zeros(actions.n_values, dtype=np.float32))
    last = start
    warm_ms = 0
    waited_before_s = 0.0
    while last.race_time_ms < DRIVE_MS and not isinstance(reached := machine.step(forward), Race):
        last = reached
        if warm_ms == 0 and last.race_time_ms >= WARM_UP_MS:
            warm_ms = last.race_time_ms
            waited_before_s = machine.timings.wait_game_s
    waited_s = machine.timings.wait_game_s - waited_before_s
    return last, (last.race_time_ms - warm_ms) / 1000 / max(waited_s, 1e-9)


def _check_plugin_version(version: int) -> Finding:
    if version == LINK_VERSION:
        return ok(Check.PLUGIN, f"the game runs version {version}")
    runs = f"version {version}" if version else "another plugin than this project's"
    remedy = "remove other plugins that listen, and start it again"
    return warning(Check.PLUGIN, f"the game runs {runs}, not version {LINK_VERSION}: {remedy}")


def _check_way(first: Observation, last: Observation) -> Finding:
    way_m = float(np.linalg.norm(last.position_m - first.position_m))
    text = (
        f"{last.race_time_ms / 1000:g} s forward took the car {way_m:.0f} m from its start, at {last.speed_m_s:.0f} m/s"
    )
    if way_m < MOVED_M:
        text += ": it does not drive; is action_forward_idx an action that accelerates?"
        return problem(Check.PLAY_DRIVE, text)
    return ok(Check.PLAY_DRIVE, text)


def _check_picture(seen: Observation, file: Path) -> Finding:
    picture = seen.frame[0]  # (H, W) uint8
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(cv2.imencode(".png", picture)[1].tobytes())  # cv2.imwrite needs ASCII names
    except OSError as error:
        return problem(Check.PLAY_FRAME, f"cannot write {file}: {error.strerror}; choose another one with --picture")
    if picture.min() == picture.max():
        text = f"the picture {file} has one shade all over: is the window minimised, or the screen off?"
        return warning(Check.PLAY_FRAME, text)
    return ok(Check.PLAY_FRAME, f"the game's picture is in {file}")


def _check_speed(ratio: float, *, is_simulated: bool) -> Finding:
    text = f"{ratio:.1f} s of race for each second of waiting for the game, with a picture for each action"
    if ratio < SLOW_BELOW:
        of_game = "end what else keeps the processor busy; a training without an image draws none"
        remedy = of_game if is_simulated else "lower the game's graphics settings and resolution"
        return warning(Check.PLAY_SPEED, f"{text}: slower than real time; {remedy}")
    return ok(Check.PLAY_SPEED, text)
