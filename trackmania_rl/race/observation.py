"""Floats of the observation: names, places, units and measured statistics."""

from __future__ import annotations

import functools
import pprint
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import PARTS_OF_AN_ACTION, PEDALS_OF_AN_ACTION, ActionsSetting
from trackmania_rl.race.observation_kernel import ABSENT, GROUND_GROUPS, N_WHEELS, FeatureOffsets, KernelLayout
from trackmania_rl.race.road import (
    BEAM_ANGLES_DEG,
    N_BEAMS,
    N_QUALITIES,
    ROAD_QUALITIES,
    ZONES_AFTER_END,
    PictureRangeFinder,
)
from trackmania_rl.race.views import ACTIONS, FLOATS, FRAMES, REWARDS, View
from trackmania_rl.settings import (
    RANGE_FINDER,
    ROAD_AHEAD,
    ObservationSettings,
    SettingsError,
    ViewSettings,
    shifts_of,
)

FIRST_BLOCK: Final = "mini_race_time_actions"
"""First block of every vector, written by the replay memory."""
RESERVED_NAMES: Final = frozenset(
    (
        *("state_img", "state_float", "next_state_img", "next_state_float"),
        *("action", "reward", "gamma_n", "n_steps", "index", "weight"),
    )
)
"""Entries of every training batch."""

RANGE_FINDER_REACH_M: Final = 150.0
ROAD_AHEAD_ZONE_CENTERS: Final = 20
"""Number of zone centres in the block `road_ahead`."""
FOURIER_ZONE_CENTERS: Final = 4
"""Number of nearest zone centres with Fourier features."""
PREVIOUS_ACTIONS: Final = "previous_actions"
PREVIOUS_ANALOG_ACTIONS: Final = "previous_analog_actions"
"""Block in `state_normalization` with `actions = "analog"`."""

LINE_LETTERS: Final = 120
"""Line length of the written state_normalization.py."""
MOST_DEVIATIONS: Final = 10.0
"""Measured standard deviations are raised until no value is more than this many of them from the mean. Otherwise a
float that is nearly always 0 would be huge when it is not."""

Rows = tuple[tuple[str, int, str, str], ...]
"""(name, number of floats, unit and range, description) of blocks."""
MeanAndStd = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class ObservationBlock:
    """Adjacent floats of one kind."""

    name: str
    start: int
    stop: int  #: exclusive
    unit: str  #: unit and range
    description: str
    normalized_as: str  #: key in `state_normalization`; "" for a view, which has its column's statistics
    mean: tuple[float, ...]  #: subtracted first, one number per float
    std: tuple[float, ...]  #: divisor

    @property
    def slice(self) -> slice:
        """Place in the vector."""
        return slice(self.start, self.stop)


def _block_rows(settings: ObservationSettings, actions: ActionsSetting) -> Rows:
    n_actions = settings.n_prev_actions_in_inputs
    n_zones = settings.n_zone_centers_in_inputs
    zone_step_m = settings.one_every_n_zone_centers_in_inputs * settings.distance_between_zone_centers_m
    margin_m = settings.margin_to_announce_finish_m
    wheels = "front left, front right, rear right, rear left"
    parts = PARTS_OF_AN_ACTION[actions]
    unit = "-1 to 1" if actions == "analog" else "0/1"
    car_frame = "in the car's frame (x left, y up, z forward)"
    return (
        (FIRST_BLOCK, 1, "actions", "time elapsed in the mini-race; 0 while playing, set when sampled"),
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


def _row_blocks(settings: ObservationSettings, actions: ActionsSetting) -> list[ObservationBlock]:
    rows = _block_rows(settings, actions)
    known = [name for name, *_ in rows]
    names = settings.observation_blocks
    strange = [name for name in names if name not in known]
    if strange:
        raise SettingsError(f"observation_blocks: {strange[0]!r} is no block; {', '.join(known)} are")
    if FIRST_BLOCK not in names:
        raise SettingsError(f"observation_blocks lacks {FIRST_BLOCK!r}, which the replay memory needs: add it")
    rows = tuple(row for row in rows if row[0] in names)
    statistics = settings.state_normalization
    keys = {name: _statistics_name(name, actions) for name, *_ in rows}
    missing = sorted(set(keys.values()) - statistics.keys())
    unknown = sorted(statistics.keys() - {*known, PREVIOUS_ANALOG_ACTIONS})
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
    return blocks


def _statistics_name(block: str, actions: ActionsSetting) -> str:
    return PREVIOUS_ANALOG_ACTIONS if actions == "analog" and block == PREVIOUS_ACTIONS else block


def _check_zones_ahead(settings: ObservationSettings) -> None:
    n_centers = settings.n_zone_centers_in_inputs
    stride = settings.one_every_n_zone_centers_in_inputs
    needed = (n_centers - 1) * stride
    if needed > ZONES_AFTER_END:
        raise SettingsError(
            f"n_zone_centers_in_inputs = {n_centers}, one_every_n_zone_centers_in_inputs = {stride}: at the finish the "
            f"observation looks {needed} zones ahead; {ZONES_AFTER_END} is the most"
        )
    if ROAD_AHEAD in settings.observation_blocks and n_centers < ROAD_AHEAD_ZONE_CENTERS:
        raise SettingsError(
            f"n_zone_centers_in_inputs = {n_centers}: the block {ROAD_AHEAD} describes the "
            f"road at {ROAD_AHEAD_ZONE_CENTERS} zone centres ahead; set it to {ROAD_AHEAD_ZONE_CENTERS} or more"
        )


def blocks_of_views(
    views: Mapping[str, ViewSettings],
    stored: Sequence[ObservationBlock],
    names_in_use: Collection[str],
    statistics_of_an_action: Callable[[], MeanAndStd],
) -> tuple[list[ObservationBlock], list[View], list[View]]:
    """Return the blocks of the setting `views`, the views in them, and the views for training batches only.

    Args:
        views: the setting.
        stored: blocks of a state's own floats.
        names_in_use: names that no view may have.
        statistics_of_an_action: called for views of actions.

    Raises:
        SettingsError: if a view's name is in use or its column does not exist.
    """
    blocks: list[ObservationBlock] = []
    inputs: list[View] = []
    entries: list[View] = []
    places = {block.name: block for block in stored}
    every_name = RESERVED_NAMES.union(names_in_use)
    n_floats = start = stored[-1].stop
    for name, asked_for in views.items():
        column = asked_for.column
        shifts = shifts_of(asked_for.shift)
        if name in every_name:
            raise SettingsError(f"views: {name!r} is the name of a block or of an entry of batches; choose another one")
        if column not in (*places, FLOATS, ACTIONS, REWARDS, FRAMES):
            raise SettingsError(
                f"views: {name!r} looks at {column!r}; there are {ACTIONS}, {REWARDS}, {FRAMES}, {FLOATS}, and of "
                f"these the blocks {', '.join(places)}"
            )
        block = places.get(column)
        kind, part = (column, (0, n_floats)) if block is None else (FLOATS, (block.start, block.stop))
        view = View(
            *(name, kind, shifts, *part),
            is_single=isinstance(asked_for.shift, int),
            has_zeros_before=asked_for.before == "zero",
        )
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


class ObservationChanges(NamedTuple):
    """A user's own changes of each state."""

    n_extra_floats: int = 0  #: k, behind the layout's floats
    #: (n, F), not normalized -> (n, k)
    extra_floats: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.floating[Any]]] | None = None
    #: (n, H, W) -> (n, H, W)
    images: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]] | None = None


NO_CHANGES: Final = ObservationChanges()


class ObservationLayout:
    """All floats of the observation in their order.

    Args:
        actions: the game's setting, for the floats of previous actions.
        changes: a user's own; extra floats are not in `blocks`.

    Attributes:
        blocks: `row_blocks`, then those of views, without gaps.
        row_blocks: blocks of a state's own floats.
        float_input_dim: the vector's length for agents, F.
        n_row_floats: number of floats stored of a state.
        inputs: views that are floats for agents.
        entries: views for training batches only.
        mean: (F,) float32, read-only.
        std: (F,) float32, read-only, positive.
        n_previous_actions: previous actions in the vector.
        parts_of_an_action: names of an action's floats.
        waves: (float's index, wavelength in its unit), for Fourier features.
        needs_road: whether a block needs the road of the track's file.

    Raises:
        SettingsError: if `observation_blocks`, `state_normalization`, `fourier_wavelengths`, `views` and the zones
            ahead contradict each other.
    """

    def __init__(
        self, settings: ObservationSettings, actions: ActionsSetting = "keys", changes: ObservationChanges = NO_CHANGES
    ) -> None:
        self._settings = settings
        self.changes = changes
        self.row_blocks = tuple(_row_blocks(settings, actions))
        _check_zones_ahead(settings)
        self.n_row_floats = self.row_blocks[-1].stop
        of_views, inputs, entries = blocks_of_views(
            settings.views,
            self.row_blocks,
            [name for name, *_ in _block_rows(settings, actions)],
            functools.partial(_statistics_of_an_action, settings, actions),
        )
        self.inputs = tuple(inputs)
        self.entries = tuple(entries)
        self.blocks = (*self.row_blocks, *of_views)
        self.float_input_dim = self.blocks[-1].stop
        self.mean, self.std = (
            np.array([x for block in self.blocks for x in getattr(block, name)], dtype=np.float32)
            for name in ("mean", "std")
        )
        self.mean.setflags(write=False)
        self.std.setflags(write=False)
        self.n_previous_actions = settings.n_prev_actions_in_inputs
        self.parts_of_an_action = PARTS_OF_AN_ACTION[actions]
        self._places = {block.name: block.slice for block in self.blocks}
        self.waves = self._waves()
        if PREVIOUS_ACTIONS in self._places:
            parts = self.parts_of_an_action
            last = self._places[PREVIOUS_ACTIONS].stop - len(parts)  # the oldest action comes first
            gas, brake = (last + parts.index(pedal) for pedal in PEDALS_OF_AN_ACTION[parts])
            self._places |= {"last_gas": slice(gas, gas + 1), "last_brake": slice(brake, brake + 1)}
        has_range_finder = RANGE_FINDER in self._places
        self._measures_on_track = has_range_finder and settings.range_finder_source == "track"
        self._measures_in_picture = has_range_finder and settings.range_finder_source == "picture"
        self.needs_road = self._measures_on_track or ROAD_AHEAD in self._places

    def __getitem__(self, name: str) -> slice:
        """Place of a block in the vector: `floats[..., layout["velocity_m_s"]]`.

        With previous actions, "last_gas" and "last_brake" are the last action's pedals, above 0 if pressed.
        """
        return self._places[name]

    def for_kernel(self) -> KernelLayout:
        """Return the layout for compiled functions."""
        starts = {block.name: block.start for block in self.blocks}
        return KernelLayout(
            at=FeatureOffsets(*(starts.get(name, ABSENT) for name in FeatureOffsets._fields)),
            n_zone_centers=self._settings.n_zone_centers_in_inputs,
            zone_stride=self._settings.one_every_n_zone_centers_in_inputs,
            margin_to_announce_finish_m=self._settings.margin_to_announce_finish_m,
            measures_on_track=self._measures_on_track,
            range_finder_reach_m=RANGE_FINDER_REACH_M,
            n_road_floats=N_QUALITIES * ROAD_AHEAD_ZONE_CENTERS,
            n_floats=self.n_row_floats,
        )

    def picture_range_finder(self, width_px: int, height_px: int) -> PictureRangeFinder | None:
        """Make the range finder for pictures of this size; None if the observation has none."""
        if not self._measures_in_picture:
            return None
        return PictureRangeFinder(width_px, height_px, RANGE_FINDER_REACH_M)

    def _waves(self) -> tuple[tuple[int, float], ...]:
        waves = []
        for name, wavelengths in self._settings.fourier_wavelengths.items():
            if name not in self._places:
                raise SettingsError(
                    f"fourier_wavelengths: {name} is no block of the observation; {', '.join(self._places)} are"
                )
            place = self._places[name]
            stop = place.stop
            if name == "zone_centers_m":
                stop = min(stop, place.start + 3 * FOURIER_ZONE_CENTERS)
            waves += [(index, wavelength) for index in range(place.start, stop) for wavelength in wavelengths]
        return tuple(waves)


def _statistics_of_an_action(settings: ObservationSettings, actions: ActionsSetting) -> MeanAndStd:
    name = _statistics_name(PREVIOUS_ACTIONS, actions)
    n_parts = len(PARTS_OF_AN_ACTION[actions])
    if name not in settings.state_normalization:
        raise SettingsError(f"state_normalization lacks {name!r}, which a view of actions takes its own numbers from")
    mean, std = settings.state_normalization[name]
    return mean[:n_parts], std[:n_parts]


def measured_statistics(
    layout: ObservationLayout, states: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return (F,) means and (F,) standard deviations above 0 of states (n, F), n > 0.

    A constant float keeps the layout's standard deviation. The time in the mini-race, 0 while playing, keeps both.
    """
    means = states.mean(axis=0, dtype=np.float64)
    deviations = states.std(axis=0, dtype=np.float64)
    lowest = states.min(axis=0)
    highest = states.max(axis=0)
    deviations = np.maximum(deviations, np.maximum(highest - means, means - lowest) / MOST_DEVIATIONS)
    deviations = np.where(lowest == highest, layout.std[: layout.n_row_floats], deviations)
    first = layout[FIRST_BLOCK]
    means[first] = layout.mean[first]
    deviations[first] = layout.std[first]
    return means, deviations


def normalization_text(
    layout: ObservationLayout, states: npt.NDArray[np.float32], before: ObservationSettings, comment: str
) -> str:
    """Return the text of a state_normalization.py.

    Args:
        layout: of the states.
        states: (n, F), not normalized.
        before: settings with statistics of unmeasured blocks.
        comment: second paragraph of the file's docstring.
    """
    means, deviations = measured_statistics(layout, states)
    measured = {
        block.normalized_as: (_rounded(means[block.slice]), _rounded(deviations[block.slice]))
        for block in layout.row_blocks
    }
    comments = {block.normalized_as: f"{block.description}; {block.unit}" for block in layout.row_blocks}
    lines = ['"""Mean and standard deviation of every float of the observation, by block.', ""]
    lines += [textwrap.fill(comment, LINE_LETTERS), '"""', "", "# fmt: off", "state_normalization = {"]
    for name, statistics in {**before.state_normalization, **measured}.items():
        comment = comments.get(name, "Not measured: this observation leaves the block out")
        comment = f"{comment[0].upper()}{comment[1:]}."
        lines += textwrap.wrap(comment, LINE_LETTERS, initial_indent="    # ", subsequent_indent="    # ")
        numbers = pprint.pformat(statistics, width=LINE_LETTERS - 8, compact=True)
        lines += [f'    "{name}":', f"{textwrap.indent(numbers, '        ')},"]
    return "\n".join([*lines, "}", "# fmt: on\n"])


def _rounded(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)
