"""Drivers on the Hugging Face Hub: a model repository with any number of `NAME.driver` files.

The package huggingface-hub handles the login (`hf auth login`) and the address (`HF_ENDPOINT`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trackmania_rl.drivers.driver_file import ENDING, LARGEST_FILE_BYTES, DriverFileError, read_driver
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import check_file_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD_FILE = "README.md"
"""A repository's page."""


def push_driver(file: Path, repository: str, about: Mapping[str, str], *, is_private: bool = False) -> str:
    """Upload a driver file to a repository, USER/NAME, made if missing; return the page's address.

    Args:
        file: driver file.
        repository: USER/NAME.
        about: headings and texts for the repository's page, written if it has none yet.
        is_private: whether a new repository is private.

    Raises:
        UserError: if the driver is unusable, the package is missing, or the hub refuses or does not answer.
    """
    read_driver(file)
    api = _api()
    with _naming(f"push {file} to {repository}"):
        page = api.create_repo(repository, private=is_private, exist_ok=True)
        api.upload_file(path_or_fileobj=file, path_in_repo=file.name, repo_id=repository)
        if not api.file_exists(repository, CARD_FILE):
            text = _page(file.name, repository, about).encode()
            api.upload_file(path_or_fileobj=text, path_in_repo=CARD_FILE, repo_id=repository)
    return str(page)


def pull_driver(repository: str, name: str = "", target: Path | None = None, revision: str | None = None) -> Path:
    """Download a driver file and return where it was written.

    Args:
        repository: USER/NAME.
        name: file name in it; "" if it holds one driver only.
        target: file to write; None for the same name in the current folder.
        revision: branch, tag or commit; None for the newest.

    Raises:
        UserError: if the driver is missing, damaged or too large, the file exists already, the package is
            missing, or the hub refuses or does not answer.
    """
    api = _api()
    with _naming(f"pull {repository}"):
        there = [path for path in api.list_repo_files(repository, revision=revision) if path.endswith(ENDING)]
        chosen = [path for path in there if not name or path == name]
        if len(chosen) != 1:
            names = ", ".join(there)[:300] or "none"
            raise UserError(f"{repository}: its drivers are {names!r}; name one of them, {repository}/NAME{ENDING}")
        try:
            file = Path(check_file_name(PurePosixPath(chosen[0]).name)) if target is None else target
        except ValueError as error:
            raise UserError(f"{repository}/{chosen[0]}: {error}, with --output") from error
        if file.exists():
            raise UserError(f"{file} is here already: name another file with --output")
        for known in api.get_paths_info(repository, chosen, revision=revision):
            if getattr(known, "size", 0) > LARGEST_FILE_BYTES:
                raise DriverFileError(f"{repository}/{chosen[0]} is larger than a driver may be")
        fetched = Path(api.hf_hub_download(repository, chosen[0], revision=revision))
        read_driver(fetched)
        shutil.copyfile(fetched, file)
    return file


def _api() -> HfApi:
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise UserError(
            'push and pull need the package huggingface-hub: python -m pip install "trackmania-rl[hub]"'
        ) from None
    return HfApi()


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    from huggingface_hub.errors import EntryNotFoundError, HTTPError

    try:
        yield
    except (OSError, ValueError, EntryNotFoundError, HTTPError) as error:
        raise UserError(f"{what}: {one_line(error)}") from error


def _page(name: str, repository: str, about: Mapping[str, str]) -> str:
    facts = "\n".join(f"* {heading}: {text}" for heading, text in about.items())
    return f"""---
library_name: trackmania-rl
tags: [reinforcement-learning, trackmania]
---

# {name}

A driver for TrackMania Nations Forever, or for the simulated game of its trainer. It holds no code.

{facts}

```bash
python scripts/tools/driver.py pull {repository}/{name}
python scripts/evaluate.py {name}
```
"""
