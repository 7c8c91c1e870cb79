"""What a driver's file holds, for a person to read and for a configuration to begin with."""

from __future__ import annotations

from pathlib import Path

from trackmania_rl.runs.driver_file import DriverFile
from trackmania_rl.settings import DRIVER_SETTINGS, Settings
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.training.driver_loading import CONFIG_FILE, own_code


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
