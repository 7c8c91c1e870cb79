"""How the physics is compiled."""

from numba import njit

compiled = njit(cache=True, error_model="numpy")
"""Decorator of every physics function: cached on disk, strict IEEE arithmetic (the same inputs give the same bytes).

Divisions do not check for zero, which more than doubles the speed; where a divisor can vanish the code says what then.
"""
