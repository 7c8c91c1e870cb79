"""Pictures of lines are written, with and without a map."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import Block, Challenge, MedalTimes
from trackmania_rl.telemetry.line_picture import draw_line
from trackmania_rl.track.line_checks import gate_passages

BLOCKS = (
    Block("StadiumRoadMainStartLine", (0, 1, 0), 0, 0),
    Block("StadiumRoadMain", (0, 1, 1), 0, 0),
    Block("StadiumRoadMainCheckpoint", (0, 1, 2), 0, 0),
    Block("StadiumRoadMainFinishLine", (0, 1, 4), 0, 0),
)
CHALLENGE = Challenge("uid", "map", "a", "Stadium", "Day", (32, 32, 32), 1, MedalTimes(None, None, None, None), BLOCKS)
Z = np.arange(11.0, 145.0, 0.5)
LINE_M = np.stack((16 + 0 * Z, 9 + 0 * Z, Z), axis=1)


def test_a_picture_shows_gates_in_their_colours_and_the_line(tmp_path: Path) -> None:
    file = tmp_path / "line.png"
    draw_line(file, "a $map$ \u4e00", LINE_M, 10.0 + 0.1 * Z, CHALLENGE, gate_passages(LINE_M, CHALLENGE))
    picture = cv2.imread(str(file))
    assert picture is not None
    assert min(picture.shape[:2]) > 500
    for bgr in ((0x55, 0xA6, 0x3A), (0xE0, 0x8F, 0x4F), (0x3B, 0x48, 0xD9)):  # labels of start, checkpoint and finish
        assert (np.abs(picture.astype(int) - bgr).max(axis=2) < 8).sum() > 50


def test_a_picture_needs_no_map_and_no_speeds(tmp_path: Path) -> None:
    draw_line(tmp_path / "line.png", "a line", LINE_M)
    assert cv2.imread(str(tmp_path / "line.png")) is not None


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        draw_line(tmp_path / "nowhere" / "line.png", "a line", LINE_M)
