"""What this machine is, and its Python, packages, GPU, memory and disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from trackmania_rl.agents.devices import pick_device, why_unusable
from trackmania_rl.doctor.findings import Check, Context, Finding, System, ok, problem, warning
from trackmania_rl.doctor.needs import Needs
from trackmania_rl.errors import UserError
from trackmania_rl.places import DISTRIBUTION, IS_CHECKOUT
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.loggers import missing_packages

OLDEST_PYTHON: Final = (3, 11)
NEWEST_TESTED_PYTHON: Final = (3, 12)
MAY_BE_MISSING: Final = frozenset({"pywin32", "python-xlib"})
"""Packages for the game's window only."""
INSTALL: Final = f"python -m pip install {'-r requirements.txt' if IS_CHECKOUT else DISTRIBUTION}"


def check_machine(context: Context) -> list[Finding]:
    """What this machine has, beside what the configuration needs; the checks of each say what to do."""
    system, needs = context.system, Needs.of(context.settings)
    gpu = system.gpu_name()
    gpu_bytes = system.gpu_memory_bytes()
    has_gpu = "no GPU that torch can use" if gpu is None else f"{gpu}, {_gib(gpu_bytes)}" if gpu_bytes else gpu
    wants_gpu = "advised, as the network sees images" if needs.sees_images else "not needed"
    free_bytes = system.free_disk_bytes(_nearest_existing(context.output_folder))
    findings = [
        ok(
            Check.MACHINE,
            f"{system.name}, {system.n_cores} cores, {_gib(system.total_memory_bytes())} of memory "
            f"({_gib(system.available_memory_bytes())} available), {_gib(free_bytes)} of disk free, {has_gpu}; this "
            f"configuration needs up to {_gib(needs.memory)} of memory and {_gib(needs.disk)} of disk; a GPU is "
            f"{wants_gpu}",
        )
    ]
    n_collectors = context.settings.game.n_collectors
    if n_collectors > system.n_cores:
        findings.append(
            warning(
                Check.MACHINE,
                f"n_collectors = {n_collectors}, but there are {system.n_cores} cores: collectors slow each other and "
                f"the learner down; set n_collectors = {system.n_cores} or less",
            )
        )
    return findings


def check_python(system: System) -> list[Finding]:
    """The interpreter's version."""
    version = ".".join(map(str, system.python))
    if system.python[:2] < OLDEST_PYTHON:
        return [problem(Check.PYTHON, f"Python {version} is too old: 3.11 or 3.12 is needed")]
    if system.python[:2] > NEWEST_TESTED_PYTHON:
        return [warning(Check.PYTHON, f"Python {version} is newer than what is tested, 3.11 and 3.12")]
    return [ok(Check.PYTHON, f"Python {version}")]


def check_packages(system: System, wanted_packages: Iterable[Requirement]) -> list[Finding]:
    """The installed packages against those that are tested together."""
    findings, n_right = [], 0
    for wanted in wanted_packages:
        installed = system.installed_version(wanted.name)
        if installed is None:
            say = warning if wanted.name in MAY_BE_MISSING else problem
            findings.append(say(Check.PACKAGES, f"{wanted.name} is not installed: {INSTALL}"))
        elif not wanted.specifier.contains(installed, prereleases=True):
            tested = str(wanted.specifier).removeprefix("==")
            findings.append(
                warning(Check.PACKAGES, f"{wanted.name} is {installed}, and {tested} is what is tested: {INSTALL}")
            )
        else:
            n_right += 1
    return [*findings, ok(Check.PACKAGES, f"{n_right} packages have the tested versions")]


def check_distribution(system: System, distribution: Distribution) -> list[Finding]:
    """Check the packages that an installed wheel declares, and name the extras that are not installed."""
    declared = [Requirement(text) for text in distribution.requires or ()]
    extras = [extra for extra in distribution.metadata.get_all("Provides-Extra", []) if extra != "test"]
    missing = [
        extra
        for extra in extras
        if any(
            not _is_needed(package) and _is_needed(package, extra) and system.installed_version(package.name) is None
            for package in declared
        )
    ]
    findings = check_packages(system, [package for package in declared if _is_needed(package)])
    if missing:
        command = f'python -m pip install "{DISTRIBUTION}[{missing[0]}]"'
        findings.append(
            ok(Check.PACKAGES, f"extras that are not installed: {', '.join(missing)}; to install the first: {command}")
        )
    return findings


def check_loggers(settings: Settings) -> list[Finding]:
    """Whether the loggers that the configuration names have their packages."""
    return [problem(Check.PACKAGES, missing) for missing in missing_packages(settings)]


def check_gpu(settings: Settings, system: System) -> list[Finding]:
    """Where the network would run."""
    try:
        pick_device(settings.run.collector_device, "collector_device")
        device = pick_device(settings.run.torch_device)
    except UserError as error:
        return [problem(Check.GPU, error)]
    if device.type != "cpu":
        decides_elsewhere = settings.run.collector_device == "auto" and not settings.game.has_image
        collectors = "; collectors, without an image, decide on the processor" if decides_elsewhere else ""
        return [ok(Check.GPU, f"the network runs on {system.gpu_name() or device}{collectors}")]
    if settings.run.torch_device == "auto" and system.gpu_name() is not None:
        return [
            warning(
                Check.GPU,
                f"the network runs on the processor, as {system.gpu_name()} cannot be used: {why_unusable('cuda')}",
            )
        ]
    if settings.game.has_image:
        return [
            warning(
                Check.GPU,
                "the network, which sees images, would run on the processor, much slower than on a GPU: see "
                'docs/gpu.rst, "GPU or no GPU"',
            )
        ]
    return [ok(Check.GPU, "the network runs on the processor, which suffices without images")]


def check_memory(settings: Settings, system: System) -> list[Finding]:
    """Whether the largest replay memory, the processes and the games fit."""
    needs = Needs.of(settings)
    available_bytes = system.available_memory_bytes()
    figures = f"about {_gib(needs.memory)} needed, {_gib(needs.replay)} of it for the replay memory; "
    if needs.memory > available_bytes:
        return [
            warning(
                Check.MEMORY,
                f"{figures}only {_gib(available_bytes)} available: lower memory_size_schedule or n_collectors, or end "
                "other programs",
            )
        ]
    return [ok(Check.MEMORY, f"{figures}{_gib(available_bytes)} available")]


def check_folder(folder: Path) -> list[Finding]:
    """Whether a run can write its files; a folder that is not there is made by the run."""
    existing = _nearest_existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        where = folder if existing == folder.absolute() else f"{folder}, below {existing},"
        return [
            problem(Check.FOLDER, f"the folder {where} cannot be written to; choose another one with --output-folder")
        ]
    return [ok(Check.FOLDER, f"{folder} {'can be written to' if folder.is_dir() else 'will be made'}")]


def check_disk(context: Context) -> list[Finding]:
    """Whether a checkpoint can be written."""
    free_mb = context.system.free_disk_bytes(_nearest_existing(context.output_folder)) >> 20
    least_mb = context.settings.run.minimum_free_disk_mb
    if free_mb < least_mb:
        return [
            problem(
                Check.DISK,
                f"the disk of {context.output_folder} has {free_mb} MB free, less than minimum_free_disk_mb = "
                f"{least_mb}: no checkpoint could be written; free some space",
            )
        ]
    needed_mb = Needs.of(context.settings).disk >> 20
    if free_mb < needed_mb:
        return [
            warning(
                Check.DISK,
                f"{free_mb:,} MB free, and checkpoints with a full replay memory take up to {needed_mb:,} MB: they are "
                "written without it when there is no room; free some space, or set checkpoint_holds_replay = False",
            )
        ]
    return [ok(Check.DISK, f"{free_mb:,} MB free")]


def _nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest of those above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def pinned(requirements: Path) -> list[Requirement]:
    """The lines `name==version` that hold on this system."""
    found = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        try:
            requirement = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:  # a comment, a folder or an option
            continue
        if len(requirement.specifier) == 1 and _is_needed(requirement):
            found.append(requirement)
    return found


def _is_needed(package: Requirement, extra: str = "") -> bool:
    return package.marker is None or package.marker.evaluate({"extra": extra})


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
