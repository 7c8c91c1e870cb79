"""An agent's actions and what they are in the game: indices into the configured keys, or steer, gas and brake.

`actions_of_game` gives one object for the setting `actions`; all that differs between the two is in it.

An analog action is (steer, gas, brake), each -1..1. Steer is proportional, from -1 (left) to 1 (right). The car of this
game takes gas and brake as pressed or not (its analog pedal counts from 30 % on), so a pedal is pressed where its value
is above 0.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import ANALOG_FULL, ANALOG_STATE_INPUTS, InputEvent, events_of_keys
from trackmania_rl.protocol.messages import AnalogInput, HeldInputs, KeyState, key_states
from trackmania_rl.race.observation_kernel import KEYS_OF_AN_ACTION
from trackmania_rl.settings import ActionKeys, GameSettings
from trackmania_rl.simulator.inputs import controls_of_keys

Array = npt.NDArray[Any]
ActionsSetting = Literal["keys", "analog"]
Action = int | np.int64 | npt.NDArray[np.float32]
"""One action: an index into `inputs`, or (3,) float32 (steer, gas, brake)."""

ANALOG_PARTS: Final = ("steer", "gas", "brake")
"""The order of an analog action's floats."""
PEDALS: Final = slice(1, 3)
"""Where gas and brake are among them."""
PARTS_OF_AN_ACTION: Final = {"keys": KEYS_OF_AN_ACTION, "analog": ANALOG_PARTS}
"""The floats that the observation shows of one previous action, by the setting `actions`."""
PEDALS_OF_AN_ACTION: Final = {KEYS_OF_AN_ACTION: ("accelerate", "brake"), ANALOG_PARTS: ("gas", "brake")}
"""Which of them are above 0 where gas and brake are pressed."""
FORWARD: Final = (0.0, 1.0, -1.0)
"""Straight on with full gas."""


class ActionKind(Protocol):
    """Actions of one kind. n actions are an array (n,) of int64, or (n, 3) of float32.

    What `actions_of_game` gives may be shared; it never changes.

    Attributes:
        shape: of one action in a column of them.
        dtype: of the same.
        forward: the action that stands for every one before the first.
        parts: names of the floats that the observation shows of one previous action.
        n_values: values that a decision comes with: one for each action to choose from, or that of the action alone.
    """

    shape: tuple[int, ...]
    dtype: type[np.generic]
    forward: Action
    parts: tuple[str, ...]
    n_values: int

    def space(self) -> gymnasium.spaces.Discrete | gymnasium.spaces.Box:
        """Make the space of one action."""
        ...

    def shown(self, actions: Array | Action) -> npt.NDArray[np.float32]:
        """Give what the observation shows of some actions, (n, len(parts)), or of one."""
        ...

    def presses_gas(self, actions: Array) -> npt.NDArray[np.bool_]:
        """Tell in which actions (n,) the car accelerates."""
        ...

    def held(self, actions: Array) -> Sequence[HeldInputs]:
        """Give what is sent to the game."""
        ...

    def controls(self, actions: Array) -> npt.NDArray[np.float64]:
        """Give what the simulated car feels, (n, 3): gas 0 or 1, brake 0 or 1, steer -1 (left) .. 1 (right)."""
        ...

    def events(self, times_ms: npt.NDArray[np.int64], actions: Array) -> list[InputEvent]:
        """Give the changes of inputs that actions make which begin at these race times (n,)."""
        ...

    def checked(self, actions: npt.ArrayLike, n_games: int | None) -> Array:
        """Check actions that somebody gives to an environment.

        Args:
            actions: numbers of any kind.
            n_games: how many actions there must be; None for a single one.

        Returns:
            (n,) int64 or (n, 3) float32, with n = 1 for a single one.

        Raises:
            UserError: if they are something else; says what they must be.
        """
        ...


class KeyActions:
    """Indices into sets of keys; see `ActionKind`.

    Args:
        inputs: the sets.
        forward: index of the action that stands for every one before the first.
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
        """See `ActionKind.space`."""
        return gymnasium.spaces.Discrete(self.n_values)

    def shown(self, actions: Array | Action) -> npt.NDArray[np.float32]:
        """See `ActionKind.shown`."""
        return self._shown[actions]

    def presses_gas(self, actions: Array) -> npt.NDArray[np.bool_]:
        """See `ActionKind.presses_gas`."""
        return self._shown[actions, self.parts.index("accelerate")] > 0

    def held(self, actions: Array) -> list[KeyState]:
        """See `ActionKind.held`."""
        return [self._keys[action] for action in actions.tolist()]

    def controls(self, actions: Array) -> npt.NDArray[np.float64]:
        """See `ActionKind.controls`."""
        return self._controls[actions]

    def events(self, times_ms: npt.NDArray[np.int64], actions: Array) -> list[InputEvent]:
        """See `ActionKind.events`."""
        changes = np.flatnonzero(np.diff(actions, prepend=-1))
        return events_of_keys(zip(times_ms[changes].tolist(), self.held(actions[changes]), strict=True))

    def checked(self, actions: npt.ArrayLike, n_games: int | None) -> npt.NDArray[np.int64]:
        """See `ActionKind.checked`."""
        given = np.asarray(actions)
        shape = () if n_games is None else (n_games,)
        if given.shape != shape or given.dtype.kind not in "iu" or (given < 0).any() or (given >= self.n_values).any():
            wanted = "one whole number" if n_games is None else f"an array of whole numbers with the shape {shape}"
            raise UserError(f"step({actions!r}): an action is {wanted}, 0 to {self.n_values - 1}")
        return np.atleast_1d(given).astype(np.int64)


class AnalogActions:
    """(steer, gas, brake); see `ActionKind`."""

    shape: tuple[int, ...] = (len(ANALOG_PARTS),)
    dtype: type[np.generic] = np.float32
    parts: tuple[str, ...] = ANALOG_PARTS
    n_values = 1

    def __init__(self) -> None:
        self.forward: Action = np.array(FORWARD, dtype=np.float32)

    def space(self) -> gymnasium.spaces.Box:
        """See `ActionKind.space`."""
        return gymnasium.spaces.Box(-1.0, 1.0, self.shape, np.float32)

    def shown(self, actions: Array | Action) -> npt.NDArray[np.float32]:
        """See `ActionKind.shown`: the actions as they are."""
        return np.clip(actions, -1.0, 1.0).astype(np.float32, copy=False)

    def presses_gas(self, actions: Array) -> npt.NDArray[np.bool_]:
        """See `ActionKind.presses_gas`."""
        return actions[:, self.parts.index("gas")] > 0

    def held(self, actions: Array) -> list[AnalogInput]:
        """See `ActionKind.held`."""
        return [AnalogInput(steer, gas, bool(brake)) for steer, gas, brake in wire_values(actions).tolist()]

    def controls(self, actions: Array) -> npt.NDArray[np.float64]:
        """See `ActionKind.controls`."""
        steer, gas, brake = wire_values(actions).T
        return np.stack((gas > 0, brake, steer / ANALOG_FULL), axis=1)

    def events(self, times_ms: npt.NDArray[np.int64], actions: Array) -> list[InputEvent]:
        """See `ActionKind.events`."""
        values = wire_values(actions)
        rows, parts = np.nonzero(np.diff(values, axis=0, prepend=0))
        changes = zip(times_ms[rows].tolist(), parts.tolist(), values[rows, parts].tolist(), strict=True)
        return [InputEvent(time_ms, ANALOG_STATE_INPUTS[part], value) for time_ms, part, value in changes]

    def checked(self, actions: npt.ArrayLike, n_games: int | None) -> npt.NDArray[np.float32]:
        """See `ActionKind.checked`."""
        given = np.asarray(actions)
        shape = self.shape if n_games is None else (n_games, *self.shape)
        if given.shape != shape or given.dtype.kind not in "iuf" or not (np.abs(given) <= 1).all():
            raise UserError(
                f"step({actions!r}): {'an action is' if n_games is None else 'actions are'} an array of numbers with "
                f"the shape {shape}: {', '.join(self.parts)}, each -1 to 1"
            )
        return given.reshape(-1, len(self.parts)).astype(np.float32)


def wire_values(actions: Array) -> npt.NDArray[np.int64]:
    """Give actions (n, 3) as the game takes them.

    Returns:
        (n, 3) int64: steer -65536 (left) .. 65536 (right), gas 0 or 65536, brake key 0 or 1. What is beyond -1..1
        counts as its end.

    Raises:
        FloatingPointError: if a number is not finite, as those of a network are that has come apart.
    """
    if not np.isfinite(actions).all():
        raise FloatingPointError(f"actions that are not finite: {actions.tolist()}")
    values = np.empty(actions.shape, dtype=np.int64)
    values[:, 0] = np.rint(np.clip(actions[:, 0].astype(np.float64), -1.0, 1.0) * ANALOG_FULL)
    values[:, PEDALS] = actions[:, PEDALS] > 0
    values[:, 1] *= ANALOG_FULL
    return values


def actions_of_game(game: GameSettings) -> ActionKind:
    """Give the actions that the setting `actions` names."""
    return AnalogActions() if game.actions == "analog" else _key_actions(game.inputs, game.action_forward_idx)


@functools.lru_cache(maxsize=16)  # every race asks for them
def _key_actions(inputs: tuple[ActionKeys, ...], forward: int) -> KeyActions:
    return KeyActions(inputs, forward)
