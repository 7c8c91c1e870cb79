"""The plugin's version, by which our client tells it from the one that others ship, and what it hands to the game."""

import time

import pytest
from raw_client import int32s

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import MessageId
from trackmania_rl.tmi_interaction.launchers.plugin_files import PLUGIN_FILE, read_version
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface


def test_our_client_learns_the_version_and_others_see_no_difference(make_played):
    client = make_played().connect()
    client.send(int32s(22), messages.pack_command(messages.LINK_VERSION_COMMAND), int32s(22), int32s(22))
    before, asked, after = client.ints(3)
    assert (before, after) == (1, 1)
    assert asked & 1 == 1
    assert messages.link_version(asked) >= 1
    assert messages.link_version(before) == 0


def test_the_console_knows_the_version_too(plugin_client, played, caplog):
    assert played.game.host.run_custom_command(messages.LINK_VERSION_COMMAND)
    assert f"listening on port {played.port}, a client is connected" in caplog.text


def test_our_client_takes_a_game_without_our_plugin_for_version_0(make_server):
    served = make_server()
    served.server._handlers[MessageId.COMMAND] = lambda connection: connection.read_payload()  # knows no such command
    client = TMInterface(served.port, timeout_s=5)
    client.next_event()
    assert client.plugin_version() == 0
    assert client.is_in_menus()
    client.close()


def test_our_client_learns_the_version_of_our_plugin(make_played):
    client = TMInterface(make_played().port, timeout_s=5)
    client.next_event()
    assert client.plugin_version() == read_version(PLUGIN_FILE)
    assert client.is_in_menus()
    client.close()


@pytest.mark.parametrize(("chunk_bytes", "pause_s"), [(10_000, 0.0), (1, 0.0), (3, 0.001)])
def test_console_camera_and_interface_are_handed_on(plugin_client, played, chunk_bytes, pause_s):
    camera_resets = played.game.camera_resets
    stream = int32s(21, 0) + int32s(18) + messages.pack_command("cam 2") + int32s(1)
    for begin in range(0, len(stream), chunk_bytes):
        plugin_client.send(stream[begin : begin + chunk_bytes])
        time.sleep(pause_s)
    assert plugin_client.next_step() == 50
    assert played.game.commands[-1] == "cam 2"
    assert played.game.camera_resets == camera_resets + 1
    assert played.game.interface_shown is False
