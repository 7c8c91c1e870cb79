"""The blocks that an observation may have: neighbouring floats of one kind, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trackmania_rl.race.actions import PARTS_OF_AN_ACTION, ActionsSetting
from trackmania_rl.race.known_road import N_QUALITIES, ROAD_QUALITIES
from trackmania_rl.race.observation_kernel import GROUND_GROUPS, N_WHEELS
from trackmania_rl.race.range_finder import BEAM_ANGLES_DEG, N_BEAMS
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
"""The block that every vector begins with: the replay memory writes it."""
RESERVED_NAMES: Final = frozenset(
    (
        *("state_img", "state_float", "next_state_img", "next_state_float"),
        *("action", "reward", "gamma_n", "n_steps", "index", "weight"),
    )
)
"""Entries of every training batch."""

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
    zone_step_m = settings.one_every_n_zone_centers_in_inputs * settings.distance_between_zone_centers_m
    margin_m = settings.margin_to_announce_finish_m
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
            f"m, at most {settings.range_finder_reach_m:g}",
            f"way to the road's border in {N_BEAMS} directions, one every {BEAM_ANGLES_DEG[1] - BEAM_ANGLES_DEG[0]} "
            "degrees: right, ahead, left",
        ),
        (
            ROAD_AHEAD,
            N_QUALITIES * settings.road_ahead_zone_centers,
            "m, 0/1, -1 to 1",
            f"the road at the first {settings.road_ahead_zone_centers} of these virtual checkpoints: "
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
