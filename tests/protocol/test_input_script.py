"""Input scripts: read, write, and against the tminterface package's reader."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tminterface.commandlist import CommandList

from trackmania_rl.protocol.input_script import (
    ANALOG_FULL,
    Input,
    InputEvent,
    InputScriptError,
    events_from_actions,
    parse_input_script,
    read_input_script,
    write_input_script,
)
from trackmania_rl.protocol.messages import NO_KEYS, KeyState

ANALOG = (Input.STEER, Input.GAS)
times_ms = st.integers(0, 10**7).map(lambda ticks: 10 * ticks)
events_in_order = st.lists(
    st.one_of(
        st.builds(InputEvent, times_ms, st.sampled_from([i for i in Input if i not in ANALOG]), st.integers(0, 1)),
        st.builds(InputEvent, times_ms, st.sampled_from(ANALOG), st.integers(-ANALOG_FULL, ANALOG_FULL)),
    )
).map(lambda events: sorted(events, key=lambda event: event.time_ms))


@given(events_in_order)
def test_what_is_written_reads_back(events):
    assert parse_input_script(write_input_script(events)) == events


@given(events_in_order)
def test_the_tminterface_package_reads_the_same(events):
    commands = CommandList(write_input_script(events)).timed_commands
    assert [(c.timestamp, c.input_type.name, c.state) for c in commands] == [
        (e.time_ms, {"ACCELERATE": "UP", "BRAKE": "DOWN", "GIVE_UP": "RESET"}.get(e.input.name, e.input.name), e.value)
        for e in events
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# only a comment\n\n", []),
        ("0.00 press up", [InputEvent(0, Input.ACCELERATE, 1)]),
        ("1.25 rel left  # go straight", [InputEvent(1250, Input.LEFT, 0)]),
        ("1.5 PRESS Down", [InputEvent(1500, Input.BRAKE, 1)]),
        ("1257 press up", [InputEvent(1250, Input.ACCELERATE, 1)]),
        ("1:02.50 press up", [InputEvent(62500, Input.ACCELERATE, 1)]),
        ("1:01:02.50 press up", [InputEvent(3662500, Input.ACCELERATE, 1)]),
        ("0-1.5 press up", [InputEvent(0, Input.ACCELERATE, 1), InputEvent(1500, Input.ACCELERATE, 0)]),
        ("1.5-0 steer -65536", [InputEvent(0, Input.STEER, -65536), InputEvent(1500, Input.STEER, 0)]),
        ("0 gas 65536; 20 press right\r\n", [InputEvent(0, Input.GAS, 65536), InputEvent(20, Input.RIGHT, 1)]),
        ("20 press up\n10 press left", [InputEvent(10, Input.LEFT, 1), InputEvent(20, Input.ACCELERATE, 1)]),
    ],
)
def test_reads(text, expected):
    assert parse_input_script(text) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("press up", "a command is"),
        ("0.00 press", "a command is"),
        ("0.00 press up now", "a command is"),
        ("soon press up", "time 'soon'"),
        ("-5 press up", "time ''"),
        ("1.2.3 press up", "time '1.2.3'"),
        ("99999999999 press up", "time '99999999999'"),
        ("9999999999 press up", "too late"),
        ("0.00 press sideways", "unknown key 'sideways'"),
        ("0.00 push up", "unknown command 'push'"),
        ("0.00 steer 65537", "value '65537'"),
        ("0.00 steer hard", "value 'hard'"),
    ],
)
def test_errors_name_line_text_and_reason(line, reason):
    with pytest.raises(InputScriptError, match=reason) as caught:
        parse_input_script(f"0.00 press up\n{line}\n")
    assert "line 2" in str(caught.value)
    assert line in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(InputScriptError):
        parse_input_script(text)


def test_actions_become_changes():
    straight, left = KeyState(False, False, True, False), KeyState(True, False, True, False)
    assert events_from_actions([straight, straight, left, NO_KEYS], 50) == [
        InputEvent(0, Input.ACCELERATE, 1),
        InputEvent(100, Input.LEFT, 1),
        InputEvent(150, Input.LEFT, 0),
        InputEvent(150, Input.ACCELERATE, 0),
    ]


def test_set_commands_are_skipped_with_one_note(tmp_path, caplog):
    file = tmp_path / "seek.inputs"
    file.write_text("set speed 2\n0 set speed 30 # seek\n0.00 press up; 5.10 SET speed 1\n")
    for _ in range(2):
        assert read_input_script(file) == [InputEvent(0, Input.ACCELERATE, 1)]
    (record,) = caplog.records
    for said in (str(file), "'set speed 2', '0 set speed 30', '5.10 SET speed 1'"):
        assert said in record.getMessage()


def test_a_byte_order_mark_is_passed_over(tmp_path):
    file = tmp_path / "race.inputs"
    file.write_bytes(b"\xef\xbb\xbf# from Windows\n0.00 press up\n")
    assert read_input_script(file) == [InputEvent(0, Input.ACCELERATE, 1)]
