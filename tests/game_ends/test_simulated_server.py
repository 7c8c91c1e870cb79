"""The simulated game's own server beyond the protocol, and its script."""

import signal
import struct
import subprocess
import sys
import time

import pytest
from raw_client import FAST, FOREVER, FREEZE, GET_STATE, WITHOUT_STEPS, RawClient, int32s, wait_until

from trackmania_rl.protocol import messages
from trackmania_rl.simulator.server import server as server_module


def test_a_car_beyond_any_picture_gives_a_black_one(server_client, caplog):
    client = server_client
    blob = bytearray(client.ask(GET_STATE))
    struct.pack_into("<f", blob, 724, 2e6)  # its position, which the game accepts
    client.send(messages.pack_rewind_to_state(bytes(blob)), FREEZE, int32s(17, 5, 3), int32s(1))
    assert client.ints(1) == (4,)
    assert client.read(5 * 3 * 4) == bytes(5 * 3 * 4)
    assert "a black picture is sent" in caplog.text


# The console.


@pytest.mark.parametrize("name", ["", "none.toml", ".", '"', "a\0b.toml", "short.exe"])
def test_a_bad_map_leaves_the_race_alone(server_client, name, caplog):
    server_client.send(messages.pack_command("map " + name), int32s(1))
    assert server_client.next_step() == 50
    if name not in ("", '"'):
        assert "command 'map" in caplog.text


def test_a_long_command_is_skipped_before_it_is_split(server_client, caplog):
    server_client.send(messages.pack_command("map " + "x" * ((1 << 20) - 4)), int32s(1))
    began_s = time.process_time()
    assert server_client.next_step() == 50
    assert time.process_time() - began_s < 1.0
    assert "command 'map xxxxxxxxxxxxxxx...: skipped; it has 1048576 characters, and 4096 are allowed" in caplog.text


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


# Speed.


def test_limited_speeds_are_kept_and_the_countdown_has_its_own(server):
    client = server.connect()
    client.send(int32s(19, 50), struct.pack("<if", 6, 0.001), messages.pack_command("set countdown_speed 80"))
    client.send(int32s(11), int32s(5))
    while client.next_step() < 0:  # at the race's speed this would take 43 minutes
        client.send(int32s(1))
    client.send(struct.pack("<if", 6, 2.0), int32s(1))
    began_s = time.monotonic()
    for time_ms in range(50, 450, 50):
        assert client.next_step() == time_ms
        client.send(int32s(1))
    assert time.monotonic() - began_s > 0.85 * 0.4 / 2.0


def test_a_frozen_game_stands_still_and_without_a_client_it_drives_in_real_time(server_client, server):
    server_client.send(FREEZE, int32s(1))
    server_client.send(int32s(19, 2**31 - 1))  # not read: the game waits for nothing
    time.sleep(0.1)
    before = server.race.save_state()
    time.sleep(0.2)
    assert server.race.save_state() == before
    other = server.connect()
    other.send(FAST, int32s(13))
    assert other.is_hung_up_on()
    began_s, before_ms = time.monotonic(), server.race.tick_time_ms
    wait_until(lambda: server.race.tick_time_ms > before_ms + 100)
    driven_ms = server.race.tick_time_ms - before_ms
    assert driven_ms <= 1000 * (time.monotonic() - began_s) + 100


@pytest.mark.parametrize(
    "last_words", [b"", FREEZE + int32s(1), messages.pack_command("map")[:6], WITHOUT_STEPS + int32s(1)]
)
def test_the_end_of_the_stream_is_noticed_at_once(server_client, server, last_words, monkeypatch):
    monkeypatch.setattr(server_module, "NEWCOMER_PATIENCE_S", 3600.0)
    server_client.send(FOREVER, last_words)
    server_client.socket.close()
    assert server.connect().ask(GET_STATE)


# The script.


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--port", "{taken}", "--map", "none"), "cannot listen on port {taken}"),
        (("--port", "0", "--map", "none.toml"), "none.toml"),
        (("--port", "0", "--chaos", "kill@race=1", "--chaos-ledger", "no folder/f"), "--chaos-ledger no folder/f"),
    ],
)
def test_the_script_names_unusable_arguments(script_module, server, arguments, reason, monkeypatch, capsys):
    arguments = [argument.format(taken=server.port) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["simulated_game.py", *arguments])
    assert script_module("simulated_game").main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert reason.format(taken=server.port) in errors
    assert errors.count("\n") == 1


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
