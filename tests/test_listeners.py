"""All that listens: each place in the code, and that it can be reached from this machine only unless told otherwise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trackmania_rl.dashboard import command
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer
from trackmania_rl.tmi_interaction import tminterface2

LISTENS = {"bind", "create_server", "start_server", "start_unix_server", "start_http_server", "listen", "serve_forever"}
LISTENS |= {"HTTPServer", "ThreadingHTTPServer", "TCPServer", "UDPServer", "Listener", "run_simple"}
OF_LOOPBACK = {"LOOPBACK", "'127.0.0.1'"}
TOLD_OTHERWISE = {"trackmania_rl/dashboard/command.py"}
"""By `--host`, which wants `--token` for every other address."""


def places_that_listen(root: Path) -> list[tuple[str, str]]:
    """(file, address as it stands there) of each call that makes something listen."""
    places = []
    for folder in ("trackmania_rl", "scripts", "config_files", "examples"):
        for file in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name not in LISTENS or (name == "bind" and not (node.args and isinstance(node.args[0], ast.Tuple))):
                    continue
                address = node.args[0] if node.args else None
                host = ast.unparse(address.elts[0]) if isinstance(address, ast.Tuple) else "?"
                if name != "listen":  # which follows a `bind`
                    places.append((file.relative_to(root).as_posix(), host))
    return places


def test_everything_listens_to_this_machine_alone(repository_root: Path) -> None:
    places = places_that_listen(repository_root)
    assert {file for file, _ in places} >= {"trackmania_rl/simulator/server/server.py", *TOLD_OTHERWISE}
    assert [place for place in places if place[1] not in OF_LOOPBACK and place[0] not in TOLD_OTHERWISE] == []
    assert tminterface2.LOOPBACK == "127.0.0.1"


def test_the_simulated_game_listens_to_this_machine_alone(tmp_path: Path) -> None:
    server = GameServer(SimulatedGame(tmp_path), 0)
    try:
        assert server._listener.getsockname()[0] == "127.0.0.1"
    finally:
        server._listener.close()


def test_the_plugin_listens_to_this_machine_alone(repository_root: Path) -> None:
    plugin = (repository_root / "trackmania_rl" / "tmi_interaction" / "Python_Link.as").read_text(encoding="utf-8")
    assert 'const string HOST = "127.0.0.1";' in plugin
    assert re.findall(r"\.Listen\((\w+)", plugin) == ["HOST"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org", ""])
def test_the_page_wants_a_token_for_any_other_address(host: str) -> None:
    with pytest.raises(UserError, match=r"give --token as well"):
        command.check_who_may_look(host, None)
    command.check_who_may_look(host, "a-long-enough-token")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_page_of_this_machine_wants_none(host: str) -> None:
    command.check_who_may_look(host, None)
