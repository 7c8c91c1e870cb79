"""What a training tells of itself: written in place, read whole, and judged by the machine's own clock."""

import pytest

from tests.telemetry.conftest import status_of
from trackmania_rl.telemetry import run_status
from trackmania_rl.telemetry.run_status import ROOM_BYTES, STATUS_FILE, read_status, write_status


def test_what_is_written_is_read(tmp_path):
    assert read_status(tmp_path) is None
    write_status(tmp_path / "run", status_of())
    (tmp_path / "run").mkdir()
    write_status(tmp_path / "run", status_of())
    assert read_status(tmp_path / "run") == status_of(), "a folder that was missing was no error"
    before = (tmp_path / "run" / STATUS_FILE).stat()
    longer = status_of(is_over=True, figures={f"figure_{number}": 1.0 for number in range(90)})
    write_status(tmp_path / "run", longer)
    assert read_status(tmp_path / "run") == longer
    after = (tmp_path / "run" / STATUS_FILE).stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size), "a full disk does not matter"
    longest = status_of(losses={f"{number}" * 500: 1.0 for number in range(10, 60)})
    for status in (longest, status_of()):
        write_status(tmp_path / "run", status)
        assert read_status(tmp_path / "run") == status


@pytest.mark.parametrize("content", [b"", b"{}", bytes(ROOM_BYTES), b"x" * ROOM_BYTES, b"torn"])
def test_what_is_damaged_or_half_written_is_not_taken(tmp_path, content, monkeypatch):
    monkeypatch.setattr(run_status, "READ_AGAIN_AFTER_S", 0.0)
    write_status(tmp_path, status_of())
    whole = (tmp_path / STATUS_FILE).read_bytes()
    torn = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
    (tmp_path / STATUS_FILE).write_bytes(torn if content == b"torn" else content)
    assert read_status(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "now_s", "wrong"),
    [
        ({}, 1000.0, None),
        ({}, 1060.0, None),
        ({}, 1061.0, "no sign of life for 61 s"),
        ({"ticked_at_s": 101.0}, 1000.0, None),  # it compiles
        ({"ticked_at_s": 99.0}, 1000.0, "it has not gone on for 901 s"),
        ({"is_over": True}, 1000.0, "the training has ended"),
        ({}, 50.0, "the machine was restarted since the training last told of itself"),
    ],
)
def test_whether_it_is_well(changes, now_s, wrong):
    assert status_of(**changes).what_is_wrong(now_s) == wrong
