"""Convert a Linesight configuration to our settings without running it.

The file is parsed. Assigned numbers, texts, tuples, lists, arithmetic and names set before are evaluated.
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
    "gpu_collectors_count": "n_collectors",
    "additional_transition_after_reset": "additional_transitions_after_reset",
    "last_layer_reset_factor": "last_layer_reset_mul_factor",
    "use_jit": "use_torch_compile",
}
"""Our setting names."""

OURS_ALONE: Final = frozenset({"run_name", "game"})
"""Names with another meaning there."""

IGNORED: Final = frozenset(
    {
        *("ms_per_action", "temporal_mini_race_duration_ms", "global_schedule_speed"),
        *("final_speed_reward_as_if_duration_s", "float_input_dim", "conv_head_output_dim"),
        *("n_pixels_to_crop_on_each_side", "nadeo_maps_to_train_and_test", "max_rollout_queue_size"),
        *("frames_before_save_best_runs", "tensorboard_suffix_schedule", "min_horizon_to_update_priority_actions"),
        *("plot_race_time_left_curves", "make_highest_prio_figures", "n_transitions_to_plot_in_distribution_curves"),
    }
)
"""Names that other settings already contain, or that concern figures and files only."""

PUBLISHED: Final[Mapping[str, Any]] = {
    "n_contact_material_physics_behavior_types": 4,
    "ms_per_tm_engine_step": 10,
    "sync_virtual_and_real_checkpoints": True,
    "deck_height": -math.inf,
    "apply_randomcrop_augmentation": False,
    "linux_launch_game_path": "path_to_be_filled_only_if_on_linux",
}
"""Published values for names without a setting here. Other values are reported."""

FIXED_HERE: Final[Mapping[str, Any]] = {
    "n_zone_centers_extrapolate_after_end_of_map": 1000,
    "n_zone_centers_extrapolate_before_start_of_map": 20,
    "shaped_reward_min_dist_to_cur_vcp": 2,
    "shaped_reward_max_dist_to_cur_vcp": 25,
    "engineered_reward_min_dist_to_cur_vcp": 5,
    "engineered_reward_max_dist_to_cur_vcp": 25,
    "oversample_maximum_term_steps": 5,
    "tau_epsilon_boltzmann": 0.01,
    "target_self_loss_clamp_ratio": 4,
    "update_inference_network_every_n_actions": 20,
}
"""Constants here that have the published values. Other values are reported."""

INSTEAD: Final[Mapping[str, str]] = {
    "apply_randomcrop_augmentation": 'transforms = ("examples.image_shifts:ImageShifts",) does the same',
}
"""Texts that name a counterpart here, by the name there."""

ACTIONS: Final = ("inputs", "action_forward_idx")
"""Names that have a meaning only together; the network's outputs are these actions."""

NEVER_RESETS_FRAMES: Final = 10**9
"""Above it, Linesight never resets; our value for that is 0."""

LARGEST_CONFIG_BYTES: Final = 256 << 10

NOT_WORKED_OUT: Final = object()
"""Placeholder for a value that takes running code."""

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class _NotPlainError(Exception):
    pass


def read_linesight_config(file: Path) -> dict[str, Any]:
    """Return the names that a Linesight configuration sets, with values or `NOT_WORKED_OUT`.

    Raises:
        UserError: if the file cannot be read or is no Python.
    """
    try:
        tree = ast.parse(read_bounded_text(file, LARGEST_CONFIG_BYTES))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise UserError(f"{file} is no Python file: {error}") from error
    values: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = _value_or_not(value, values)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                values[name] = _value_or_not(value, values)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if name in values:
                values[name] = _value_or_not(ast.BinOp(ast.Name(name), ast.Add(), value), values)
            case ast.FunctionDef() | ast.ClassDef():
                pass  # assignments inside have no effect here
            case _:
                values |= dict.fromkeys(_names_touched(node), NOT_WORKED_OUT)
    return values


def _names_touched(statement: ast.stmt) -> set[str]:
    """Return the names that another statement may change by assignment or a method call."""
    names = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                names.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
                names.add(name)
    return names


def _value_or_not(node: ast.expr, names: Mapping[str, Any]) -> Any:
    try:
        return _value(node, names)
    except (_NotPlainError, ArithmeticError, TypeError, RecursionError):
        return NOT_WORKED_OUT


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.JoinedStr(values=[ast.Constant(value=str() as value)]):
            return value
        case ast.Name(id=name) if names.get(name, NOT_WORKED_OUT) is not NOT_WORKED_OUT:
            return names[name]
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            return tuple(_value(entry, names) for entry in entries)
        case ast.Dict(keys=keys, values=entries) if all(isinstance(key, ast.Constant) for key in keys):
            named = zip(keys, entries, strict=True)
            return {key.value: _value(entry, names) for key, entry in named if isinstance(key, ast.Constant)}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            operands = _value(left, names), _value(right, names)
            are_lists = isinstance(op, ast.Add) and all(isinstance(operand, tuple) for operand in operands)
            if are_lists or all(isinstance(operand, int | float) for operand in operands):
                return _OPERATORS[type(op)](*operands)
        case ast.Attribute(value=ast.Name(id="np"), attr="inf"):
            return math.inf
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr="float32"), args=[argument], keywords=[]):
            return float(_value(argument, names))
        case ast.Call(func=ast.Name(id="repeat"), args=[repeated, count], keywords=[]):
            return {"repeat": _value(repeated, names), "times": _value(count, names)}
    raise _NotPlainError


def settings_from_linesight(values: Mapping[str, Any], base: Settings) -> tuple[dict[str, Any], list[str]]:
    """Return the changes to our settings by name, and a line for each value that could not be taken over.

    Raises:
        UserError: if the actions could not be.
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
    if any(name in values and name not in taken for name in ACTIONS):
        raise UserError(
            f"the configuration's {' and '.join(ACTIONS)} are not values that can be used here, and without them the "
            "network would press other keys: write them as plain values in a copy of the file, for --linesight-config"
        )
    changed = settings_from_flat(known | taken).flat()
    changes = {name: value for name, value in taken.items() if changed[name] != known[name]}
    if n_maps_left_out > 0:
        problems.append(
            f"map_cycle: {n_maps_left_out} entries are no repeat((name, map, line, ...), times) and left out"
        )
    problems += [
        f"{name}: its value takes code, which is not run"
        for name, value in values.items()
        if value is NOT_WORKED_OUT and NAMES_HERE.get(name, name) in known and name not in OURS_ALONE
    ]
    return changes, problems + _without_counterpart(plain, known)


def _without_counterpart(plain: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Return a line for each name without a setting here and without the published value."""
    lines = []
    for name, value in plain.items():
        if NAMES_HERE.get(name, name) in known or name in IGNORED:
            continue
        if name in FIXED_HERE:
            published = FIXED_HERE[name]
            instead = f"here it is always {FIXED_HERE[name]!r}"
        else:
            published = PUBLISHED.get(name, NOT_WORKED_OUT)
            instead = INSTEAD.get(name, "there is no such setting here")
        if value != published:
            text = repr(value)
            lines.append(f"{name} = {text if len(text) <= 60 else text[:57] + '...'}: {instead}")
    return lines


def _what_fits(known: dict[str, Any], wanted: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the wanted settings valid together, and an error for each other one."""
    taken: dict[str, Any] = {}
    problems: dict[str, str] = {}
    is_growing = True
    while is_growing:  # some are valid only with others, such as a memory and its size to start learning at
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


def _memory_schedules(schedule: object) -> dict[str, Any]:
    """Split Linesight's schedule with (frames, (size, size to start learning at)) into our two."""
    try:
        sizes = tuple((frames, size) for frames, (size, _) in schedule)  # type: ignore[attr-defined]
        starts = tuple((frames, start) for frames, (_, start) in schedule)  # type: ignore[attr-defined]
    except (TypeError, ValueError):  # in another form
        return {}
    return {"memory_size_schedule": sizes, "memory_size_start_learn_schedule": starts}


def _map_cycle(cycle: object) -> tuple[dict[str, Any], int]:
    """Convert entries `repeat((name, map, line, is_explo, fill_buffer), times)`; count the others."""
    fields = ("map_name", "map_path", "reference_line", "is_explo", "fill_buffer")
    entries = []
    n_left_out = 0
    for entry in cycle if isinstance(cycle, tuple) else ():
        match entry:
            case {"repeat": (str(), str() as map_path, str(), _, _) as repeated, "times": times}:
                named = dict(zip(fields, repeated, strict=True))
                entries.append(named | {"map_path": map_path.strip('"'), "repeat": times})
            case _:
                n_left_out += 1
    return ({"map_cycle": tuple(entries)} if entries else {}), n_left_out
