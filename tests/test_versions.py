"""The version of what is running."""

import re

from trackmania_rl.versions import git_revision, program_version


def test_the_version_and_the_commit_are_told() -> None:
    assert re.fullmatch(r"unknown|\d+\.\d+.*", program_version())
    revision = git_revision()
    assert revision is None or re.fullmatch(r"[0-9a-f]{40,64}(-changed)?", revision)
