"""Maps for the tests of tracks, lines and worlds."""

from trackmania_rl.gbx.challenge import Block, Challenge, MedalTimes

NO_TIMES = MedalTimes(None, None, None, None)


def make_challenge(*blocks: Block, n_laps: int = 1, environment: str = "Stadium", size_cells=(32, 32, 32)) -> Challenge:
    return Challenge("uid", "$f00made", "me", environment, "Day", size_cells, n_laps, NO_TIMES, blocks)
