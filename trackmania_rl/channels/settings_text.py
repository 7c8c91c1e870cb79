"""Settings as they travel from the learner to its collectors, whoever carries them."""

from __future__ import annotations

from trackmania_rl.settings import Settings


def settings_as_json(settings: Settings) -> bytes:
    """Return the text that `Settings.model_validate_json` reads back."""
    return settings.model_dump_json(warnings=False).encode()  # pydantic would warn of each `NamedPart`
