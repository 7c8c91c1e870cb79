"""Actions, and policies, which choose them: the interface between agents and games.

Actions are indices into the configured key sets, or analog steer, gas and brake. An analog action is (steer, gas,
brake), each -1 to 1. Steer is proportional, from -1 (left) to 1 (right). The game takes pedals as on or off:
pressed above 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import gymnasium
import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import ANALOG_FULL, ANALOG_STATE_INPUTS, InputEvent, events_of_keys
from trackmania_rl.protocol.messages import AnalogInput, KeyState, key_states
from trackmania_rl.settings import ActionKeys, GameSettings
from trackmania_rl.simulator.inputs import controls_of_keys

Array = npt.NDArray[Any]
ActionsSetting = Literal["keys", "analog"]
Action = int | np.int64 | npt.NDArray[np.float32]
"""One action: an index into `inputs`, or (3,) float32 (steer, gas, brake)."""

KEYS_OF_AN_ACTION: Final = ("accelerate", "brake", "left", "right")
ANALOG_PARTS: Final = ("steer", "gas", "brake")
PARTS_OF_AN_ACTION: Final = {"keys": KEYS_OF_AN_ACTION, "analog": ANALOG_PARTS}
"""Floats per previous action in the observation, by the setting `actions`."""
PEDALS_OF_AN_ACTION: Final = {KEYS_OF_AN_ACTION: ("accelerate", "brake"), ANALOG_PARTS: ("gas", "brake")}
"""The gas and brake floats among them, above 0 if pressed."""
PEDALS: Final = slice(1, 3)
"""Gas and brake in an analog action."""
FORWARD: Final = (0.0, 1.0, -1.0)
"""Analog action: straight ahead with full gas."""


class KeyActions:
    """Indices into the key sets `inputs`. n actions are an array (n,) int64.

    `AnalogActions` has the same attributes and methods. Both are immutable.

    Attributes:
        shape: one action's.
        forward: placeholder for the actions before a race's first.
        parts: float names for one previous action in the observation.
        n_values: values per decision: one for each index, or 1.
    """

    shape: tuple[int, ...] = ()
    dtype: type[np.generic] = np.int64
    parts: tuple[str, ...] = KEYS_OF_AN_ACTION

    def __init__(self, inputs: tuple[ActionKeys, ...], forward: int) -> None:
        self.forward: Action = forward
        self.n_values = len(inputs)
        self._keys = key_states(inputs)
        self._shown = np.array([[getattr(keys, key) for key in self.parts] for keys in inputs], dtype=np.float32)
        self._controls = np.array([controls_of_keys(keys) for keys in self._keys])

    def space(self) -> gymnasium.spaces.Discrete:
        """Return the space for one action."""
        return gymnasium.spaces.Discrete(self.n_values)

    def shown(self, actions: Array | Action) -> npt.NDArray[np.float32]:
        """Return the observation's action floats, (n, len(parts)), or one action's."""
        return self._shown[actions]

    def presses_gas(self, actions: Array) -> npt.NDArray[np.bool_]:
        """Return which actions (n,) accelerate."""
        return self._shown[actions, self.parts.index("accelerate")] > 0

    def held(self, actions: Array) -> list[KeyState]:
        """Return the inputs to send to the game."""
        return [self._keys[action] for action in actions.tolist()]

    def controls(self, actions: Array) -> npt.NDArray[np.float64]:
        """Return the simulated car's controls, (n, 3): gas 0 or 1, brake 0 or 1, steer -1 (left) to 1 (right)."""
        return self._controls[actions]

    def events(self, times_ms: npt.NDArray[np.int64], actions: Array) -> list[InputEvent]:
        """Return the input changes by actions that begin at these race times (n,)."""
        changes = np.flatnonzero(np.diff(actions, prepend=-1))
        return events_of_keys(zip(times_ms[changes].tolist(), self.held(actions[changes]), strict=True))

    def checked(self, actions: npt.ArrayLike, n_games: int | None) -> npt.NDArray[np.int64]:
        """Return an environment's validated actions: (n,) int64 or (n, 3) float32.

        Args:
            actions: array-like.
            n_games: required n; None for a single action (n = 1).

        Raises:
            UserError: if not actions of this kind.
        """
        given = np.asarray(actions)
        shape = () if n_games is None else (n_games,)
        if given.shape != shape or given.dtype.kind not in "iu" or (given < 0).any() or (given >= self.n_values).any():
            wanted = "one whole number" if n_games is None else f"an array of whole numbers with the shape {shape}"
            raise UserError(f"step({actions!r}): an action is {wanted}, 0 to {self.n_values - 1}")
        return np.atleast_1d(given).astype(np.int64)


class AnalogActions:
    """(steer, gas, brake). n actions are an array (n, 3) float32. See `KeyActions`."""

    shape: tuple[int, ...] = (len(ANALOG_PARTS),)
    dtype: type[np.generic] = np.float32
    parts: tuple[str, ...] = ANALOG_PARTS
    n_values = 1

    def __init__(self) -> None:
        self.forward: Action = np.array(FORWARD, dtype=np.float32)

    def space(self) -> gymnasium.spaces.Box:  # noqa: D102
        return gymnasium.spaces.Box(-1.0, 1.0, self.shape, np.float32)

    def shown(self, actions: Array | Action) -> npt.NDArray[np.float32]:  # noqa: D102
        return np.clip(actions, -1.0, 1.0).astype(np.float32, copy=False)

    def presses_gas(self, actions: Array) -> npt.NDArray[np.bool_]:  # noqa: D102
        return actions[:, self.parts.index("gas")] > 0

    def held(self, actions: Array) -> list[AnalogInput]:  # noqa: D102
        return [AnalogInput(steer, gas, bool(brake)) for steer, gas, brake in wire_values(actions).tolist()]

    def controls(self, actions: Array) -> npt.NDArray[np.float64]:  # noqa: D102
        steer, gas, brake = wire_values(actions).T
        return np.stack((gas > 0, brake, steer / ANALOG_FULL), axis=1)

    def events(self, times_ms: npt.NDArray[np.int64], actions: Array) -> list[InputEvent]:  # noqa: D102
        values = wire_values(actions)
        rows, parts = np.nonzero(np.diff(values, axis=0, prepend=0))
        changes = zip(times_ms[rows].tolist(), parts.tolist(), values[rows, parts].tolist(), strict=True)
        return [InputEvent(time_ms, ANALOG_STATE_INPUTS[part], value) for time_ms, part, value in changes]

    def checked(self, actions: npt.ArrayLike, n_games: int | None) -> npt.NDArray[np.float32]:  # noqa: D102
        given = np.asarray(actions)
        shape = self.shape if n_games is None else (n_games, *self.shape)
        if given.shape != shape or given.dtype.kind not in "iuf" or not (np.abs(given) <= 1).all():
            raise UserError(
                f"step({actions!r}): {'an action is' if n_games is None else 'actions are'} an array of numbers with "
                f"the shape {shape}: {', '.join(self.parts)}, each -1 to 1"
            )
        return given.reshape(-1, len(self.parts)).astype(np.float32)


ActionKind = KeyActions | AnalogActions


def wire_values(actions: Array) -> npt.NDArray[np.int64]:
    """Convert analog actions (n, 3), clipped to -1..1, to the game's numbers.

    Returns:
        (n, 3) int64: steer -65536 (left) to 65536 (right), gas 0 or 65536, brake key 0 or 1.

    Raises:
        FloatingPointError: if a number is not finite (a diverged network).
    """
    if not np.isfinite(actions).all():
        raise FloatingPointError(f"actions that are not finite: {actions.tolist()}")
    values = np.empty(actions.shape, dtype=np.int64)
    values[:, 0] = np.rint(np.clip(actions[:, 0].astype(np.float64), -1.0, 1.0) * ANALOG_FULL)
    values[:, PEDALS] = actions[:, PEDALS] > 0
    values[:, 1] *= ANALOG_FULL
    return values


def actions_of_game(game: GameSettings) -> ActionKind:
    """Return the kind of actions that the setting `actions` names."""
    return AnalogActions() if game.actions == "analog" else _key_actions(game.inputs, game.action_forward_idx)


@functools.lru_cache(maxsize=16)  # once per race is too slow
def _key_actions(inputs: tuple[ActionKeys, ...], forward: int) -> KeyActions:
    return KeyActions(inputs, forward)


ELAPSED_ACTIONS_FLOAT: Final = 0
"""Index of the float with the mini-race's elapsed actions: 0 while playing, set when sampled."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Decision in one state."""

    action: Action  #: index into the configured `inputs`, or (D,) float32
    is_greedy: bool
    #: (A,) expected reward sum until the mini-race ends, by action; (1,), for `action`, if continuous
    q_values: npt.NDArray[np.float32]
    action_log_prob: float = math.nan  #: logarithm of the drawn action's probability or density; NaN without one


Policy = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.float32]], PolicyDecision]
"""Called with a state's image (S, H, W), the newest frame last, and floats (F,)."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """Decisions in n states; see `PolicyDecision`."""

    actions: npt.NDArray[np.int64] | npt.NDArray[np.float32]  #: (n,) or (n, D)
    is_greedy: npt.NDArray[np.bool_]  #: (n,)
    q_values: npt.NDArray[np.float32]  #: (n, A) or (n, 1); NaN from an agent without values
    action_log_prob: npt.NDArray[np.float32] | None = None  #: (n,)

    @classmethod
    def of_one(cls, decision: PolicyDecision) -> BatchDecision:
        """Return a batch with one decision."""
        return cls(
            actions=np.array([decision.action]),
            is_greedy=np.array([decision.is_greedy]),
            q_values=decision.q_values[np.newaxis],
            action_log_prob=np.array([decision.action_log_prob], dtype=np.float32),
        )

    def rows(self, rows: npt.NDArray[np.bool_]) -> BatchDecision:
        """Return the decisions in these states."""
        log_prob = None if self.action_log_prob is None else self.action_log_prob[rows]
        return BatchDecision(self.actions[rows], self.is_greedy[rows], self.q_values[rows], log_prob)

    def one(self, row: int) -> PolicyDecision:
        """Return the decision in one state."""
        action = self.actions[row]
        return PolicyDecision(
            action=int(action) if np.ndim(action) == 0 else action,
            is_greedy=bool(self.is_greedy[row]),
            q_values=self.q_values[row],
            action_log_prob=math.nan if self.action_log_prob is None else float(self.action_log_prob[row]),
        )
