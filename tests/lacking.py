"""Tests that lose their tool: they fail in CI, whose script installs it, and are skipped elsewhere."""

import os
from typing import NoReturn

import pytest


def lacks(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI needs this tool: {reason}")
    pytest.skip(reason)
