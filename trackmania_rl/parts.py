"""Parts that the configuration names as "module:attribute"."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from pathlib import Path
from typing import Any

from trackmania_rl.paths import CONFIG_FILES, PROJECT_FOLDER, SHIPPED_FOLDER
from trackmania_rl.settings import NamedPart, SettingsError, make_importable
from trackmania_rl.settings.values import BY_NAME_ONLY


def load_part(part: str | NamedPart, setting: str) -> Any:
    """Import a part and bind the arguments.

    The search path is Python's, then loaded configurations' folders, the current folder, the project and its
    config_files.

    Args:
        part: "module:attribute", such as "my_parts:MyNetwork".
        setting: setting's name, for errors.

    Raises:
        SettingsError: if the module is missing or fails, or lacks the attribute.
    """
    if isinstance(part, NamedPart):
        args = [_resolved(argument, setting) for argument in part.args]
        keywords = {name: _resolved(argument, setting) for name, argument in part.keywords.items()}
        attribute = load_part(part.name, setting)
        return functools.partial(attribute, *args, **keywords) if args or keywords else attribute
    make_importable(Path.cwd(), PROJECT_FOLDER, PROJECT_FOLDER / CONFIG_FILES, SHIPPED_FOLDER)
    module_name, _, attribute = part.partition(":")
    prefix = f"{setting} = {part!r}"
    if part.endswith(BY_NAME_ONLY):
        raise SettingsError(
            f"{prefix} is recorded by name, as it was given with an object: name the configuration file that makes it "
            "(--config)"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # user code
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise SettingsError(
                f"{prefix}: there is no module {error.name}; put {error.name.replace('.', '/')}.py beside the "
                f"configuration file, or in the folder where the command is run ({Path.cwd()})"
            ) from None
        problem = f"{module_name} fails as it is imported: {type(error).__name__}: {error}"
        raise SettingsError(f"{prefix}: {problem}") from error
    if not hasattr(module, attribute):
        nearest = difflib.get_close_matches(attribute, vars(module), n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else "define it there, or name another one"
        raise SettingsError(f"{prefix}: {module.__file__ or module_name} has no {attribute}; {hint}")
    return getattr(module, attribute)


def make_part(
    part: str | NamedPart, setting: str, *arguments: Any, takes: str = "", kinds: tuple[type, ...] = (object,)
) -> Any:
    """Import a part like `load_part` and call it with `arguments`, which `takes` names in errors.

    Raises:
        SettingsError: as in `load_part`, or if the part rejects `arguments` or returns none of `kinds`.
    """
    make = load_part(part, setting)
    prefix = f"{setting} = {str(part)!r}"
    try:
        inspect.signature(make).bind(*arguments)
    except TypeError as error:
        how = f"with ({takes})" if takes else "without arguments"
        raise SettingsError(f"{prefix} cannot be called {how}: {error}") from error
    except ValueError:  # built-in without a signature
        pass
    made = make(*arguments)
    if not isinstance(made, kinds):
        kind = kinds[0]
        where = f"{kind.__module__.replace('.', '/')}.py"
        raise SettingsError(f"{prefix} made a {type(made).__name__}; derive it from {kind.__name__} ({where})")
    return made


def _resolved(argument: Any, setting: str) -> Any:
    return load_part(argument, setting) if isinstance(argument, NamedPart) else argument
