"""Collectors on the machines of a Ray cluster. Nothing here is imported without `--cluster`: it needs that extra.

Unless RAY_AUTH_MODE is set, this process shows a token and asks others for one. Without a token of the user's it makes
one for itself and the processes that it starts.
"""

import os
import secrets
from pathlib import Path
from typing import Any

import ray

_raylet: Any = ray._raylet  # type: ignore[attr-defined]
TOKEN_FILE = Path.home() / ".ray" / "auth_token"

if "RAY_AUTH_MODE" not in os.environ:
    os.environ["RAY_AUTH_MODE"] = "token"
    if not TOKEN_FILE.is_file() and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    _raylet.Config.initialize("")  # torchrl imports Ray, which has read its environment by then
