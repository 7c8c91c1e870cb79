"""Input scripts: written, read, against the tminterface package's reader, and whatever bytes a file holds."""

import itertools
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tminterface.commandlist import CommandList, InputCommand

from trackmania_rl.protocol import input_script
from trackmania_rl.protocol.input_script import (
    ANALOG_FULL,
    MAX_TIME_MS,
    Input,
    InputEvent,
    InputScriptError,
    events_of_keys,
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
def test_written_states_read_back_here_and_with_the_tminterface_package(events):
    script = write_input_script(events)
    assert parse_input_script(script) == events
    assert [(c.timestamp, c.input_type.name, c.state) for c in CommandList(script).timed_commands] == [
        (e.time_ms, {"ACCELERATE": "UP", "BRAKE": "DOWN", "GIVE_UP": "RESET"}.get(e.input.name, e.input.name), e.value)
        for e in events
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# only a comment\n\n", []),
        ("\ufeff0.00 press up", [InputEvent(0, Input.ACCELERATE, 1)]),
        ("1.25 REL Left  # go straight", [InputEvent(1250, Input.LEFT, 0)]),
        ("1257 press up", [InputEvent(1250, Input.ACCELERATE, 1)]),
        ("1:01:02.50 press up", [InputEvent(3662500, Input.ACCELERATE, 1)]),
        ("1.5-0 steer -65536", [InputEvent(0, Input.STEER, -65536), InputEvent(1500, Input.STEER, 0)]),
        ("0 gas 65536; 20 press right\r\n", [InputEvent(0, Input.GAS, 65536), InputEvent(20, Input.RIGHT, 1)]),
        ("20 press up\n10 press left", [InputEvent(10, Input.LEFT, 1), InputEvent(20, Input.ACCELERATE, 1)]),
    ],
)
def test_reads(tmp_path, text, expected):
    file = tmp_path / "race.inputs"
    file.write_bytes(text.encode())
    assert read_input_script(file) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0.00 press up now", "an input is"),
        ("-5 press up", "time ''"),
        ("9999999999 press up", "too late"),
        ("0.00 press sideways", "unknown key 'sideways'"),
        ("0.00 steer left", "value 'left'"),
    ],
)
def test_errors_name_line_text_and_reason(line, reason):
    with pytest.raises(InputScriptError, match=reason) as caught:
        parse_input_script(f"0.00 press up\n{line}\n")
    assert "line 2" in str(caught.value)
    assert line in str(caught.value)


def test_actions_become_changes():
    straight, left = KeyState(False, False, True, False), KeyState(True, False, True, False)
    assert events_of_keys(zip(itertools.count(0, 50), [straight, straight, left, NO_KEYS])) == [
        InputEvent(0, Input.ACCELERATE, 1),
        InputEvent(100, Input.LEFT, 1),
        InputEvent(150, Input.LEFT, 0),
        InputEvent(150, Input.ACCELERATE, 0),
    ]


def test_only_inputs_are_read_as_tminterface_reads_them_and_others_are_named_once(tmp_path, caplog):
    file = tmp_path / "seek.inputs"
    text = """set speed 2; press up
0 speed 4 # seek
0.00 press up; 1.50 toggle_inputs
900-1400 SET speed 1
2.00-3.00 steer -100000; 4.00 gas 65537
"""
    file.write_text(text)
    for _ in range(2):
        events = read_input_script(file)
    (record,) = caplog.records
    named = "'set speed 2', 'press up', '0 speed 4', '1.50 toggle_inputs', '900-1400 SET speed 1', ..."
    assert named in record.getMessage()
    assert str(file) in record.getMessage()
    theirs = [command for command in CommandList(text).timed_commands if isinstance(command, InputCommand)]
    assert [(event.time_ms, event.value) for event in events] == [
        (command.timestamp, max(-ANALOG_FULL, min(command.state, ANALOG_FULL))) for command in theirs
    ]
    file.write_text("2 steer -100000")
    read_input_script(file)
    assert "'2 steer -100000' (clipped to -65536)" in caplog.text
    with pytest.raises(InputScriptError, match=r"it has no inputs, such as .*, but 'Read me'"):
        parse_input_script("Read me\n=======\n")


GOOD = b"""# a race
0.00 press up
0.28-1.25 press left; 1.30 steer -65536
1:02.50 gas 65536
62510 rel up
1:00:00.00 press enter
"""
PIECES = (b"\x00", b"\xff\xfe", b";" * 900, b"\n", b" ", b"-", b":", b".", b"9" * 30, b"-1", b"\xc2\xb2", b"nan", GOOD)


def mutated(rng):
    """A good script with something cut out of it or put into it."""
    data = bytearray(GOOD * rng.choice((1, 1, 1, 40)))
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(data) + 1)
        piece = rng.choice((*PIECES, rng.randbytes(rng.randrange(50)), str(1 << rng.randrange(65)).encode()))
        data[place : place + rng.choice((0, 1, len(piece), len(data)))] = piece
    return bytes(data)


def is_read_or_refused(file):
    """Return whether the file is a script. Any error but one for the user fails the test."""
    try:
        events = read_input_script(file)
    except InputScriptError as error:
        text = str(error)
    else:
        assert all(0 <= event.time_ms <= MAX_TIME_MS for event in events)
        assert all(before.time_ms <= after.time_ms for before, after in pairwise(events))
        again = file.with_suffix(".again")
        again.write_text(write_input_script(events))
        if again.stat().st_size <= input_script.MAX_SCRIPT_BYTES:
            assert read_input_script(again) == events
        return True
    assert str(file) in text
    assert len(text) < 1_000
    return False


@pytest.mark.parametrize("n_files", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_refused(tmp_path, n_files):
    rng, file, n_read = random.Random(n_files), tmp_path / "mutated.inputs", 0
    for _ in range(n_files):
        file.write_bytes(mutated(rng))
        n_read += is_read_or_refused(file)
    assert 0 < n_read < n_files


MOST_BYTES = 1 << 17
"""Of the files below, in the place of MAX_SCRIPT_BYTES."""


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"1 rel up;" * (MOST_BYTES // 9), id="as many commands as fit, on one line"),
        pytest.param(b"9" * MOST_BYTES + b" press up", id="too large"),
        pytest.param(b"9999999:9999999:9999999.99 press up", id="a time of centuries"),
        pytest.param(b"0-4294967295 press up", id="billions of ms"),
        pytest.param(b"\n" * MOST_BYTES, id="empty lines"),
        pytest.param(bytes(range(256)) * 99, id="binary"),
        pytest.param(b"\xff\xfe0\x00 \x00p\x00", id="another encoding"),
    ],
)
def test_extremes_are_read_or_refused(tmp_path, content, monkeypatch):
    monkeypatch.setattr(input_script, "MAX_SCRIPT_BYTES", MOST_BYTES)
    file = tmp_path / "extreme.inputs"
    file.write_bytes(content)
    is_read_or_refused(file)


def test_a_folder_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(InputScriptError, match="is a folder"):
        read_input_script(tmp_path)
    with pytest.raises(InputScriptError, match="cannot be read: No such file"):
        read_input_script(tmp_path / "absent.inputs")
