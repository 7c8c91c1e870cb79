"""The float part of the observation: names, places, units, means and standard deviations of all floats.

Networks, rewards, `races` (which writes the floats) and the table in docs/observation.rst derive from the layout. At
full size it has 184 floats; a configuration may leave blocks out and add others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import PARTS_OF_AN_ACTION, PEDALS_OF_AN_ACTION, ActionsSetting
from trackmania_rl.race.known_road import N_QUALITIES
from trackmania_rl.race.observation_blocks import (
    PREVIOUS_ACTIONS,
    PREVIOUS_ANALOG_ACTIONS,
    ObservationBlock,
    block_rows,
    blocks_of_views,
    rows_asked_for,
    statistics_of_an_action,
)
from trackmania_rl.race.observation_kernel import ABSENT, FeatureOffsets, KernelLayout
from trackmania_rl.race.picture_range_finder import PictureRangeFinder
from trackmania_rl.settings import RANGE_FINDER, ROAD_AHEAD, ObservationSettings, SettingsError


class ExtraFloats(NamedTuple):
    """A user's own floats of each state, behind those of the layout.

    Attributes:
        n: k.
        compute: returns (n, k) of n states' floats (n, F), not normalized.
    """

    n: int
    compute: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.floating[Any]]]


class ObservationLayout:
    """All floats of the observation in their order.

    Attributes:
        blocks: in the vector's order, without gaps: a state's own, then those that views make.
        float_input_dim: the vector's length, as agents see it.
        n_own_floats: how many of them are a state's own: what is stored of it.
        inputs: the views of the others.
        entries: views that are entries of training batches.
        mean: (F,) float32, read-only.
        std: (F,) float32, read-only, positive.
        n_previous_actions: how many actions the vector remembers.
        parts_of_an_action: names of the floats that each of them has.
        n_zone_centers: how many zone centres it holds.
        zone_stride: how many zones lie from one of them to the next.
        margin_to_announce_finish_m: largest distance to the finish that it shows.
        waves: (float's index, wavelength in its unit) pairs: what the network sees at finer scales as well.
        measures_on_track: whether there is a range finder that measures on the track's borders.
        measures_in_picture: whether there is one that measures in the picture.
        extra: a user's own floats, which neither blocks nor views hold.
        needs_road: whether some block tells what only the track's file does: its borders, or the road ahead.
    """

    def __init__(
        self,
        blocks: Sequence[ObservationBlock],
        settings: ObservationSettings,
        actions: ActionsSetting,
        extra: ExtraFloats | None = None,
    ) -> None:
        self.extra = extra
        self.n_own_floats = blocks[-1].stop
        of_views, inputs, entries = blocks_of_views(
            settings.views,
            blocks,
            [name for name, *_ in block_rows(settings, actions)],
            functools.partial(statistics_of_an_action, settings, actions),
        )
        self.inputs, self.entries = tuple(inputs), tuple(entries)
        self.blocks = (*blocks, *of_views)
        self.float_input_dim = self.blocks[-1].stop
        self.mean = _read_only(np.array([x for block in self.blocks for x in block.mean], dtype=np.float32))
        self.std = _read_only(np.array([x for block in self.blocks for x in block.std], dtype=np.float32))
        self.n_previous_actions = settings.n_prev_actions_in_inputs
        self.parts_of_an_action = PARTS_OF_AN_ACTION[actions]
        self.n_zone_centers = settings.n_zone_centers_in_inputs
        self.zone_stride = settings.one_every_n_zone_centers_in_inputs
        self.margin_to_announce_finish_m = settings.margin_to_announce_finish_m
        self._settings = settings
        self._by_name = {block.name: block for block in self.blocks}
        self._places = {block.name: block.slice for block in self.blocks} | self._places_of_pedals()
        self.waves = self._waves(settings)
        has_range_finder = RANGE_FINDER in self._by_name
        self.measures_on_track = has_range_finder and settings.range_finder_source == "track"
        self.measures_in_picture = has_range_finder and settings.range_finder_source == "picture"
        self.needs_road = self.measures_on_track or ROAD_AHEAD in self._by_name

    @classmethod
    def from_settings(
        cls, settings: ObservationSettings, actions: ActionsSetting = "keys", extra: ExtraFloats | None = None
    ) -> ObservationLayout:
        """Lay out the blocks for these settings.

        Args:
            settings: of the observation.
            actions: the game's setting of this name, which says what a previous action looks like.
            extra: a user's own floats.

        Raises:
            SettingsError: if `observation_blocks` has an unknown block or lacks the first one; if `state_normalization`
                lacks a block, has an unknown one, or has another number of entries than a block has floats; if
                `fourier_wavelengths` has an unknown block; if the line is extended too little for the zones ahead at
                the finish; if one of `views` is impossible; or if the road is told at more zones than are ahead.
        """
        rows = block_rows(settings, actions)
        known = {name for name, *_ in rows} | {PREVIOUS_ANALOG_ACTIONS}
        rows = rows_asked_for(rows, settings.observation_blocks)
        statistics = settings.state_normalization
        is_analog = actions == "analog"
        keys = {name: PREVIOUS_ANALOG_ACTIONS if is_analog and name == PREVIOUS_ACTIONS else name for name, *_ in rows}
        missing, unknown = sorted(set(keys.values()) - statistics.keys()), sorted(statistics.keys() - known)
        if missing or unknown:
            raise SettingsError(f"state_normalization: missing blocks {missing}, unknown blocks {unknown}")
        blocks = []
        start = 0
        for name, length, unit, description in rows:
            mean, std = statistics[keys[name]]
            if (len(mean), len(std)) != (length, length):
                raise SettingsError(
                    f'state_normalization["{keys[name]}"] has {len(mean)} means and {len(std)} standard deviations; '
                    f"the block has {length} floats with these settings of the observation"
                )
            blocks.append(ObservationBlock(name, start, start + length, unit, description, keys[name], mean, std))
            start += length
        needed = (settings.n_zone_centers_in_inputs - 1) * settings.one_every_n_zone_centers_in_inputs
        there_are = settings.n_zone_centers_extrapolate_after_end_of_map
        if there_are < needed:
            raise SettingsError(
                f"n_zone_centers_extrapolate_after_end_of_map = {there_are}: at the finish the observation looks "
                f"{needed} zones ahead (n_zone_centers_in_inputs, one_every_n_zone_centers_in_inputs); at least as "
                "many are needed"
            )
        if ROAD_AHEAD in settings.observation_blocks:
            _require_places_of_road(settings)
        return cls(blocks, settings, actions, extra)

    @property
    def own_blocks(self) -> tuple[ObservationBlock, ...]:
        """A state's own blocks: those that no view makes."""
        return tuple(block for block in self.blocks if block.stop <= self.n_own_floats)

    def __getitem__(self, name: str) -> slice:
        """The place of a block in the vector: `floats[..., layout["velocity_m_s"]]`.

        Where there are previous actions, "last_gas" and "last_brake" are the places of the last one's pedals: above 0
        where they were pressed.
        """
        return self._places[name]

    def index(self, name: str) -> int:
        """The place of a block of one float.

        Raises:
            ValueError: if the block has more than one.
        """
        block = self._by_name[name]
        if block.stop - block.start != 1:
            raise ValueError(f"block {name} has {block.stop - block.start} floats; use its slice")
        return block.start

    def for_kernel(self) -> KernelLayout:
        """What the compiled functions need to know of it."""
        starts = {block.name: block.start for block in self.blocks}
        return KernelLayout(
            at=FeatureOffsets(*(starts.get(name, ABSENT) for name in FeatureOffsets._fields)),
            n_zone_centers=self.n_zone_centers,
            zone_stride=self.zone_stride,
            margin_to_announce_finish_m=self.margin_to_announce_finish_m,
            measures_on_track=self.measures_on_track,
            range_finder_reach_m=self._settings.range_finder_reach_m,
            n_road_floats=N_QUALITIES * self._settings.road_ahead_zone_centers,
            n_floats=self.n_own_floats,
        )

    def picture_range_finder(self, width_px: int, height_px: int) -> PictureRangeFinder | None:
        """Make what measures the ranges in pictures of this size; None where nothing does."""
        if not self.measures_in_picture:
            return None
        settings = self._settings
        return PictureRangeFinder(width_px, height_px, settings.range_finder_reach_m, settings.range_finder_border_gray)

    def _places_of_pedals(self) -> dict[str, slice]:
        if PREVIOUS_ACTIONS not in self._by_name:
            return {}
        parts = self.parts_of_an_action
        begin = self._by_name[PREVIOUS_ACTIONS].stop - len(parts)  # the oldest action comes first
        gas, brake = (begin + parts.index(pedal) for pedal in PEDALS_OF_AN_ACTION[parts])
        return {"last_gas": slice(gas, gas + 1), "last_brake": slice(brake, brake + 1)}

    def _waves(self, settings: ObservationSettings) -> tuple[tuple[int, float], ...]:
        waves = []
        for name, wavelengths in settings.fourier_wavelengths.items():
            if name not in self._by_name:
                raise SettingsError(
                    f"fourier_wavelengths: {name} is no block of the observation; {', '.join(self._by_name)} are"
                )
            block = self[name]
            stop = block.stop
            if name == "zone_centers_m":
                stop = min(stop, block.start + 3 * settings.fourier_zone_centers)
            waves += [(index, wavelength) for index in range(block.start, stop) for wavelength in wavelengths]
        return tuple(waves)

    def rst_table(self) -> str:
        """The blocks as a reStructuredText table, for docs/observation.rst."""
        lines = [".. list-table::", "   :header-rows: 1", "", "   * - index", "     - name", "     - what; unit, range"]
        lines += ["     - mean; standard deviation"]
        for block in self.blocks:
            index = str(block.start) if block.stop == block.start + 1 else f"{block.start}-{block.stop - 1}"
            cells = (
                f"``{block.name}``",
                f"{block.description}; {block.unit}",
                f"{_range_text(block.mean)}; {_range_text(block.std)}",
            )
            lines += [f"   * - {index}", *(f"     - {cell}" for cell in cells)]
        return "\n".join(lines) + "\n"


def _require_places_of_road(settings: ObservationSettings) -> None:
    """See that the road is told at zones that are ahead also at the finish."""
    if settings.road_ahead_zone_centers > settings.n_zone_centers_in_inputs:
        raise SettingsError(
            f"road_ahead_zone_centers = {settings.road_ahead_zone_centers}: the road is told at zone centres ahead, of "
            f"which there are n_zone_centers_in_inputs = {settings.n_zone_centers_in_inputs}"
        )


def _read_only(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    array.setflags(write=False)
    return array


def _range_text(numbers: tuple[float, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
