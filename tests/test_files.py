"""Files: durable writing, bounded reading of untrusted files, names that are valid on Linux and Windows."""

import os
import time
import tomllib
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl import files
from trackmania_rl.errors import UserError
from trackmania_rl.files import (
    check_file_name,
    parse_json,
    read_bounded,
    read_bounded_text,
    read_npy,
    replace_patiently,
    within,
    write_durably,
)
from trackmania_rl.settings import MapEntry, SettingsError, load_settings
from trackmania_rl.simulator.tracks.track_file import MAX_TRACK_BYTES
from trackmania_rl.track.named_maps import as_file_name


@contextmanager
def within_s(limit_s):
    started_s = time.process_time()
    yield
    assert time.process_time() - started_s < limit_s


@pytest.fixture
def hold(monkeypatch):
    """`hold(3)` has the next three renames refused, as Windows does; three renames are tried again."""
    replace = Path.replace
    monkeypatch.setattr(files, "RENAME_WAITS_S", (0.0,) * 3)

    def hold_for(n_renames):
        refusals = iter(range(n_renames))

        def replace_unless_held(file, target):
            if next(refusals, None) is not None:
                raise PermissionError(13, "The process cannot access the file")
            return replace(file, target)

        monkeypatch.setattr(Path, "replace", replace_unless_held)

    return hold_for


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_rename_that_windows_refuses_for_a_moment_is_tried_again(hold, tmp_path, is_folder):
    fresh, old = tmp_path / "fresh", tmp_path / "old"
    if is_folder:
        fresh.mkdir()
    else:
        fresh.write_text("new")
        old.write_text("old")
    hold(3)
    replace_patiently(fresh, old)
    assert old.is_dir() if is_folder else old.read_text() == "new"
    assert not fresh.exists()


def test_a_rename_that_stays_refused_is_an_error(hold, tmp_path):
    (tmp_path / "fresh").write_text("new")
    hold(4)
    with pytest.raises(PermissionError):
        replace_patiently(tmp_path / "fresh", tmp_path / "old")
    assert (tmp_path / "fresh").read_text() == "new"
    with pytest.raises(FileNotFoundError):
        replace_patiently(tmp_path / "absent", tmp_path / "old")


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "a file"
    write_durably(file, "first\n")
    assert file.read_bytes() == b"first\n"
    synced = []
    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", synced.append)
        write_durably(file, b"second")
    assert file.read_bytes() == b"second"
    assert len(synced) == (2 if os.name == "posix" else 1)  # the file, and the folder with its name

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_durably(file, b"third")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]
    assert file.read_bytes() == b"second"


def test_a_file_of_the_largest_size_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 70)
    (tmp_path / "link").symlink_to(file)
    assert read_bounded(file, 70) == read_bounded(tmp_path / "link", 70) == b"x" * 70
    with pytest.raises(UserError, match=r"file: is larger than 69 bytes, the most that are read of such a file"):
        read_bounded(file, 69)


def test_text_may_begin_with_a_mark_and_end_its_lines_as_windows_does(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert read_bounded_text(file, 100) == "one\ntwo\n"
    file.write_bytes(b"one\xff")
    with pytest.raises(UserError, match=r"file: is not UTF-8 text \(invalid start byte at byte 3\)"):
        read_bounded_text(file, 100)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda file: os.mkfifo(file), "is a folder, a pipe or a device", id="pipe"),
        pytest.param(lambda file: file.symlink_to("/dev/zero"), "is a folder, a pipe or a device", id="device"),
        pytest.param(lambda file: file.mkdir(), "is a folder, a pipe or a device", id="folder"),
        pytest.param(lambda file: file.symlink_to(file), "cannot be read: ", id="circle of links"),
        pytest.param(lambda file: None, "cannot be read: No such file", id="absent"),
    ],
)
def test_missing_files_are_refused_at_once(tmp_path, make, message):
    file = tmp_path / "file"
    make(file)
    with pytest.raises(UserError, match=f"file: {message}"):
        read_bounded(file, 1 << 40)


@pytest.mark.parametrize(
    "text", ["[" * 50_000, '{"a":' * 50_000, '"' + '\\"' * 500_000, "9" * 50_000, "NaN", "[-Infinity]", ""]
)
def test_json_that_is_no_small_thing_is_refused(text):
    with within_s(2.0), pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize("text", ["[" + "a." * MAX_TRACK_BYTES, "a." * (MAX_TRACK_BYTES // 2 - 3) + "a = 1"])
def test_the_largest_track_file_is_parsed_in_time(text):
    """The time of tomllib grows with the square of the names in a key."""
    with within_s(2.0), pytest.raises((ValueError, RecursionError)):
        tomllib.loads(text[:MAX_TRACK_BYTES] + "?")


def npy(array):
    stream = BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def with_header(text, content=b""):
    header = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def test_arrays_of_numbers_are_read(tmp_path):
    file = tmp_path / "a.npy"
    for dtype in ("<f4", "<f8", ">f8", "<i2", "|u1"):
        for array in (np.arange(12, dtype=dtype).reshape(4, 3), np.arange(12, dtype=dtype).reshape(3, 4).T):
            file.write_bytes(npy(array))
            read = read_npy(file, 1000)
            assert read.dtype == array.dtype
            np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    "content",
    [
        npy(np.array([{}], dtype=object)),
        npy(np.zeros(3, dtype="<U9")),
        npy(np.zeros(3, dtype=[("a", "<f4")])),
        npy(np.zeros(3, dtype=complex)),
        npy(np.zeros(3))[:-1],
        npy(np.zeros(3)) + b"x",
        npy(np.zeros(3)) + bytes(8),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999, 3), }"),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }", bytes(8)),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (%s)}" % ("0, " * 200)),
        with_header("{'descr': '(1000000000,)f8', 'fortran_order': False, 'shape': ()}"),
        with_header("[" * 900),
        with_header("-" * 900 + "1"),
        with_header("1" * 60_000),
        b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little"),
        b"\x93NUMPY\x03\x00" + bytes(20),
        b"PK\x03\x04" + bytes(60),
        b"",
        bytes(500),
    ],
)
def test_any_other_array_is_refused(tmp_path, content):
    file = tmp_path / "a.npy"
    file.write_bytes(content)
    with within_s(2.0), pytest.raises(UserError, match=r"a\.npy: is damaged, or no \.npy file of numbers: ."):
        read_npy(file, 100_000)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "/etc/passwd", "../a", "a/../../b", "a/..", "..\\a", "\\a", "\\\\server\\share\\a", "//server/a"),
        *("C:\\a", "C:a", "a:stream", "a\0b", "a\nb", "a" * 251),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="is no file within"):
        within(tmp_path, name)
    for good in ("deeper/a.npy", "deeper\\a.npy", "a b.npy", "ä.npy", "..a"):
        assert within(tmp_path, good) == tmp_path / good.replace("\\", "/")


DEVICES = ["nul", "NUL", "con", "aux", "prn", "com1", "LPT9", "nul.driver", "con.a.b", "nul .txt"]
NONE = ["v1.", "a ", " a", ".", "..", "", "x" * 81, *(f"a{letter}b" for letter in ':*?"<>|/\\\0\n\t\x1f')]


@pytest.mark.parametrize("name", ["valley", "v1.2", "A01-Race", "a b", "x" * 80, "nullable", "console.1", "com10", "7"])
def test_good_names_stay(name):
    assert check_file_name(name) == name


@pytest.mark.parametrize("name", [*DEVICES, *NONE])
def test_a_bad_name_is_refused_as_a_name_of_a_run_and_of_a_map(name, repository_root):
    with pytest.raises(ValueError, match="no name of a file on all systems"):
        check_file_name(name)
    with pytest.raises(SettingsError, match="run_name = "):
        load_settings(repository_root / "config_files" / "config.py", {"run_name": name})
    with pytest.raises(ValueError, match="map_name"):
        MapEntry(map_name=name, is_explo=True, fill_buffer=True)


def test_any_text_becomes_a_name_or_none():
    assert as_file_name(" Mäp: <1>. ") == "M-p-1"
    assert as_file_name("x" * 79 + "..y") == "x" * 79
    assert as_file_name("nul") is None
    assert as_file_name("?") is None
