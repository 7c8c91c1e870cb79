"""Policies that play given actions, for races whose driving is not what is tested."""

import numpy as np

from trackmania_rl.race.actions import PolicyDecision

FORWARD = 0
N_ACTIONS = 12


def playing(actions):
    """A policy that plays these actions, then forward."""
    waiting = iter(actions)

    def policy(frame, floats):
        return PolicyDecision(next(waiting, FORWARD), True, np.zeros(N_ACTIONS, dtype=np.float32))

    return policy


def random_actions(seed):
    """Mostly forward, with some steering and coasting, so that the car arrives."""
    return np.random.default_rng(seed).choice([0, 0, 0, 1, 2, 3, 4, 5], 60).tolist()
