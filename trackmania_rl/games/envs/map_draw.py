"""Which map the next race of an environment is on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry

MAP_OPTION: Final = "map"
"""Of `reset(options=...)`: the name of the map."""


class MapDraw:
    """The maps of an environment, of which each race has one.

    Args:
        maps: at least one; one that comes several times is one map.
        weights: how often each is driven, in proportion, each above 0; None: all alike.

    Attributes:
        names: of the maps, in their order.

    Raises:
        UserError: if two maps have the same name.
    """

    def __init__(self, maps: Sequence[MapEntry], weights: Sequence[float] | None = None) -> None:
        self._by_name: dict[str, MapEntry] = {}
        weight_of: dict[str, float] = {}
        for entry, weight in zip(maps, weights or [1.0] * len(maps), strict=True):
            name = entry.map_name
            other = self._by_name.setdefault(name, entry)
            if _files(other) != _files(entry):
                raise UserError(
                    f"maps: {other.map_path} and {entry.map_path} are both named {name}, so that nothing could tell "
                    "their races apart; rename one of them"
                )
            weight_of[name] = weight_of.get(name, 0.0) + weight
        self.names = tuple(self._by_name)
        self._shares = np.array(list(weight_of.values())) / sum(weight_of.values())

    def draw(self, rng: np.random.Generator, options: Mapping[str, Any] | None) -> MapEntry:
        """Return the map of the next race: the one that `options["map"]` names, else one drawn by `rng`.

        Raises:
            UserError: if there is no map of this name.
        """
        name = (options or {}).get(MAP_OPTION)
        if name is None:
            name = self.names[int(rng.choice(len(self.names), p=self._shares))]
        if name not in self.names:
            raise UserError(
                f'reset(options={{"{MAP_OPTION}": {name!r}}}): the maps of this environment are {", ".join(self.names)}'
            )
        return self._by_name[name]


def check_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> None:
    """Refuse options of `reset` that nothing would look at.

    Raises:
        UserError: if one of them is not `known`.
    """
    for name in options or {}:
        if name not in known:
            raise UserError(f"reset(options={{{name!r}: ...}}): the options of this environment are {', '.join(known)}")


def _files(entry: MapEntry) -> tuple[str, str]:
    return entry.map_path, entry.reference_line
