"""`.ci/run`: a tool of tests that cannot be installed ends it in CI only."""

import re
import subprocess

import pytest


@pytest.mark.parametrize(("ci", "exit_code", "goes_on"), [("CI=true", 1, False), ("unset CI", 0, True)])
def test_a_tool_that_cannot_be_installed_fails_in_ci(repository_root, ci, exit_code, goes_on):
    install = re.search(r"^as_root=.*?^}", (repository_root / ".ci" / "run").read_text(), re.MULTILINE | re.DOTALL)[0]
    script = f"set -eu; {ci}\n{install}\nas_root=(false)\ninstall_tool no-such-tool a-package; echo goes on"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (ended.returncode, "goes on" in ended.stdout) == (exit_code, goes_on)
    assert "a-package could not be installed" in ended.stdout
