"""Races and statuses of a training, as tests change them."""

import numpy as np

from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.runs.log import RunStatus


def status_of(**changes):
    values = {
        "is_over": False,
        "timestamp_s": 1000.0,
        "ticked_at_s": 990.0,
        "raced_at_s": 980.0,
        "saved_at_s": None,
        "silence_s": 60.0,
        "stall_s": 900.0,
        "figures": {"frames_total": 12_345.0},
        "losses": {"loss": 0.5},
    }
    return RunStatus(**(values | changes))


def race_record(time_ms=None, **changes):
    """Facts of a race that finished in this time, or of an unfinished one."""
    values = {
        "map_name": "valley",
        "is_explo": True,
        "fill_buffer": True,
        "race_finished": time_ms is not None,
        "race_time_ms": time_ms or 900,
        "meters": 812.0,
        "furthest_zone_idx": 5,
        "n_actions": 1_000,
    }
    return RaceFacts(**(values | changes))


def race_of(facts, reward=0.0):
    """A race with these facts, whose actions have the same reward."""
    n_actions = facts.n_actions
    return Race({"actions": np.zeros(n_actions, dtype=np.int64)}, facts, np.full(n_actions, reward, np.float32))
