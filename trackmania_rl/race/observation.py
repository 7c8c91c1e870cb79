"""The float part of the observation: names, places, units, means and standard deviations of all floats.

Networks, rewards, `races` (which writes the floats) and the table in docs/observation.rst derive from the layout. At
full size it has 184 floats; a configuration may leave blocks out and add others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import PARTS_OF_AN_ACTION, PEDALS_OF_AN_ACTION, ActionsSetting
from trackmania_rl.race.known_road import N_QUALITIES, ROAD_QUALITIES
from trackmania_rl.race.observation_kernel import ABSENT, GROUND_GROUPS, N_WHEELS, FeatureOffsets, KernelLayout
from trackmania_rl.race.range_finder import BEAM_ANGLES_DEG, BORDER_GRAY, N_BEAMS, PictureRangeFinder
from trackmania_rl.race.views import ACTIONS, FLOATS, FRAMES, REWARDS, View
from trackmania_rl.race.zones import ZONE_SPACING_M, ZONES_AFTER_END
from trackmania_rl.settings import (
    RANGE_FINDER,
    ROAD_AHEAD,
    ObservationSettings,
    SettingsError,
    ViewSettings,
    shifts_of,
)

FIRST_BLOCK: Final = "mini_race_time_actions"
"""The block that every vector begins with: the replay memory writes it."""
RESERVED_NAMES: Final = frozenset(
    (
        *("state_img", "state_float", "next_state_img", "next_state_float"),
        *("action", "reward", "gamma_n", "n_steps", "index", "weight"),
    )
)
"""Entries of every training batch."""

MARGIN_TO_ANNOUNCE_FINISH_M: Final = 700.0
"""Distance to the finish up to which the agent sees it."""
RANGE_FINDER_REACH_M: Final = 150.0
ROAD_AHEAD_ZONE_CENTERS: Final = 20
"""Number of zone centres at which the block `road_ahead` describes the road."""
PREVIOUS_ACTIONS: Final = "previous_actions"
PREVIOUS_ANALOG_ACTIONS: Final = "previous_analog_actions"
"""What `state_normalization` calls that block with `actions = "analog"`."""

Rows = tuple[tuple[str, int, str, str], ...]
"""(name, number of floats, unit and range, description) of blocks."""
MeanAndStd = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class ObservationBlock:
    """Neighbouring floats of one kind.

    Attributes:
        name: mostly also the key in `state_normalization`.
        normalized_as: that key; "" of a view, which takes the numbers of what it looks at.
        start: index of the block's first float.
        stop: one more than the index of its last.
        unit: unit and range.
        description: what it is, in one sentence.
        mean: subtracted by the network, one number for each float.
        std: then divided by, one number for each float.
    """

    name: str
    start: int
    stop: int
    unit: str
    description: str
    normalized_as: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def slice(self) -> slice:
        """Where the block lies in the vector."""
        return slice(self.start, self.stop)


def block_rows(settings: ObservationSettings, actions: ActionsSetting) -> Rows:
    """List every block that there is, in the vector's order."""
    n_actions, n_zones = settings.n_prev_actions_in_inputs, settings.n_zone_centers_in_inputs
    zone_step_m = settings.one_every_n_zone_centers_in_inputs * ZONE_SPACING_M
    margin_m = MARGIN_TO_ANNOUNCE_FINISH_M
    wheels = "front left, front right, rear right, rear left"
    parts, unit = PARTS_OF_AN_ACTION[actions], "-1 to 1" if actions == "analog" else "0/1"
    car_frame = "in the car's frame (x left, y up, z forward)"
    return (
        ("mini_race_time_actions", 1, "actions", "time elapsed in the mini-race; 0 while playing, set when sampled"),
        (
            PREVIOUS_ACTIONS,
            n_actions * len(parts),
            unit,
            f"the {n_actions} previous actions, oldest first: {', '.join(parts)} each; forward before the first action",
        ),
        ("wheel_is_sliding", N_WHEELS, "0/1", f"wheel is sliding: {wheels}"),
        ("wheel_has_ground_contact", N_WHEELS, "0/1", "wheel touches the ground"),
        ("wheel_damper_absorb_m", N_WHEELS, "m, about 0.005 to 0.15", "how far the wheel's damper is pressed in"),
        ("gearbox_state", 1, "0/1, 2 at the start", "the gear is changing"),
        ("gear", 1, "0 to 5", "gear, 0 is reverse"),
        ("engine_rpm", 1, "1/min, 0 to about 11000", "engine speed"),
        ("actions_since_gear_change", 1, "actions, up to about 28", "actions since the gear change began, 0 when none"),
        (
            "wheel_ground_group",
            N_WHEELS * len(GROUND_GROUPS),
            "0/1",
            f"for each wheel, one-hot, the ground below it: {', '.join(GROUND_GROUPS)}",
        ),
        ("angular_velocity_rad_s", 3, "rad/s", f"angular velocity {car_frame}"),
        ("velocity_m_s", 3, "m/s", f"linear velocity {car_frame}"),
        ("world_up", 3, "1", f"the world's upward direction {car_frame}"),
        (
            "zone_centers_m",
            3 * n_zones,
            "m",
            f"{n_zones} virtual checkpoints, one every {zone_step_m:g} m from the current one on: position {car_frame}",
        ),
        ("distance_to_finish_m", 1, f"m, at most {margin_m:g}", "distance left to the finish along the line"),
        ("is_freewheeling", 1, "0/1", "the engine is cut off until the next checkpoint"),
        ("speed_m_s", 1, "m/s", "speed"),
        (
            RANGE_FINDER,
            N_BEAMS,
            f"m, at most {RANGE_FINDER_REACH_M:g}",
            f"way to the road's border in {N_BEAMS} directions, one every {BEAM_ANGLES_DEG[1] - BEAM_ANGLES_DEG[0]} "
            "degrees: right, ahead, left",
        ),
        (
            ROAD_AHEAD,
            N_QUALITIES * ROAD_AHEAD_ZONE_CENTERS,
            "m, 0/1, -1 to 1",
            f"the road at the first {ROAD_AHEAD_ZONE_CENTERS} of these virtual checkpoints: "
            f"{', '.join(ROAD_QUALITIES)} each",
        ),
    )


def rows_asked_for(rows: Rows, names: Sequence[str]) -> Rows:
    """Select the rows of some blocks, in the vector's order.

    Raises:
        SettingsError: if there is no such block, or the first one is not among them.
    """
    known = [name for name, *_ in rows]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(f"observation_blocks: {unknown[0]!r} is no block; {', '.join(known)} are")
    if FIRST_BLOCK not in names:
        raise SettingsError(f"observation_blocks lacks {FIRST_BLOCK!r}, which the replay memory needs: add it")
    return tuple(row for row in rows if row[0] in names)


def blocks_of_views(
    views: Mapping[str, ViewSettings],
    stored: Sequence[ObservationBlock],
    names_in_use: Collection[str],
    statistics_of_an_action: Callable[[], MeanAndStd],
) -> tuple[list[ObservationBlock], list[View], list[View]]:
    """Make what the setting `views` asks for.

    Args:
        views: the setting.
        stored: the blocks of a state's own floats.
        names_in_use: names that no view may have.
        statistics_of_an_action: returns means and standard deviations of one action's floats.

    Returns:
        The blocks that follow them, their views, and the views that are entries of training batches.

    Raises:
        SettingsError: if a view has a name that is in use, or looks at what there is not.
    """
    blocks: list[ObservationBlock] = []
    inputs: list[View] = []
    entries: list[View] = []
    places = {block.name: block for block in stored}
    every_name = RESERVED_NAMES.union(names_in_use)
    n_floats = start = stored[-1].stop
    for name, asked_for in views.items():
        column, shifts = asked_for.column, shifts_of(asked_for.shift)
        if name in every_name:
            raise SettingsError(f"views: {name!r} is the name of a block or of an entry of batches; choose another one")
        if column not in (*places, FLOATS, ACTIONS, REWARDS, FRAMES):
            raise SettingsError(
                f"views: {name!r} looks at {column!r}; there are {ACTIONS}, {REWARDS}, {FRAMES}, {FLOATS}, and of "
                f"these the blocks {', '.join(places)}"
            )
        block = places.get(column)
        kind, part = (column, (0, n_floats)) if block is None else (FLOATS, (block.start, block.stop))
        view = View(name, kind, shifts, *part, is_single=isinstance(asked_for.shift, int))
        if not asked_for.input:
            entries.append(view)
            continue
        if kind in (REWARDS, FRAMES) or shifts[-1] >= 0:
            raise SettingsError(
                f"views: {name!r} looks at {column} of the rows {asked_for.shift}, which an agent that drives does not "
                "see as floats: it sees floats and actions of rows before, -1 and less (frames are a setting of their "
                'own, frames_per_state). For training batches alone add "input": False'
            )
        if kind == ACTIONS:
            of_one = statistics_of_an_action()
            unit = "as of previous actions"
        else:
            seen = stored if block is None else [block]
            of_one = tuple(x for b in seen for x in b.mean), tuple(x for b in seen for x in b.std)
            unit = "as of that block"
        mean, std = (numbers * len(shifts) for numbers in of_one)
        described = f"{column} of the rows {asked_for.shift}, oldest first"
        blocks.append(ObservationBlock(name, start, start + len(mean), unit, described, "", mean, std))
        inputs.append(view)
        start += len(mean)
    return blocks, inputs, entries


def statistics_of_an_action(settings: ObservationSettings, actions: ActionsSetting) -> MeanAndStd:
    """Give means and standard deviations of one previous action's floats, those of the block of previous actions."""
    name = PREVIOUS_ANALOG_ACTIONS if actions == "analog" else PREVIOUS_ACTIONS
    n_parts = len(PARTS_OF_AN_ACTION[actions])
    if name not in settings.state_normalization:
        raise SettingsError(f"state_normalization lacks {name!r}, which a view of actions takes its own numbers from")
    mean, std = settings.state_normalization[name]
    return mean[:n_parts], std[:n_parts]


FOURIER_ZONE_CENTERS: Final = 4
"""Number of nearest zone centres that have Fourier features."""


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
        if needed > ZONES_AFTER_END:
            raise SettingsError(
                f"n_zone_centers_in_inputs = {settings.n_zone_centers_in_inputs}, one_every_n_zone_centers_in_inputs = "
                f"{settings.one_every_n_zone_centers_in_inputs}: at the finish the observation looks {needed} zones "
                f"ahead; {ZONES_AFTER_END} is the most"
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
            margin_to_announce_finish_m=MARGIN_TO_ANNOUNCE_FINISH_M,
            measures_on_track=self.measures_on_track,
            range_finder_reach_m=RANGE_FINDER_REACH_M,
            n_road_floats=N_QUALITIES * ROAD_AHEAD_ZONE_CENTERS,
            n_floats=self.n_own_floats,
        )

    def picture_range_finder(self, width_px: int, height_px: int) -> PictureRangeFinder | None:
        """Make what measures the ranges in pictures of this size; None where nothing does."""
        if not self.measures_in_picture:
            return None
        return PictureRangeFinder(width_px, height_px, RANGE_FINDER_REACH_M, BORDER_GRAY)

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
                stop = min(stop, block.start + 3 * FOURIER_ZONE_CENTERS)
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
    if settings.n_zone_centers_in_inputs < ROAD_AHEAD_ZONE_CENTERS:
        raise SettingsError(
            f"n_zone_centers_in_inputs = {settings.n_zone_centers_in_inputs}: the block {ROAD_AHEAD} describes the "
            f"road at {ROAD_AHEAD_ZONE_CENTERS} zone centres ahead; set it to {ROAD_AHEAD_ZONE_CENTERS} or more"
        )


def _read_only(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    array.setflags(write=False)
    return array


def _range_text(numbers: tuple[float, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
