"""The executed plugin alone: it compiles against TMInterface's declarations, its ports, and a client that vanishes."""

import socket

import pytest
from plugin_game import SCRIPT
from plugin_host import FUNCTION_TYPES, PluginHost
from raw_client import FREEZE, int32s, wait_until
from script_interface import read_declarations

from trackmania_rl.protocol import messages
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface


def accepts_connections(port):
    with socket.socket() as probe:
        probe.settimeout(60.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_starting_game_never_listens_at_the_port_of_its_last_session(make_played, caplog):
    stale = find_free_port()
    played = make_played(startup_frames=100, stored_variables={"custom_port": stale})
    while not accepts_connections(played.port):
        assert not accepts_connections(stale)
    assert not accepts_connections(stale)
    wait_until(lambda: f"listening on 127.0.0.1:{played.port}" in caplog.text)  # said after the port is open
    played.connect()


def test_a_frozen_game_whose_client_vanished_moves_again(plugin_client, played):
    plugin_client.send(FREEZE, messages.pack_set_timeout(200), int32s(17, 4, 3), int32s(1))
    assert plugin_client.ints(1) == (4,)
    assert played.game.speed == 0
    assert plugin_client.is_hung_up_on()
    wait_until(lambda: played.game.speed == 1)


def test_our_client_learns_the_version_of_our_plugin(make_played):
    client = TMInterface(make_played().port, timeout_s=60)
    client.next_event()
    assert client.plugin_version() == messages.LINK_VERSION
    assert client.is_in_menus()
    client.close()


class NoGame:
    """A game that is asked nothing."""

    def __getattr__(self, name):
        if name not in FUNCTION_TYPES:
            raise AttributeError(name)
        return lambda *_: 0


@pytest.mark.parametrize("with_all_declarations", [False, True])
def test_the_plugin_compiles_with_the_functions_of_the_host(library, interface, with_all_declarations):
    """With all declarations a function of the host that is not declared exactly so fails as well."""
    if with_all_declarations and interface is None:
        pytest.skip("TMInterface's declarations are not here: their file is looked for among the shared data")
    PluginHost(library, SCRIPT, NoGame(), interface if with_all_declarations else None)
    if with_all_declarations:
        assert len(read_declarations(interface)) > 900
