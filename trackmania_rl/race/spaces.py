"""State and action spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from trackmania_rl.race.actions import KeyActions, actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.views import NO_VIEWS, Views
from trackmania_rl.settings import GameSettings, Settings


@dataclass(frozen=True)
class Spaces:
    """Spaces for a run's games."""

    float_mean: tuple[float, ...]  #: F means for a state's floats, views last
    float_std: tuple[float, ...]  #: F standard deviations
    action: Discrete | Box  #: `Box` (D,) float32 with finite bounds
    image_shape: tuple[int, int, int] = (1, 0, 0)  #: (S, H, W); H = W = 0 without an image
    waves: tuple[tuple[int, float], ...] = ()  #: (float's index, wavelength in the float's unit), for Fourier features
    choices: tuple[int, ...] = ()  #: a `MultiDiscrete` environment's; an action is a combination's number
    throttle_actions: tuple[int, ...] = ()  #: in a `Discrete`: accelerate without braking
    views: Views = NO_VIEWS
    custom_observation: Space[Any] | None = None  #: of a user's environment

    @property
    def n_row_floats(self) -> int:
        """Stored floats per state, without views."""
        return self.n_floats - self.views.n_input_floats

    @property
    def n_floats(self) -> int:
        """Floats per state with views, F."""
        return len(self.float_mean)

    @property
    def image_size_px(self) -> tuple[int, int]:
        """A frame's (H, W); (0, 0) without an image."""
        return self.image_shape[1:]

    @property
    def has_image(self) -> bool:
        """True if states have an image."""
        return self.image_shape[1] > 0

    @property
    def n_values(self) -> int:
        """Values per decision: one per action, or 1."""
        return int(self.action.n) if isinstance(self.action, Discrete) else 1

    @property
    def action_shape(self) -> tuple[int, ...]:
        """One action's shape: () for an index, (D,)."""
        return () if isinstance(self.action, Discrete) else self.action.shape

    @property
    def action_dtype(self) -> type[np.generic]:
        """Action type: int64 or float32."""
        return np.int64 if isinstance(self.action, Discrete) else np.float32


def race_spaces(settings: Settings) -> Spaces:
    """Return the spaces for races.

    Raises:
        SettingsError: if the observation's settings contradict each other.
    """
    game = settings.game
    layout = ObservationLayout(settings.observation, game.actions)
    accelerating = tuple(i for i, keys in enumerate(game.inputs) if keys.accelerate and not keys.brake)
    return Spaces(
        float_mean=tuple(layout.mean.tolist()),
        float_std=tuple(layout.std.tolist()),
        action=actions_of_game(game).space(),
        image_shape=game.image_shape,
        waves=layout.waves,
        throttle_actions=accelerating if game.actions == "keys" else (),
        views=race_views(layout, game),
    )


def race_views(layout: ObservationLayout, game: GameSettings) -> Views:
    """Return the views on races."""
    actions = actions_of_game(game)
    has_keys = isinstance(actions, KeyActions)
    table = actions.shown(np.arange(actions.n_values)).tolist() if has_keys else []
    before = np.asarray(actions.forward).tolist()
    return Views(
        frame_shifts=game.frame_shifts if game.has_image else (0,),
        inputs=layout.inputs,
        entries=layout.entries,
        n_input_floats=layout.float_input_dim - layout.n_row_floats,
        floats_of_actions=tuple(map(tuple, table)),
        action_before=before if isinstance(before, int) else tuple(before),
    )
