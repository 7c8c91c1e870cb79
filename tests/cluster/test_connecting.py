"""Why a cluster cannot be joined is told in one line, by what Ray says."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")

from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess.cluster import connecting


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Unauthenticated: RPC error: InvalidAuthToken: Authentication token is missing", "asks for another token"),
        ("RuntimeError: Version mismatch: The cluster was started with:\n  Ray: 2.59", "is of another version"),
        ("Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "one side speaks TLS"),
        ("ConnectionError: Could not find any running Ray instance. Please", "no Ray runs on this machine"),
        ("", "nobody answered within 10 s"),
    ],
)
def test_each_reason_has_its_line(said: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_said_by_probe", lambda address, variables: said)
    with pytest.raises(UserError, match=told) as caught:
        connecting.require_answer("auto")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("head", "without_token", "is_taken"),
    [
        ("127.0.0.1:6379", "", True),
        ("[::1]:6379", "", True),
        ("10.0.0.7:6379", "RPC error: InvalidAuthToken", True),
        ("10.0.0.7:6379", f"{connecting.HEAD}10.0.0.7:6379", False),
        ("10.0.0.7:6379", "it took too long to tell", False),
    ],
)
def test_beyond_this_machine_a_cluster_must_ask_for_a_token(
    head: str, without_token: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(address: str, variables: dict[str, str]) -> str:
        return without_token if variables else f"warning\n{connecting.HEAD}{head}\n"

    monkeypatch.setattr(connecting, "_said_by_probe", said)
    if is_taken:
        connecting.require_answer("10.0.0.7:6379")
    else:
        with pytest.raises(UserError, match="takes in anybody"):
            connecting.require_answer("10.0.0.7:6379")


def test_a_child_is_asked_no_longer_than_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "PROBE_WITHIN_S", 1.0)
    monkeypatch.setattr(connecting, "_PROBE", "import time; print('here', flush=True); time.sleep(600)")
    assert connecting._said_by_probe("anywhere", {}) == "here\n"
    monkeypatch.setattr(connecting, "PROBE_WITHIN_S", 600.0)
    monkeypatch.setattr(
        connecting, "_PROBE", f"import time; print('{connecting.REFUSED}', flush=True); time.sleep(600)"
    )
    assert connecting.REFUSED in connecting._said_by_probe("anywhere", {})
