"""Everything that listens can be reached from this machine only, unless a token is set."""

import ast
import re
import socket

from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer
from trackmania_rl.tmi_interaction import tminterface2

LISTENS = {
    "add_insecure_port",
    "add_secure_port",
    "bind",
    "create_server",
    "start_server",
    "start_unix_server",
    "start_http_server",
    "serve_forever",
}
LISTENS |= {"HTTPServer", "ThreadingHTTPServer", "TCPServer", "UDPServer", "Listener", "run_simple"}
OF_LOOPBACK = {"LOOPBACK", "'127.0.0.1'"}
WITH_A_TOKEN = {"trackmania_rl/telemetry/page/command.py", "trackmania_rl/multiprocess/serving.py"}


def places_that_listen(root):
    """(file, address as it is written there) of each call that makes something listen."""
    places = []
    for folder in ("trackmania_rl", "scripts", "config_files", "examples"):
        for file in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                address = node.args[0] if node.args else None
                if name in LISTENS and (name != "bind" or isinstance(address, ast.Tuple)):
                    host = ast.unparse(address.elts[0]) if isinstance(address, ast.Tuple) else "?"
                    places.append((file.relative_to(root).as_posix(), host))
    return places


def test_everything_listens_to_this_machine_alone(repository_root):
    places = places_that_listen(repository_root)
    assert {file for file, _ in places} >= {"trackmania_rl/simulator/server/server.py", *WITH_A_TOKEN}
    assert [place for place in places if place[1] not in OF_LOOPBACK and place[0] not in WITH_A_TOKEN] == []
    assert tminterface2.LOOPBACK == "127.0.0.1"
    plugin = (repository_root / "trackmania_rl" / "tmi_interaction" / "Python_Link.as").read_text(encoding="utf-8")
    assert 'const string HOST = "127.0.0.1";' in plugin
    assert re.findall(r"\.Listen\((\w+)", plugin) == ["HOST"]


def test_the_simulated_game_listens_to_this_machine_alone(tmp_path):
    server = GameServer(SimulatedGame(tmp_path), 0)
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.2", server.port))  # only possible if the game does not listen at every address
    server.stop()
    server.run()
