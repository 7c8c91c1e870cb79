"""For the tests of research/."""

import pytest


@pytest.fixture(autouse=True)
def _import_from_the_repository(monkeypatch, repository_root):
    monkeypatch.syspath_prepend(repository_root)  # research/ is no installed package
