"""Decorators for the simulator's compiled functions."""

from __future__ import annotations

from pathlib import Path

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob

SOURCES = (*Path(__file__).parent.rglob("*.py"), Path(state_blob.__file__))

compiled = compiler_for("simulator", SOURCES)
inner = compiled(is_inner=True)
"""Decorator for functions that only compiled functions call."""
