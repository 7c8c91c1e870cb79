"""What is the plugin's own when clients misbehave: TMInterface's sockets do not tell that a client is gone."""

import resource
import time

import pytest
from raw_client import FOREVER, FREEZE, GET_STATE, WITHOUT_STEPS, int32s, plays_a_race

from trackmania_rl.protocol import messages


@pytest.mark.parametrize("moment", ["in a wait", "after half a message"])
def test_a_client_that_vanished_is_replaced_however_long_its_timeout(plugin_client, played, moment):
    plugin_client.send(FOREVER, messages.pack_command("map")[:6] if moment == "after half a message" else b"")
    time.sleep(0.05)
    plugin_client.socket.close()
    began_s = time.monotonic()
    assert plays_a_race(played.connect())
    assert time.monotonic() - began_s < 8.0


def test_a_frozen_game_whose_client_vanished_moves_again(plugin_client, played):
    plugin_client.send(FREEZE, messages.pack_set_timeout(200), int32s(17, 4, 3), int32s(1))
    assert plugin_client.ints(1) == (4,)
    assert played.game.speed == 0
    assert plugin_client.is_hung_up_on(within_s=2.0)
    time.sleep(0.05)
    assert played.game.speed == 1


def test_a_busy_client_keeps_its_place_while_it_answers(plugin_client, played):
    waiting = played.connect(is_greeted=False)
    began_s = time.monotonic()
    while time.monotonic() - began_s < 1.0:  # one wait of a second
        assert plugin_client.ask(GET_STATE)
        time.sleep(0.05)  # longer than the script watches without looking at the door
    plugin_client.send(WITHOUT_STEPS, int32s(1))
    assert waiting.read(4) == int32s(5), "the newcomer is served at the first frame after the wait"


def test_many_clients_leave_nothing_behind(played):
    def play_briefly():
        client = played.connect()
        client.send(int32s(99), messages.pack_rewind_to_state(bytes(9000)), GET_STATE, int32s(13))
        assert client.is_hung_up_on(within_s=5.0)
        client.socket.close()

    for _ in range(50):
        play_briefly()
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        play_briefly()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most_kib < 10_000
    time.sleep(0.05)  # it is closed before it is counted
    assert played.game.host.counters().open_sockets == 1, "the listening one"
