"""Which settings a run has: those of the command that begins it, and its own settings.toml from then on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import Settings
from trackmania_rl.settings.live import Stamp, stamp_of
from trackmania_rl.settings.loading import changed_settings, load_settings, parse_override, settings_from_values
from trackmania_rl.settings.snapshot import (
    SETTINGS_FILE,
    already_stretched,
    bring_up_to_date,
    own_file,
    read_own,
    write_changes,
    write_settings,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AskedFor:
    """Settings that a command asks for.

    Attributes:
        source: a configuration file, or settings.
        overrides: `name=value` texts that win over it.
        update: whether a run that exists takes it anew; else that run's own settings hold.
    """

    source: Path | Settings
    overrides: Sequence[str] = ()
    update: bool = False

    def settings(self, *, is_stretched: bool = True) -> Settings:
        """Return the settings asked for.

        Raises:
            SettingsError: if they cannot be used.
        """
        if isinstance(self.source, Path):
            return load_settings(self.source, self.overrides, is_stretched=is_stretched)
        values = already_stretched(self.source).flat()
        return settings_from_values(values, self.overrides, "the settings given", is_stretched)


class RunConfiguration:
    """The settings of a run that starts or resumes.

    Args:
        asked_for: by the command.
        run_folder: `save/{run_name}`.

    Attributes:
        file: the run's settings.toml.
        is_new: whether what is asked for is taken.
        read_from: stamp of the file before `read`; None until then.
    """

    def __init__(self, asked_for: AskedFor, run_folder: Path) -> None:
        self._asked_for = asked_for
        self._folder = run_folder
        self.file = run_folder / SETTINGS_FILE
        self.is_new = asked_for.update or not own_file(run_folder).is_file()
        self.read_from: Stamp | None = None

    def read(self) -> Settings:
        """Return the settings that will hold; nothing is written.

        Raises:
            SettingsError: if they cannot be used.
        """
        self.read_from = stamp_of(self.file)
        return self._asked_for.settings() if self.is_new else self._own()

    def write(self) -> None:
        """Write what `read` returned to the run's file; called when all is checked."""
        if self.is_new:
            write_settings(self.file, self._asked_for.settings(is_stretched=False))
            return
        bring_up_to_date(self._folder)
        written = read_own(self._folder, (), self._asked_for.settings, is_stretched=False)
        changes = changed_settings(written, self._own(is_stretched=False))
        asked = dict(map(parse_override, self._asked_for.overrides)).keys()
        if overridden := {name: new for name, (_, new) in changes.items() if name in asked}:
            write_changes(self.file, overridden)
        if remark := self.remark():
            log.warning("going on with %s", remark)

    def remark(self) -> str:
        """Describe how the settings of a run that exists differ from those asked for; empty if they do not."""
        names = ", ".join(sorted(changed_settings(self._asked_for.settings(), self._own())))
        source = self._asked_for.source
        told = source if isinstance(source, Path) else "the settings given"
        return names and f"{own_file(self._folder)}, which differs from {told} in: {names} (--update-config takes that)"

    @contextlib.contextmanager
    def telling_which(self) -> Iterator[None]:
        """Add to an error that a run which exists has settings of its own, so that the right file is corrected."""
        try:
            yield
        except UserError as error:
            if self.is_new or not (remark := self.remark()):
                raise
            raise UserError(f"{error}; this run goes on with {remark}") from error

    def _own(self, *, is_stretched: bool = True) -> Settings:
        return read_own(self._folder, self._asked_for.overrides, self._asked_for.settings, is_stretched=is_stretched)
