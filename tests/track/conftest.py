"""Maps for the tests of tracks, lines and worlds, made up and real."""

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Challenge, MedalTimes, read_challenge
from trackmania_rl.gbx.replay import read_replay

NO_TIMES = MedalTimes(None, None, None, None)
REPLAYS = ("B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx", "mydli_20.14.Replay.gbx")


def make_challenge(*blocks, n_laps=1, environment="Stadium", size_cells=(32, 32, 32)):
    return Challenge("uid", "$f00made", "me", environment, "Day", size_cells, n_laps, NO_TIMES, blocks)


@pytest.fixture(scope="session")
def hock(shared_data):
    """The map ESL-Hockolicious and its real line, (N, 3) in metres."""
    line_m = np.load(shared_data / "reference_lines" / "ESL-Hockolicious_0.5m_cl2.npy", allow_pickle=False)
    return read_challenge(shared_data / "tracks" / "ESL-Hockolicious.Challenge.Gbx"), line_m.astype(np.float64)


@pytest.fixture(scope="session")
def replays(shared_data):
    """Real replays with their maps, of which the first two are of B13-Obstacle."""
    return [read_replay(shared_data / "replays" / name) for name in REPLAYS]
