"""What the plugin says of a client's mistakes, in the words that docs/plugin.rst explains."""

import pytest
from damaged_states import DAMAGES
from raw_client import GET_STATE, int32s

from trackmania_rl.protocol import messages

REASONS = {
    "empty": "is too short",
    "short": "claims 3 checkpoint states",
    "long": "claims 3 checkpoint states and 3 times",
    "noise": "claims",
    "negative count": "claims 4294967295 checkpoint states",
    "infinite position": "not finite",
    "velocity that is no number": "not finite",
    "endless turning": "not finite",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_why_a_state_is_refused(plugin_client, caplog, damage):
    blob = plugin_client.ask(GET_STATE)
    plugin_client.send(messages.pack_rewind_to_state(DAMAGES[damage](blob)))
    assert plugin_client.ask(GET_STATE) == blob
    assert "[Python Link] " in caplog.text
    assert "rewind refused: state of" in caplog.text
    assert REASONS[damage] in caplog.text


def test_half_a_message(plugin_client, caplog):
    plugin_client.send(messages.pack_set_timeout(300), int32s(14, 100), b"map")
    assert plugin_client.is_hung_up_on(within_s=2.0)
    assert "[Python Link] client dropped: sent half a message" in caplog.text


def test_no_answer_in_time(plugin_client, caplog):
    plugin_client.send(messages.pack_set_timeout(150))
    assert plugin_client.is_hung_up_on(within_s=2.0)
    assert "[Python Link] client dropped: did not answer in time" in caplog.text


def test_a_wrong_answer(plugin_client, caplog):
    plugin_client.send(int32s(25), int32s(1))
    assert plugin_client.next_step() == 50
    assert "[Python Link] client sent message 25 while 1 is to be answered; skipped" in caplog.text
