"""The status of a training in its log, and the fault that it names."""

import sqlite3

import pytest

from tests.telemetry.conftest import status_of
from trackmania_rl.runs.log import RunLog, read_status


def test_the_newest_status_is_read(tmp_path):
    path = tmp_path / "run.sqlite"
    assert read_status(path) is None
    log = RunLog(path, lambda: 0.0, 1)
    assert read_status(path) is None, "of a training that begins"
    for status in (status_of(), status_of(is_over=True, saved_at_s=3.0)):
        log.write_status(status)
        assert read_status(path) == status
    log.close()
    assert read_status(path) == status
    with sqlite3.connect(path) as edited:
        edited.execute("UPDATE status SET json = '{}'")
    edited.close()
    assert read_status(path) is None
    path.write_bytes(b"no log")
    assert read_status(path) is None


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, None),
        ({"is_over": True}, "has ended"),
        ({"timestamp_s": 1020.0}, "restarted since the last status"),
        ({"timestamp_s": 940.0}, "no status for 70 s"),
        ({"ticked_at_s": 100.0}, "no progress for 910 s"),
    ],
)
def test_a_status_names_the_fault(changes, wrong):
    said = status_of(**changes).what_is_wrong(1010.0)
    assert said == wrong or wrong in said
