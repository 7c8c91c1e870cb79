"""The direction of imports: a module imports only from layers below its own."""

import ast
import fnmatch
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

PACKAGE = "trackmania_rl"

LAYERS = (
    (
        "settings",
        "seeds",
        "errors",
        "files",
        "compiled",
        "parts",
        "paths",
        "start",
        "processes",
    ),
    ("schedules", "gbx", "protocol"),
    ("race", "track", "simulator.*"),
    ("agents", "experience_replay", "buffer_management", "buffer_utilities", "tmi_interaction", "simulator.server"),
    ("channels", "cli", "games", "telemetry", "runs", "experience_replay.dataset_environments"),
    ("training", "drivers"),
    ("run", "multiprocess", "doctor", "migration", "telemetry.page", "__main__", "__init__"),
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
    "drivers": ("multiprocessing", "socket"),
    "experience_replay": ("trackmania_rl.buffer_management", "trackmania_rl.buffer_utilities"),  # its two faces
}


def _imports(file):
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _layer(module):
    """Index of the layer that names the module most precisely; -1 for none."""
    best = (-1, -1)
    for index, patterns in enumerate(LAYERS):
        for pattern in patterns:
            if fnmatch.fnmatchcase(module, pattern):
                best = max(best, (len(pattern.removesuffix("*")), index))
            elif module == pattern or module.startswith(pattern.removesuffix(".*") + "."):
                best = max(best, (len(pattern.removesuffix(".*")), index))
    return best[1]


@pytest.fixture(scope="module")
def imports(repository_root):
    """Each module's imports, by the module's name without the package's."""
    package = repository_root / PACKAGE
    files = {".".join(file.relative_to(package).with_suffix("").parts): file for file in package.rglob("*.py")}
    return {module: _imports(file) for module, file in files.items()}


def test_imports_only_point_to_the_same_layer_or_below(imports):
    assert not [module for module in imports if _layer(module) < 0], "modules without a layer"
    assert not [
        f"{module} imports {target}, which is above it"
        for module, imported in imports.items()
        for target in {name.removeprefix(PACKAGE + ".") for name in imported} & imports.keys()
        if _layer(target) > _layer(module)
    ]


def _room(module):
    if module.startswith("telemetry.page"):
        return "telemetry.page"
    return module.split(".")[0]


def test_rooms_import_each_other_in_one_direction(imports):
    neighbours = {_room(module): set() for module in imports}
    for module, imported in imports.items():
        targets = {name.removeprefix(PACKAGE + ".") for name in imported} & imports.keys()
        neighbours[_room(module)] |= {_room(target) for target in targets} - {_room(module)}
    TopologicalSorter(neighbours).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_part_imports_nothing_forbidden(imports, part):
    for module in imports:
        if module == part or module.startswith(part + "."):
            for name in imports[module]:
                assert not any(name == f or name.startswith(f + ".") for f in FORBIDDEN[part]), (module, name)


def test_only_modules_of_workers_import_their_messages(imports):
    users = (
        "channels.remote",
        "run",
        "multiprocess.run_setup",
        "multiprocess.serving",
        "multiprocess.worker",
        "multiprocess.cluster",
    )
    for module, imported in imports.items():
        if module not in users:
            assert not any(name.startswith(f"{PACKAGE}.channels.over_grpc") for name in imported), module


def test_only_the_cluster_and_the_search_import_ray(imports, repository_root):
    others = {
        str(file): _imports(file)
        for folder in ("scripts", "research", "config_files")
        for file in (repository_root / folder).rglob("*.py")
        if not file.is_relative_to(repository_root / "research" / "search")
    }
    for module, imported in (imports | others).items():
        if module != "multiprocess.cluster":
            assert not [name for name in imported if name.split(".")[0] == "ray"], module


def test_the_simulator_shares_only_the_protocol_with_the_client(imports):
    shared = tuple(f"{PACKAGE}.{part}" for part in ("simulator", "protocol", "errors", "files", "compiled"))
    for module, imported in imports.items():
        if module.startswith("simulator"):
            assert not [name for name in imported if name.startswith(PACKAGE + ".") and not name.startswith(shared)]


@pytest.mark.parametrize("module", ["collector_process", "worker"])
def test_a_collector_starts_without_slow_imports(module):
    if module == "worker":
        pytest.importorskip("zstandard", reason='workers need the extra "worker"')
    code = f"import sys, trackmania_rl.multiprocess.{module}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torchrl", "tensordict", "torch._dynamo", "sympy", "matplotlib"} & set(modules)


def test_a_run_imports_no_client_of_the_game_and_no_package_of_workers_or_tests():
    code = "import sys, trackmania_rl.run; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grpc", "zstandard", "tminterface"} & set(modules)
    assert not [module for module in modules if module.startswith(f"{PACKAGE}.tmi_interaction")]
