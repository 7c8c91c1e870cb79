"""Floats of a user's own, computed from those that races give: the part `games` for an observation that shows more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.games.protocol import GameIds, Games, Received
from trackmania_rl.games.race_games import RaceGames
from trackmania_rl.games.wrapped import WrappedGames
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.results import EndedRace
from trackmania_rl.settings import Settings, SettingsError

Floats = npt.NDArray[np.float32]


class RaceGamesWithFloats(RaceGames):
    """Races whose states have k floats more, behind those of their own row and before those of views: derive from it.

    A subclass sets `own_mean` and `own_std`, k numbers each, by which networks normalize, and writes `own_floats`.

    Args:
        settings: of the run.

    Attributes:
        layout: places of the floats that ship: `floats[:, self.layout["velocity_m_s"]]`.
        spaces: see `GamesBuilder`.

    Raises:
        SettingsError: if the subclass's mean, standard deviation and floats do not fit each other.
    """

    own_mean: tuple[float, ...]
    own_std: tuple[float, ...]

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.layout = ObservationLayout.from_settings(settings.observation, settings.game.actions)
        mean, std, end = self.spaces.float_mean, self.spaces.float_std, self.spaces.n_own_floats
        self._end_of_row = end
        two_states = np.tile(np.array(mean[:end], dtype=np.float32), (2, 1))
        shape, wanted = np.shape(self.own_floats(two_states)), (2, len(self.own_mean))
        if shape != wanted or len(self.own_std) != len(self.own_mean):
            raise SettingsError(
                f"games: {type(self).__name__} has {len(self.own_mean)} numbers in own_mean and {len(self.own_std)} in "
                f"own_std, and own_floats made {shape} of two states; it makes {wanted}"
            )
        self.spaces = dataclasses.replace(
            self.spaces,
            float_mean=(*mean[:end], *self.own_mean, *mean[end:]),
            float_std=(*std[:end], *self.own_std, *std[end:]),
            waves=tuple((i if i < end else i + len(self.own_mean), wavelength) for i, wavelength in self.spaces.waves),
        )

    def own_floats(self, floats: Floats) -> npt.NDArray[np.floating]:
        """Compute k floats of each state from the others.

        Args:
            floats: (n, F) float32 of n states, as `layout` places them, without those of views; not normalized, and not
                to be changed.

        Returns:
            (n, k), finite.
        """
        raise NotImplementedError

    def around(self, games: Games) -> Games:
        """See `RaceGames.around`."""
        return GamesWithFloats(super().around(games), self.own_floats, self._end_of_row)


class GamesWithFloats(WrappedGames):
    """Games whose states have more floats; see `Games`.

    What was shown while driving is what the race's columns hold, to the byte: it is computed once for each state.

    Args:
        games: which play.
        own_floats: computes (n, k) of the states' floats (n, F).
        end_of_row: F; what follows while driving is made by views.
    """

    def __init__(self, games: Games, own_floats: Callable[[Floats], npt.NDArray[np.floating]], end_of_row: int) -> None:
        super().__init__(games)
        self._compute = own_floats
        self._end_of_row = end_of_row
        self._newest: dict[int, Floats] = {}  # of the state that each game waits in, (k,)
        self._driven: dict[int, list[Floats]] = {}  # of the race's states in which a decision was made

    def recv(self) -> Received:
        """See `Games.recv`."""
        received = super().recv()
        ended = {game: self._with_floats(game, race) for game, race in received.ended.items()}
        if len(received.ids) == 0:
            return dataclasses.replace(received, ended=ended)
        of_row, of_views = np.split(received.floats, [self._end_of_row], axis=1)
        own = self._own_floats(of_row)
        for game, is_first, floats in zip(received.ids.tolist(), received.is_first, own, strict=True):
            if is_first:
                self._driven[game] = []
            self._newest[game] = floats
        return dataclasses.replace(received, floats=np.hstack((of_row, own, of_views)), ended=ended)

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        """See `Games.send`."""
        for game in ids.tolist():
            self._driven[game].append(self._newest[game])
        super().send(ids, decision, policy_s)

    def under_way(self, game: int, states: range) -> dict[str, Any]:
        """See `Games.under_way`."""
        race = super().under_way(game, states)
        own = np.stack(self._driven[game][states.start : states.stop])
        return race | {"state_float": np.hstack((race["state_float"], own))}

    def _own_floats(self, floats: Floats) -> Floats:
        return np.asarray(self._compute(floats), dtype=np.float32)

    def _with_floats(self, game: int, race: EndedRace) -> EndedRace:
        floats = race.rollout_results["state_float"]
        n_actions = len(floats) - 1  # a decision made at the very moment of the finish led nowhere, and is left out
        own = np.stack((*self._driven[game][:n_actions], self._own_floats(floats[-1:])[0]))
        state_float = np.hstack((floats, own))
        assert race.end is not None
        return dataclasses.replace(
            race,
            end=dataclasses.replace(race.end, last=race.end.last._replace(floats=state_float[-1])),
            rollout_results=race.rollout_results | {"state_float": state_float},
        )
