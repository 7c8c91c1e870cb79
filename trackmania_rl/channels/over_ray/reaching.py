"""What it is like to call the relay."""

from __future__ import annotations

from typing import Final

from ray.exceptions import RayActorError

UNREACHABLE: Final = (RayActorError, ConnectionError)
"""What a call raises while the relay is being started again."""
ASK_AGAIN_AFTER_S: Final = 0.2
"""After that."""
