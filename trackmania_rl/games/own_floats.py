"""Floats of a user's own, computed from those that races give: the part `games` for an observation that shows more."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from trackmania_rl.games.race_games import RaceGames
from trackmania_rl.race.observation import ExtraFloats, ObservationLayout
from trackmania_rl.settings import Settings, SettingsError

Floats = npt.NDArray[np.float32]


class RaceGamesWithFloats(RaceGames):
    """Races whose states have k more floats, after those of their own row and before those of views: derive from it.

    A subclass sets `own_mean` and `own_std`, k numbers each, by which networks normalize, and writes `own_floats`.

    Args:
        settings: of the run.

    Attributes:
        layout: places of the floats that ship: `floats[:, self.layout["velocity_m_s"]]`.
        spaces: of the games, with these floats.

    Raises:
        SettingsError: if the subclass's mean, standard deviation and floats do not fit each other.
    """

    own_mean: tuple[float, ...]
    own_std: tuple[float, ...]

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.layout = ObservationLayout.from_settings(settings.observation, settings.game.actions)
        mean, std, end = self.spaces.float_mean, self.spaces.float_std, self.spaces.n_own_floats
        k = len(self.own_mean)
        two_states = np.tile(np.array(mean[:end], dtype=np.float32), (2, 1))
        shape = np.shape(self.own_floats(two_states))
        if shape != (2, k) or len(self.own_std) != k:
            raise SettingsError(
                f"games: {type(self).__name__} has {k} numbers in own_mean and {len(self.own_std)} in own_std, and "
                f"own_floats made {shape} of two states; it makes {(2, k)}"
            )
        self.spaces = dataclasses.replace(
            self.spaces,
            float_mean=(*mean[:end], *self.own_mean, *mean[end:]),
            float_std=(*std[:end], *self.own_std, *std[end:]),
            waves=tuple((i if i < end else i + k, wavelength) for i, wavelength in self.spaces.waves),
        )
        self._extra = ExtraFloats(k, self.own_floats)

    def own_floats(self, floats: Floats) -> npt.NDArray[np.floating]:
        """Compute k floats of each state from the others; called once for each state.

        Args:
            floats: (n, F) float32 of n states, as `layout` places them, without those of views; not normalized. A copy
                of the states' own.

        Returns:
            (n, k), finite.
        """
        raise NotImplementedError
