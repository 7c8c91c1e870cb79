"""The direction of imports: a module imports only from layers below its own."""

import ast
import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "trackmania_rl"

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "settings",
        "seeds",
        "errors",
        "exit_codes",
        "bounded_files",
        "private_folders",
        "file_names",
        "files",
        "argument_types",
        "command_line",
        "compiled",
        "parts",
        "places",
        "presets",
        "pulse",
        "versions",
        "log_phases",
    ),
    ("schedules", "gbx", "protocol"),
    ("race", "track", "simulator.*"),
    ("agents", "experience_replay", "buffer_management", "buffer_utilities", "tmi_interaction", "simulator.server"),
    ("channels", "games", "telemetry", "checkpoints", "datasets", "driver_file", "driver_hub"),
    ("training",),
    ("run", "multiprocess", "doctor", "migration", "dashboard", "console", "__main__"),
)
"""Lowest first. `x.*` is every module of x that no later layer names."""

FORBIDDEN = {
    "agents": ("socket", "multiprocessing", "trackmania_rl.tmi_interaction", "trackmania_rl.simulator"),
    "tmi_interaction": ("torch", "torchrl", "tensordict"),
    "games": ("torch", "torchrl", "tensordict"),
    "simulator": ("torch", "torchrl", "tensordict", "trackmania_rl.settings", "trackmania_rl.track"),
    "protocol": ("torch", "torchrl", "tensordict"),
    "race": ("torch", "torchrl", "tensordict"),
    "track": ("torch",),
    "training": ("multiprocessing", "socket"),
}


def _modules(repository_root: Path) -> dict[str, Path]:
    package = repository_root / PACKAGE
    return {".".join(file.relative_to(package).with_suffix("").parts): file for file in package.rglob("*.py")}


def _imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _layer(module: str) -> int:
    """Index of the layer that names the module most precisely."""
    best = (-1, -1)
    for index, patterns in enumerate(LAYERS):
        for pattern in patterns:
            if fnmatch.fnmatchcase(module, pattern):
                best = max(best, (len(pattern.removesuffix("*")), index))
            elif module == pattern or module.startswith(pattern.removesuffix(".*") + "."):
                best = max(best, (len(pattern.removesuffix(".*")), index))
    return best[1]


def test_imports_only_point_to_the_same_layer_or_below(repository_root: Path) -> None:
    modules = _modules(repository_root)
    upward = []
    for module, file in modules.items():
        for imported in _imports(file):
            target = imported.removeprefix(PACKAGE + ".")
            if imported.startswith(PACKAGE + ".") and target in modules and _layer(target) > _layer(module):
                upward.append(f"{module} imports {target}, which lies above it")
    assert not upward


def test_rooms_import_each_other_in_one_direction(repository_root: Path) -> None:
    modules = _modules(repository_root)
    neighbours: dict[str, set[str]] = {module.split(".")[0]: set() for module in modules}
    for module, file in modules.items():
        targets = {imported.removeprefix(PACKAGE + ".") for imported in _imports(file)} & modules.keys()
        neighbours[module.split(".")[0]] |= {target.split(".")[0] for target in targets}
    for room in neighbours:
        neighbours[room].discard(room)
    TopologicalSorter(neighbours).prepare()  # raises CycleError, which names the circle


def test_every_module_has_a_layer(repository_root: Path) -> None:
    homeless = [m for m in _modules(repository_root) if m != "__init__" and _layer(m) < 0]
    assert not homeless


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_part_does_not_import_what_it_must_not_know(repository_root: Path, part: str) -> None:
    for module, file in _modules(repository_root).items():
        if module == part or module.startswith(part + "."):
            for imported in _imports(file):
                assert not any(imported == f or imported.startswith(f + ".") for f in FORBIDDEN[part]), (
                    f"{module} imports {imported}"
                )


def test_only_who_opens_channels_knows_how_they_are_carried(repository_root: Path) -> None:
    carriers = tuple(f"{PACKAGE}.channels.{carrier}" for carrier in ("shared_memory", "local", "over_ray"))
    openers = ("run", "multiprocess.run_setup", "migration.linesight_run")
    for module, file in _modules(repository_root).items():
        if not module.startswith(("channels", "multiprocess.cluster")) and module not in openers:
            assert not any(imported.startswith(carriers) for imported in _imports(file)), module


def test_only_the_cluster_and_the_search_import_ray(repository_root: Path) -> None:
    may = ("trackmania_rl/channels/over_ray/", "trackmania_rl/multiprocess/cluster/", "research/search", "benchmarks/")
    for folder in ("trackmania_rl", "scripts", "research", "benchmarks", "config_files"):
        for file in (repository_root / folder).rglob("*.py"):
            if not file.relative_to(repository_root).as_posix().startswith(may):
                assert not {one for one in _imports(file) if one.split(".")[0] == "ray"}, file


def test_the_simulator_shares_only_the_protocol_with_the_client(repository_root: Path) -> None:
    for module, file in _modules(repository_root).items():
        if module.startswith("simulator"):
            ours = {i for i in _imports(file) if i.startswith(PACKAGE + ".")}
            shared = tuple(
                f"{PACKAGE}.{part}" for part in ("simulator", "protocol", "errors", "bounded_files", "compiled")
            )
            outside = {i for i in ours if not i.startswith(shared)}
            assert not outside, f"{module} imports {outside}"
