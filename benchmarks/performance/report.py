"""Figures as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import Figure, Options


def print_report(figures: Sequence[Figure], machine: Machine, console: Console) -> None:
    """Print one line for each figure, and its notes below."""
    console.print(
        f"{machine.name}, {machine.threads} thread(s), torch {torch.__version__}, Python {platform.python_version()}: "
        f"{machine.flop_per_s / 1e9:,.0f} GFLOP/s in a matrix product, {machine.copied_bytes_per_s / 1e9:.1f} GB/s "
        f"copied; load per core at the start {machine.load:.1f}"
    )
    table = Table("part", "figure", title="medians; how many times better than the yardstick")
    for heading in ("here", "processor ms", "yardstick", "ratio", "by processor", "asked for", "floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("ratio to")
    for figure in figures:
        table.add_row(
            figure.part,
            figure.name + (" *" if figure.note else ""),
            f"{_number(figure.value)} {figure.unit}",
            _number(figure.processor_ms),
            _number(figure.classic),
            _number(figure.ratio),
            _number(figure.processor_ratio),
            _number(figure.required_ratio),
            _number(figure.floor),
            "" if figure.ratio is None else figure.ratio_to,
        )
    console.print(table)
    for figure in figures:
        for kind, text in (("floor", figure.floor_is), ("note", figure.note)):
            if text:
                console.print(f"{figure.part}, {figure.name}: {kind}: {text}", highlight=False)


def write_json(file: Path, figures: Sequence[Figure], machine: Machine, options: Options) -> None:
    """Write everything that was measured, and how."""
    content = {
        "machine": asdict(machine),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "options": asdict(options),
        "figures": [
            asdict(figure) | {"ratio": figure.ratio, "processor_ratio": figure.processor_ratio} for figure in figures
        ],
    }
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.4g}"
