"""The bytes of every message, written out by hand from the protocol page."""

import pytest

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import MAX_PAYLOAD_BYTES, AnalogInput, KeyState, MessageId


@pytest.mark.parametrize(
    ("packed", "expected_hex"),
    [
        (messages.pack_id(MessageId.GET_STATE), "09000000"),
        (messages.pack_run_step(-2550), "01000000 0af6ffff"),
        (messages.pack_checkpoint_count_changed(2, 5), "02000000 02000000 05000000"),
        (messages.pack_lap_count_changed(1, 3), "03000000 01000000 03000000"),
        (messages.pack_set_speed(80), "06000000 0000a042"),
        (messages.pack_rewind_to_state(b"\x01\x02"), "07000000 02000000 0102"),
        (messages.pack_set_input(KeyState(True, False, True, False)), "0a000000 01000100"),
        (messages.pack_set_input(KeyState(False, True, False, True)), "0a000000 00010001"),
        (messages.pack_set_input(AnalogInput(-65536, 65536, True)), "18000000 0000ffff 00000100 01"),
        (messages.pack_command("map é"), "0e000000 06000000 6d617020c3a9"),
        (messages.pack_set_timeout(600_000_000), "0f000000 0046c323"),
        (messages.pack_request_frame(160, 120), "11000000 a0000000 78000000"),
        (messages.pack_set_step_period(50), "13000000 32000000"),
        (messages.pack_toggle_interface(True), "15000000 01000000"),
    ],
)
def test_bytes(packed, expected_hex):
    assert packed == bytes.fromhex(expected_hex)


def test_the_ids_are_the_23_of_the_protocol_and_our_own():
    assert sorted(MessageId) == [*range(1, 24), MessageId.SET_ANALOG_INPUT]


def test_a_payload_the_other_end_would_refuse_is_not_sent():
    with pytest.raises(ValueError, match=f"{MAX_PAYLOAD_BYTES + 1} bytes"):
        messages.pack_rewind_to_state(bytes(MAX_PAYLOAD_BYTES + 1))
