"""What Ray reads from the environment, some of it when it is imported: call this before."""

from __future__ import annotations

import os
import secrets
from typing import Final

OF_ANY_SEARCH: Final = {
    "RAY_kill_child_processes_on_worker_exit": "false",  # trainings end in order, with their games
    "RAY_USAGE_STATS_ENABLED": "0",  # reports to its makers otherwise
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


def prepare_ray(address: str | None) -> None:
    """Set what the user has not; without a cluster's address, a token of this search's own as well."""
    of_search = {} if address else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for name, value in {**OF_ANY_SEARCH, **of_search}.items():
        os.environ.setdefault(name, value)
