"""Which configuration a run has: that of the command that begins it, and its own copy from then on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import NEEDS_RESTART, Settings, groups
from trackmania_rl.settings.live import (
    SNAPSHOT_FILE,
    Stamp,
    append_overrides,
    stamp_of,
    write_snapshot,
    write_values,
)
from trackmania_rl.settings.loading import (
    changed_settings,
    load_settings,
    parse_override,
    settings_from_flat,
    with_stretched_schedules,
)

SHAPING_GROUPS: Final = ("observation", "replay", "agent")
SHAPING_NAMES: Final = frozenset(
    {"games", "actions", "inputs", "image_width_px", "image_height_px", "frames_per_state", "engine_ticks_per_action"}
)
"""Settings that networks and replay memory are shaped by, beside those of `SHAPING_GROUPS` that need a restart."""
LONGEST_VALUE: Final = 60

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AskedFor:
    """What a command asks for.

    Attributes:
        source: a configuration file, or settings.
        overrides: `name=value` texts that win over it.
        update: whether a run that exists takes it anew; else that run's own copy holds.
    """

    source: Path | Settings
    overrides: Sequence[str] = ()
    update: bool = False

    def settings(self) -> Settings:
        """The settings asked for.

        Raises:
            SettingsError: if they cannot be used.
        """
        if isinstance(self.source, Path):
            return load_settings(self.source, self.overrides)
        values = self.source.flat() | {"schedule_stretch": 1.0}  # its schedules are stretched already
        return settings_from_flat(with_stretched_schedules(values | dict(map(parse_override, self.overrides))))


def shaping_settings(settings: Settings) -> dict[str, str]:
    """Write the settings with which a checkpoint has to agree as text, by name."""
    of_groups = {name for group in SHAPING_GROUPS for name in groups()[group].model_fields} & NEEDS_RESTART
    return {name: str(value) for name, value in settings.flat().items() if name in of_groups | SHAPING_NAMES}


def what_shapes_otherwise(settings: Settings, made_with: Mapping[str, str]) -> str:
    """Say in which settings a run differs from what its checkpoint was made with; empty where nothing is known."""
    own = shaping_settings(settings)
    differ = [name for name, value in own.items() if name in made_with and made_with[name] != value]
    return ", ".join(f"{name} is {_short(own[name])}, but was {_short(made_with[name])}" for name in differ)


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..."


class RunConfiguration:
    """The configuration in save/{run_name}/config/.

    Args:
        asked_for: by the command.
        folder: where the copy lies, or will.

    Attributes:
        snapshot_file: the copy.
        is_new: whether what is asked for is taken.
        written: the copy's stamp when `write` had written it and before it was read; None until then.
    """

    def __init__(self, asked_for: AskedFor, folder: Path) -> None:
        self._asked_for = asked_for
        self.snapshot_file = folder / SNAPSHOT_FILE
        self.is_new = asked_for.update or not self.snapshot_file.is_file()
        self.written: Stamp | None = None

    def read(self) -> Settings:
        """Read the settings that will hold; nothing is written.

        Raises:
            SettingsError: if they cannot be used.
        """
        if self.is_new:
            return self._asked_for.settings()
        return load_settings(self.snapshot_file, self._asked_for.overrides)

    def write(self) -> Settings:
        """Write the run's copy once all is checked, so that no mistake outlives its command; read it."""
        source, overrides = self._asked_for.source, self._asked_for.overrides
        if not self.is_new:
            if changed_settings(load_settings(self.snapshot_file), load_settings(self.snapshot_file, overrides)):
                append_overrides(self.snapshot_file, overrides)
            if remark := self.remark():
                log.warning("going on with %s", remark)
        elif isinstance(source, Path):
            write_snapshot(source, self.snapshot_file.parent, overrides)
        else:
            append_overrides(write_values(source, self.snapshot_file.parent), overrides)
        self.written = stamp_of(self.snapshot_file)
        return load_settings(self.snapshot_file)

    def remark(self) -> str:
        """Say how the copy of a run that exists differs from what is asked for; empty if it does not."""
        own = load_settings(self.snapshot_file, self._asked_for.overrides)
        names = ", ".join(sorted(changed_settings(self._asked_for.settings(), own)))
        source = self._asked_for.source
        told = source if isinstance(source, Path) else "the settings given"
        return names and f"{self.snapshot_file}, which differs from {told} in: {names} (--update-config takes that)"

    @contextlib.contextmanager
    def telling_which(self) -> Iterator[None]:
        """Add to an error that a run which exists has a configuration of its own: to mend another one is no use."""
        try:
            yield
        except UserError as error:
            if self.is_new or not (remark := self.remark()):
                raise
            raise UserError(f"{error}; this run goes on with {remark}") from error
