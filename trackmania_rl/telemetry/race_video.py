"""A race as a video with an overlay, also from the pictures of a game, real or simulated, that plays its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.protocol.state_blob import StateView
from trackmania_rl.telemetry.input_timeline import InputTimeline
from trackmania_rl.telemetry.overlay import RaceColumns, RaceOverlay
from trackmania_rl.telemetry.video import VideoFile
from trackmania_rl.tmi_interaction.script_player import Filming, ScriptedRace, ScriptPlayer

HOLD_S: Final = 1.0
"""How long the last picture stays, with the time of the race."""
_MS_PER_S: Final = 1000


@dataclass(frozen=True)
class _Shown:
    """What was shown last: the picture without overlay, the car's speed and gear."""

    frame: npt.NDArray[np.uint8]
    speed_m_s: float | None
    gear: int | None


class RaceVideo:
    """The video of one race. Leaving the block after an error, or without a picture, leaves no file.

    Args:
        path: an .mp4 file.
        frames_per_s: of race time.
        overlay: what is told of the race; None for the bare picture.
        n_threads: see `VideoFile`.

    Raises:
        UserError: if the name does not end in .mp4.
    """

    def __init__(self, path: Path, frames_per_s: float, overlay: RaceOverlay | None, n_threads: int = 0) -> None:
        self._file = VideoFile(path, frames_per_s, n_threads=n_threads)
        self._frames_per_s = frames_per_s
        self._overlay = overlay
        self._shown: _Shown | None = None

    def __enter__(self) -> RaceVideo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, traceback)

    def show(
        self, frame: npt.NDArray[np.uint8], time_ms: int, speed_m_s: float | None, gear: int | None
    ) -> npt.NDArray[np.uint8]:
        """Add a picture; return it with its overlay.

        Args:
            frame: (H, W, 4) uint8, blue, green, red, alpha; left as it is.
            time_ms: race time.
            speed_m_s: None if it is not known.
            gear: likewise.

        Raises:
            UserError: if the file cannot be written.
        """
        self._shown = _Shown(frame.copy(), speed_m_s, gear)
        return self._write(self._shown, time_ms)

    def hold(self, time_ms: int) -> None:
        """End with the last picture and the time of the race."""
        if self._shown is not None:
            for _ in range(round(HOLD_S * self._frames_per_s)):
                self._write(self._shown, time_ms)

    def _write(self, shown: _Shown, time_ms: int) -> npt.NDArray[np.uint8]:
        picture = shown.frame.copy()
        if self._overlay is not None:
            self._overlay.draw(picture, time_ms, shown.speed_m_s, shown.gear)
        self._file.write(picture)
        return picture


def film_script(
    player: ScriptPlayer,
    map_path: str,
    script: Path,
    video: Path,
    size_px: tuple[int, int],
    frames_per_s: int,
    columns: RaceColumns | None = None,
    has_overlay: bool = True,
    **how: Any,
) -> ScriptedRace:
    """Play a script on a game and film it.

    Args:
        player: the game.
        map_path: as the map cycle has it.
        script: the inputs file.
        video: an .mp4 file.
        size_px: width and height.
        frames_per_s: one of `FRAMES_PER_S`.
        columns: the race's Q values, if they are known.
        has_overlay: whether anything is told of the race besides its picture.
        how: further arguments of `ScriptPlayer.play`.

    Raises:
        UserError: if the map or the script can't be used, or the video can't be written.
        GameError: if the game is gone, silent or speaks nonsense.
    """
    overlay = RaceOverlay(InputTimeline(read_input_script(script)), columns) if has_overlay else None
    with RaceVideo(video, frames_per_s, overlay) as film:
        moment: tuple[int, float, int] = (0, 0.0, 0)

        def note(state: StateView) -> None:
            nonlocal moment
            moment = state.race_time_ms, float(np.linalg.norm(state.velocity_m_s)), state.gear

        def show(frame: npt.NDArray[np.uint8]) -> None:
            film.show(frame, *moment)

        filming = Filming(size_px, show, _MS_PER_S // frames_per_s)
        race = player.play(map_path, script, filming, on_state=note, **how)
        film.hold(race.race_time_ms)
    return race
