"""Which port the plugin listens at, and from when on; and its end."""

import socket
import struct
import time

import pytest
from raw_client import RawClient, int32s

from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port


def accepts_connections(port):
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition, within_s=5.0):
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_starting_game_never_listens_at_the_port_of_its_last_session(make_played, caplog):
    stale = find_free_port()
    played = make_played(startup_frames=100, stored_variables={"custom_port": stale})
    while not accepts_connections(played.port):
        assert not accepts_connections(stale)
        time.sleep(0.005)
    assert not accepts_connections(stale)
    assert f"listening on 127.0.0.1:{played.port}" in caplog.text
    played.connect()


def test_without_a_command_the_stored_port_is_taken(make_played):
    stored = find_free_port()
    make_played(stored_variables={"custom_port": stored}, commands_after_startup=())
    RawClient(stored).send(int32s(13))


def test_another_port_is_taken_at_once(make_played, straight_track, caplog):
    played = make_played(straight_track)
    client = played.connect()
    other = find_free_port()
    client.send(struct.pack("<if", 6, 1.0), int32s(5))
    client.next_step()
    command = f"set custom_port {other}".encode()
    client.send(int32s(14, len(command)), command, int32s(19, 2**31 - 1), int32s(1))
    newcomer = RawClient(other)
    assert client.is_hung_up_on(within_s=2.0)
    assert not accepts_connections(played.port)
    assert "client dropped: the variable custom_port changed" in caplog.text
    newcomer.send(int32s(13))


def test_a_port_in_use_is_named_once_and_tried_again(make_played, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        make_played(commands_after_startup=(f"set custom_port {port}",))
        wait_until(lambda: f"cannot listen on port {port}" in caplog.text)
        time.sleep(1.2)
        assert caplog.text.count("cannot listen") == 1
    RawClient(port).send(int32s(13))


@pytest.mark.parametrize("port", [0, -1, 65536, 80.5, 1e18])
def test_an_impossible_port_is_named_and_mended_by_another(make_played, caplog, port):
    played = make_played(stored_variables={"custom_port": port}, commands_after_startup=())
    wait_until(lambda: "a whole number from 1 to 65535 is needed" in caplog.text)
    time.sleep(0.1)
    assert caplog.text.count("a whole number") == 1
    played.game.host.set_variable("custom_port", played.port)
    played.connect()


def test_a_disabled_plugin_closes_its_sockets(make_played, straight_track):
    played = make_played(straight_track)
    client = played.connect()
    client.send(struct.pack("<if", 6, 80.0), int32s(19, 2**31 - 1), int32s(5))
    played.game.is_stopping = True
    assert client.is_hung_up_on(within_s=3.0)
    wait_until(lambda: played.game.host.counters().open_sockets == 0)
