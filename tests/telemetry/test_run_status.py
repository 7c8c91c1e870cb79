"""The status file of a training: written in place and read whole."""

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
