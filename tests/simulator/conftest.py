"""Short straight tracks on which races take seconds of game time."""

import numpy as np
import pytest

from trackmania_rl.simulator.world import Edge, Track, build_ribbon


def straight_line_m(length_m: float) -> np.ndarray:
    """A level line towards +z."""
    line_m = np.zeros((int(length_m / 0.5) + 1, 3))
    line_m[:, 1] = 10.0
    line_m[:, 2] = 0.5 * np.arange(len(line_m))
    return line_m


@pytest.fixture(scope="session")
def straight_track() -> Track:
    """Two checkpoints and a finish, walls on both sides."""
    return Track("straight", build_ribbon(straight_line_m(60)), (20.0, 40.0), 60.0)


@pytest.fixture(scope="session")
def two_lap_track() -> Track:
    """Two laps of one checkpoint and the line, laid out one after the other."""
    return Track("laps", build_ribbon(straight_line_m(80)), (20.0, 40.0, 60.0), 80.0, n_laps=2)


@pytest.fixture(scope="session")
def pier_track() -> Track:
    """A road without walls: whoever leaves it falls."""
    return Track("pier", build_ribbon(straight_line_m(60), half_width_m=4.0, edge=Edge.DROP), (), 60.0)
