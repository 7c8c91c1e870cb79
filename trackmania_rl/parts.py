"""Parts that users write: networks, hooks and transforms that the configuration names as "module:attribute"."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from typing import Any, Final

from trackmania_rl.settings import SettingsError, make_importable

PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]


def load_part(text: str, setting: str) -> Any:
    """Import a part.

    It is looked for where Python looks for modules, then in the folders of configurations that were loaded, the current
    folder, the project's folder and its config_files.

    Args:
        text: "module:attribute", such as "my_parts:MyNetwork" or "examples.small_network:SmallNetwork".
        setting: the name of the setting that has this value, for errors.

    Raises:
        SettingsError: if the module is not found or fails, or has no such attribute.
    """
    make_importable(Path.cwd(), PROJECT_FOLDER, PROJECT_FOLDER / "config_files")
    module_name, _, attribute = text.partition(":")
    told = f"{setting} = {text!r}"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's own module can fail in any way; its error is what helps
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise SettingsError(
                f"{told}: there is no module {error.name}; put {error.name.replace('.', '/')}.py beside the "
                f"configuration file, or in the folder where the command is run ({Path.cwd()})"
            ) from None
        raise SettingsError(
            f"{told}: {module_name} fails as it is imported: {type(error).__name__}: {error}"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        nearest = difflib.get_close_matches(attribute, vars(module), n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else "define it there, or name another one"
        raise SettingsError(f"{told}: {module.__file__ or module_name} has no {attribute}; {hint}") from None
