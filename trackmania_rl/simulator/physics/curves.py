"""Tuning curves: keys (argument, value) by rising argument, constant outside."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled


@compiled
def step_value(curve: npt.NDArray[np.float64], argument: float) -> float:
    """Value of the last key at or below the argument."""
    value = curve[0, 1]
    for i in range(1, curve.shape[0]):
        if argument < curve[i, 0]:
            break
        value = curve[i, 1]
    return value


@compiled
def linear_value(curve: npt.NDArray[np.float64], argument: float) -> float:
    """Value between the keys around the argument."""
    if argument <= curve[0, 0]:
        return curve[0, 1]
    for i in range(1, curve.shape[0]):
        if argument < curve[i, 0]:
            share = (argument - curve[i - 1, 0]) / (curve[i, 0] - curve[i - 1, 0])
            return curve[i - 1, 1] + share * (curve[i, 1] - curve[i - 1, 1])
    return curve[curve.shape[0] - 1, 1]
