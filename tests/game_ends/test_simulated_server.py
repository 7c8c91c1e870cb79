"""What the simulated game's own server does beyond the protocol, and its script."""

import contextlib
import os
import struct
import subprocess
import sys
import time

import pytest
from abuses import ABUSES
from raw_client import FAST, FREEZE, GET_STATE, WITHOUT_STEPS, RawClient, int32s, plays_a_race

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.state_blob import with_last_checkpoint_time_cleared
from trackmania_rl.simulator.server import server as server_module
from trackmania_rl.simulator.server.game import SimulatedGame


def test_a_finish_undone_in_its_own_wait_comes_again(server_client):
    client = server_client
    client.drive_into_the_finish()
    blob = client.ask(GET_STATE)
    client.send(messages.pack_rewind_to_state(with_last_checkpoint_time_cleared(blob)), int32s(2))
    message_id, *numbers = client.ints(2)
    if message_id == 1:  # the next tick may be that of a step
        client.send(int32s(1))
        message_id, *numbers = client.ints(2)
    assert (message_id, *numbers, *client.ints(1)) == (2, 3, 3)


def test_a_car_that_no_picture_can_show_gives_a_black_one(server_client, server, caplog):
    client = server_client
    blob = bytearray(client.ask(GET_STATE))
    struct.pack_into("<f", blob, 724, 2e6)  # its position, which the game accepts
    client.send(messages.pack_rewind_to_state(bytes(blob)), FREEZE, int32s(17, 5, 3), int32s(1))
    assert client.ints(1) == (4,)
    assert client.read(5 * 3 * 4) == bytes(5 * 3 * 4)
    assert "a black picture is sent" in caplog.text


# The console.


@pytest.mark.parametrize("name", ["short.toml", '"short é.toml"', '"short line.npy"', "{folder}/short.toml"])
def test_map_begins_a_race(make_server, maps_folder, name):
    client = make_server().connect()
    client.send(FAST, messages.pack_command("map " + name.format(folder=maps_folder)), int32s(22), int32s(5))
    assert client.ints(1) == (0,)
    assert client.next_step() == -2590


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


@pytest.mark.parametrize(("speed", "steps"), [(1.0, 8), (4.0, 32)])
def test_limited_speeds_are_kept(server_client, speed, steps):
    server_client.send(struct.pack("<if", 6, speed), int32s(1))
    server_client.next_step()
    began_s = time.monotonic()
    for _ in range(steps):
        server_client.send(int32s(1))
        server_client.next_step()
    expected_s = steps * 0.05 / speed
    assert 0.85 * expected_s < time.monotonic() - began_s < expected_s + 0.4


def test_a_frozen_game_neither_moves_nor_works(server_client, server):
    server_client.send(FREEZE, int32s(1))
    time.sleep(0.1)
    before, cpu_s = server.race.save_state(), time.process_time()
    time.sleep(0.5)
    assert time.process_time() - cpu_s < 0.1
    assert server.race.save_state() == before
    server_client.send(FAST)  # nobody hears it
    other = server.connect()
    other.send(FAST, int32s(5))
    assert other.next_step() == 50


def test_the_countdown_has_a_speed_of_its_own(server):
    client = server.connect()
    client.send(int32s(19, 50), struct.pack("<if", 6, 1.0), messages.pack_command("set countdown_speed 80"))
    client.send(int32s(11), int32s(5))
    began_s = time.monotonic()
    while client.next_step() < 0:
        client.send(int32s(1))
    assert time.monotonic() - began_s < 1.0


# Clients.


@pytest.mark.parametrize("moment", ["in a wait", "frozen", "after half a message", "in full drive"])
def test_the_end_of_the_stream_is_noticed_at_once(server_client, server, moment):
    server_client.send(messages.pack_set_timeout(600_000_000))
    server_client.send(
        {
            "in a wait": b"",
            "frozen": FREEZE + int32s(1),
            "after half a message": messages.pack_command("map")[:6],
            "in full drive": WITHOUT_STEPS + int32s(1),
        }[moment]
    )
    time.sleep(0.05)
    server_client.socket.close()
    began_s = time.monotonic()
    other = server.connect()
    assert time.monotonic() - began_s < 0.5
    assert other.ask(GET_STATE)


ABUSES_OF_THE_SERVER = ABUSES | {
    "answers that nobody reads": lambda client: client.send(GET_STATE * 100_000),
    "huge frame that nobody reads": lambda client: client.send(int32s(17, 2000, 2000), int32s(1)),
    "flood outside of waits": lambda client: client.send(FREEZE, int32s(1), bytes(4 << 20)),
}


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "hangs up"])
@pytest.mark.parametrize("abuse", ABUSES_OF_THE_SERVER)
def test_no_abuse_keeps_a_newcomer_waiting_for_the_timeout(server, abuse, stays, monkeypatch):
    monkeypatch.setattr(server_module, "NEWCOMER_PATIENCE_S", 0.3)
    client = server.connect()
    client.send(int32s(5))
    client.next_step()
    client.socket.settimeout(0.3)
    with contextlib.suppress(OSError):  # it may be hung up on, or stopped by a full pipe
        ABUSES_OF_THE_SERVER[abuse](client)
    if not stays:
        client.socket.close()
    assert plays_a_race(server.connect())


# The process.


@pytest.mark.parametrize("moment", ["in a wait", "frozen", "in full drive", "nobody there"])
def test_stopping_takes_less_than_a_second(server_client, server, moment):
    server_client.send({"in a wait": b"", "frozen": FREEZE + int32s(1)}.get(moment, WITHOUT_STEPS + int32s(1)))
    if moment == "nobody there":
        server_client.socket.close()
    time.sleep(0.05)
    began_s = time.monotonic()
    server.server.stop()
    server.thread.join(5)
    assert time.monotonic() - began_s < 1.0


def run_script(repository_root, *arguments):
    command = [sys.executable, str(repository_root / "scripts" / "simulated_game.py"), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_the_script_names_what_it_cannot_use(repository_root, server):
    for arguments, reason in (
        (["--port", str(server.port)], f"port {server.port}"),
        (["--port", "0", "--map", "none.toml"], "none.toml"),
        (
            ["--port", "0", "--chaos", "kill@race=1,time=1", "--chaos-ledger", "no folder/f"],
            "--chaos-ledger no folder/f",
        ),
    ):
        with run_script(repository_root, *arguments) as process:
            errors = process.communicate(timeout=60)[1]
        assert process.returncode == 1
        assert errors.startswith("error: ")
        assert reason in errors
        assert errors.count("\n") == 1


def test_the_script_serves_and_dies_when_asked(repository_root):
    with run_script(repository_root, "--port", "0", "--map", "none") as process:
        greeting = process.stderr.readline()
        assert "listening on 127.0.0.1:" in greeting
        client = RawClient(int(greeting.rsplit(":", 1)[1]))
        client.send(int32s(22))
        assert client.ints(1) == (1,)
        began_s = time.monotonic()
        process.terminate()
        process.wait(timeout=5)
        assert time.monotonic() - began_s < 1.0
        client.socket.close()


def test_the_script_ends_with_the_process_that_it_is_told(repository_root):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with run_script(repository_root, "--port", "0", "--map", "none", "--ends-with", str(other.pid)) as process:
        assert "listening on 127.0.0.1:" in process.stderr.readline()
        other.communicate(b"\n")
        assert process.wait(timeout=10) == 0


def test_without_a_client_a_fast_game_falls_back_to_real_time(server_client, server):
    server_client.send(FAST, int32s(13))
    assert server_client.is_hung_up_on(within_s=1.0)
    began_s, before_ms = time.monotonic(), server.race.tick_time_ms
    time.sleep(0.3)
    driven_ms = server.race.tick_time_ms - before_ms
    assert 0 < driven_ms <= 1000 * (time.monotonic() - began_s) + 100


def test_a_track_that_was_edited_is_read_anew(maps_folder):
    game, file = SimulatedGame(maps_folder), maps_folder / "short.toml"
    first = game.load_map("short.toml")
    assert first.checkpoint_target == 2
    assert game.load_map("short.toml") is first
    changed_ns = file.stat().st_mtime_ns + 1_000_000_000
    file.write_text(file.read_text().replace("[20.0]", "[20.0, 40.0]"))
    os.utime(file, ns=(changed_ns, changed_ns))
    assert game.load_map("short.toml").checkpoint_target == 3
