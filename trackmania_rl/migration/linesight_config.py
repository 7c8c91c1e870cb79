"""Settings of a Linesight configuration as settings of ours, without running the file.

The file is parsed, and its assignments are worked out where they are made of numbers, texts, tuples, lists, arithmetic
and names set before. Whatever else is there is left alone.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded_text
from trackmania_rl.settings import Settings, SettingsError, settings_from_flat
from trackmania_rl.settings.groups import NO_LONGER_READ, REMOVED

NAMES_HERE: Final[Mapping[str, str]] = {
    "W_downsized": "image_width_px",
    "H_downsized": "image_height_px",
    "tm_engine_step_per_action": "engine_ticks_per_action",
    "cutoff_rollout_if_race_not_finished_within_duration_ms": "cutoff_race_longer_than_ms",
    "cutoff_rollout_if_no_vcp_passed_within_duration_ms": "cutoff_no_progress_within_ms",
    "margin_to_announce_finish_meters": "margin_to_announce_finish_m",
    "timeout_during_run_ms": "timeout_during_race_ms",
    "timeout_between_runs_ms": "timeout_between_races_ms",
    "game_reboot_interval": "game_reboot_interval_s",
    "distance_between_checkpoints": "distance_between_zone_centers_m",
    "road_width": "road_width_m",
    "shaped_reward_min_dist_to_cur_vcp": "shaped_reward_min_dist_to_cur_vcp_m",
    "shaped_reward_max_dist_to_cur_vcp": "shaped_reward_max_dist_to_cur_vcp_m",
    "engineered_reward_min_dist_to_cur_vcp": "engineered_reward_min_dist_to_cur_vcp_m",
    "engineered_reward_max_dist_to_cur_vcp": "engineered_reward_max_dist_to_cur_vcp_m",
    "gpu_collectors_count": "n_collectors",
    "additional_transition_after_reset": "additional_transitions_after_reset",
    "last_layer_reset_factor": "last_layer_reset_mul_factor",
    "use_jit": "use_torch_compile",
}
"""Settings that have another name here."""

OURS_ALONE: Final = frozenset({"run_name", "inputs", "game"})
"""Names that exist in both, and mean something else or come from elsewhere."""

INGREDIENTS: Final = frozenset(
    {
        *("ms_per_action", "temporal_mini_race_duration_ms", "global_schedule_speed"),
        *("final_speed_reward_as_if_duration_s", "float_input_dim", "conv_head_output_dim"),
        *("n_pixels_to_crop_on_each_side", "nadeo_maps_to_train_and_test"),
    }
)
"""Names that are contained in other settings, or follow from them."""

NO_COUNTERPART: Final[Mapping[str, tuple[Any, str]]] = {
    "n_contact_material_physics_behavior_types": (4, "here it is always 4"),
    "ms_per_tm_engine_step": (10, "here it is always 10"),
    "sync_virtual_and_real_checkpoints": (True, "here they always are"),
    "deck_height": (-math.inf, "the height of the car does not matter here"),
    "max_rollout_queue_size": (1, "here it is always 4"),
    "single_reset_flag": (0, "see reset_every_n_frames_generated"),
    "frames_before_save_best_runs": (1_500_000, "every best race is kept here, from the first one on"),
    "threshold_to_save_all_runs_ms": (53_700, "only best races are kept here"),
    "plot_race_time_left_curves": (False, "there are no such pictures here"),
    "make_highest_prio_figures": (False, "there are no such pictures here"),
    "n_transitions_to_plot_in_distribution_curves": (1000, "there are no such pictures here"),
    "tensorboard_suffix_schedule": (
        (
            *((0, ""), (6_000_000, "_2"), (15_000_000, "_3"), (30_000_000, "_4")),
            *((45_000_000, "_5"), (80_000_000, "_6"), (150_000_000, "_7")),
        ),
        "here a run's figures stay in one folder",
    ),
    "apply_randomcrop_augmentation": (False, "see examples/image_shifts.py"),
    "linux_launch_game_path": ("path_to_be_filled_only_if_on_linux", "set game_command in user_config.py"),
}
"""Names that are no settings here: the published value, of which nothing is said, and what there is instead."""

NEVER_RESETS_FRAMES: Final = 10**9
"""Linesight switches periodic resets off by a number of frames that is never reached; here 0 does."""

LARGEST_CONFIG_BYTES: Final = 256 << 10

NOT_WORKED_OUT: Final = object()
"""In place of a value that is not made of what is worked out here."""

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


MOST_COPIED: Final = 1_000_000
"""Entries of lists that are named again; `x = (x, x)` thirty times would be a billion."""
LARGEST_NUMBER: Final = 1e30


class _NotPlainError(Exception):
    """An expression that is not worked out."""


class _Values(dict[str, Any]):
    """The values of names, as far as they are worked out."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MOST_COPIED

    def again(self, name: str) -> Any:
        """A value that another one is made of; raises `_NotPlainError` where there is none, or too much of it."""
        value = self.get(name, NOT_WORKED_OUT)
        if value is NOT_WORKED_OUT:
            raise _NotPlainError
        self._count(value)
        return value

    def _count(self, value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise _NotPlainError
        for entry in value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else ():
            self._count(entry)


def read_linesight_config(file: Path) -> dict[str, Any]:
    """The names that a Linesight configuration sets; the value is `NOT_WORKED_OUT` where it would take running code.

    Raises:
        UserError: if the file cannot be read or is no Python.
    """
    try:
        tree = ast.parse(read_bounded_text(file, LARGEST_CONFIG_BYTES))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise UserError(f"{file} is no Python file: {error}") from error
    values = _Values()
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _set(values, name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                _set(values, name, value)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if name in values:
                _set(values, name, ast.BinOp(ast.Name(name), ast.Add(), value))
            case ast.FunctionDef() | ast.ClassDef():
                pass  # what is set in there has no effect here
            case _:
                values |= dict.fromkeys(_names_touched(node), NOT_WORKED_OUT)
    return values


def _names_touched(statement: ast.stmt) -> set[str]:
    """The names that a statement of any other form may change: those it sets, and those whose methods it calls."""
    names = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
                names.add(name)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                names.add(name)
    return names


def settings_from_linesight(values: Mapping[str, Any], base: Settings) -> tuple[dict[str, Any], list[str]]:
    """What a Linesight configuration changes in ours.

    Args:
        values: as `read_linesight_config` gives them.
        base: our settings, which hold where that configuration says nothing.

    Returns:
        Our settings' new values by name, and a line for each that could not be taken over.
    """
    known = base.flat()
    plain = {name: value for name, value in values.items() if value is not NOT_WORKED_OUT}
    wanted = {NAMES_HERE.get(name, name): value for name, value in plain.items()}
    wanted |= _memory_schedules(plain.get("memory_size_schedule"))
    maps, n_maps_left_out = _map_cycle(plain.get("map_cycle"))
    wanted |= maps
    if wanted.get("reset_every_n_frames_generated", 0) > NEVER_RESETS_FRAMES:
        wanted["reset_every_n_frames_generated"] = 0
    wanted = {name: value for name, value in wanted.items() if name in known and name not in OURS_ALONE}
    taken, problems = _what_fits(known, wanted)
    changed = settings_from_flat(known | taken).flat()
    changes = {name: value for name, value in taken.items() if changed[name] != known[name]}
    if n_maps_left_out > 0:
        problems.append(
            f"map_cycle: {n_maps_left_out} entries are no repeat((name, map, line, ...), times) and left out"
        )
    return changes, problems + _needing_code(values, known) + _without_counterpart(plain, known)


def _needing_code(values: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """A line for each setting of which only code knows the value."""
    return [
        f"{name}: its value takes code, which is not run"
        for name, value in values.items()
        if value is NOT_WORKED_OUT and NAMES_HERE.get(name, name) in known and name not in OURS_ALONE
    ]


def _without_counterpart(plain: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """A line for each name that is no setting here, unless it has the published value."""
    lines = []
    for name, value in plain.items():
        ours = NAMES_HERE.get(name, name)
        if ours in known or name in INGREDIENTS or ours in NO_LONGER_READ or value == REMOVED.get(ours, known):
            continue
        instead = f"here it is always {REMOVED[ours]!r}" if ours in REMOVED else "there is no such setting here"
        if name in NO_COUNTERPART:
            published, instead = NO_COUNTERPART[name]
            if value == published:
                continue
        text = repr(value)
        lines.append(f"{name} = {text if len(text) <= 60 else text[:57] + '...'}: {instead}")
    return lines


def _what_fits(known: dict[str, Any], wanted: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The wanted settings that go together, and what is wrong with each of the others."""
    taken: dict[str, Any] = {}
    problems: dict[str, str] = {}
    is_growing = True
    while is_growing:  # some go only with others, such as a memory and how full it has to be
        is_growing = False
        for name in [name for name in wanted if name not in taken]:
            try:
                settings_from_flat(known | taken | {name: wanted[name]})
            except SettingsError as error:
                problems[name] = str(error)
            else:
                taken[name] = wanted[name]
                problems.pop(name, None)
                is_growing = True
    return taken, list(problems.values())


def _set(values: _Values, name: str, node: ast.expr) -> None:
    try:
        values[name] = _value(node, values)
    except (_NotPlainError, ArithmeticError, TypeError, RecursionError):
        values[name] = NOT_WORKED_OUT  # whatever it was before


def _value(node: ast.expr, names: _Values) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.JoinedStr(values=parts) if all(isinstance(part, ast.Constant) for part in parts):
            return "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
        case ast.Name(id=name):
            return names.again(name)
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            return tuple(_value(entry, names) for entry in entries)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combine(type(op), _value(left, names), _value(right, names))
        case ast.Attribute(value=ast.Name(id="np"), attr="inf"):
            return math.inf
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr="float32"), args=[argument], keywords=[]):
            return float(_value(argument, names))
        case ast.Call(func=ast.Name(id="repeat"), args=[repeated, count], keywords=[]):
            return {"repeat": _value(repeated, names), "times": _value(count, names)}
        case _:
            raise _NotPlainError


def _combine(op: type[ast.operator], left: Any, right: Any) -> Any:
    """Arithmetic of numbers, and lists one after the other."""
    are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if are_numbers or (op is ast.Add and isinstance(left, tuple) and isinstance(right, tuple)):
        if are_numbers and max(abs(left), abs(right)) > LARGEST_NUMBER and math.inf not in (abs(left), abs(right)):
            raise _NotPlainError
        return _OPERATORS[op](left, right)
    raise _NotPlainError


def _memory_schedules(schedule: object) -> dict[str, Any]:
    """Linesight's one schedule of (frames, (size, size to start learning at)) as our two."""
    sizes, starts = [], []
    for entry in schedule if isinstance(schedule, tuple) else ():
        match entry:
            case (frames, (size, start)):
                sizes.append((frames, size))
                starts.append((frames, start))
            case _:
                return {}
    if not sizes:
        return {}
    return {"memory_size_schedule": tuple(sizes), "memory_size_start_learn_schedule": tuple(starts)}


def _map_cycle(cycle: object) -> tuple[dict[str, Any], int]:
    """Linesight's cycle of `repeat((name, map, line, is_explo, fill_buffer), times)` as ours; how many are none."""
    entries, n_left_out = [], 0
    for entry in cycle if isinstance(cycle, tuple) else ():
        match entry:
            case {"repeat": (str() as name, str() as map_path, str() as line, is_explo, fill_buffer), "times": times}:
                entries.append(
                    {
                        "map_name": name,
                        "map_path": map_path.strip('"'),
                        "reference_line": line,
                        "is_explo": is_explo,
                        "fill_buffer": fill_buffer,
                        "repeat": times,
                    }
                )
            case _:
                n_left_out += 1
    return ({"map_cycle": tuple(entries)} if entries else {}), n_left_out
