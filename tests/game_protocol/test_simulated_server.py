"""The simulated game's own server beyond the protocol, and its script."""

import signal
import subprocess
import sys
import time

import pytest
from raw_client import GET_STATE, RawClient, int32s

from trackmania_rl.protocol import messages


@pytest.mark.parametrize("name", ["", "none.toml", "a\0b.toml"])
def test_a_bad_map_leaves_the_race_alone(server_client, name, caplog):
    server_client.send(messages.pack_command("map " + name), int32s(1))
    assert server_client.next_step() == 50
    if name:
        assert "command 'map" in caplog.text


def test_recorded_inputs_can_be_loaded(server_client, maps_folder):
    client = server_client
    start = client.ask(GET_STATE)
    for keys in (b"\0\0\1\0", b"\1\0\1\0", b"\0\0\0\1"):
        client.send(int32s(10), keys, int32s(1))
        client.next_step()
    (maps_folder / "best.inputs").write_bytes(client.ask(int32s(23)))
    driven = client.ask(GET_STATE)
    client.send(messages.pack_rewind_to_state(start), messages.pack_command("load best.inputs"))
    for _ in range(3):
        client.send(int32s(1))
        client.next_step()
    assert client.ask(GET_STATE) == driven
    client.send(messages.pack_command("unload"), messages.pack_command("load none.inputs"), int32s(1))
    client.next_step()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--port", "{taken}", "--map", "none"), "cannot listen on port {taken}"),
        (("--port", "0", "--map", "none.toml"), "none.toml"),
    ],
)
def test_the_script_names_unusable_arguments(script_module, server, arguments, reason, monkeypatch, error_line):
    arguments = [argument.format(taken=server.port) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["simulated_game.py", *arguments])
    assert reason.format(taken=server.port) in error_line(script_module("simulated_game").main)


def test_the_script_serves_and_ends_with_sigterm_or_the_process_that_it_is_told(repository_root):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    command = [sys.executable, str(repository_root / "scripts" / "simulated_game.py"), "--port", "0", "--map", "none"]
    command += ["--ends-with", str(other.pid)]
    for exit_code in (-signal.SIGTERM, 0):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            greeting = process.stderr.readline()
            assert "listening on 127.0.0.1:" in greeting
            client = RawClient(int(greeting.rsplit(":", 1)[1]))
            client.send(int32s(22))
            assert client.ints(1) == (1,)
            if exit_code:
                process.terminate()
            else:
                other.communicate(b"\n")
            assert process.wait(timeout=60) == exit_code
            client.socket.close()


def test_a_long_command_is_skipped_before_it_is_split(server_client, caplog):
    server_client.send(messages.pack_command("map " + "x" * ((1 << 20) - 4)), int32s(1))
    began_s = time.process_time()
    assert server_client.next_step() == 50
    assert time.process_time() - began_s < 1.0
    assert "command 'map xxxxxxxxxxxxxxx...: skipped; it has 1048576 characters, and 4096 are allowed" in caplog.text
