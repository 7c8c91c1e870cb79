"""Files of strangers: what is no file is refused at once, and nothing that one holds costs much memory or time."""

import os
import time
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.files import parse_json, parse_npy, parse_toml, read_bounded, read_bounded_text, within


@contextmanager
def within_s(limit_s):
    started_s = time.process_time()
    yield
    assert time.process_time() - started_s < limit_s


def npy(array):
    stream = BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def with_header(text, content=b""):
    header = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def test_a_file_of_the_largest_size_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 70)
    (tmp_path / "link").symlink_to(file)
    assert read_bounded(file, 70) == read_bounded(tmp_path / "link", 70) == b"x" * 70
    with pytest.raises(UserError, match=r"file: is 70 bytes large; at most 69 bytes are read of such a file"):
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
    ("make", "told"),
    [
        pytest.param(lambda file: os.mkfifo(file), "is not a file but a pipe", id="pipe"),
        pytest.param(lambda file: file.symlink_to("/dev/zero"), "is not a file but a device", id="device"),
        pytest.param(lambda file: file.symlink_to("/dev/tty"), "is not a file but a device|cannot be read", id="tty"),
        pytest.param(lambda file: file.mkdir(), "is not a file but a folder", id="folder"),
        pytest.param(lambda file: file.symlink_to(file), "cannot be read: ", id="circle of links"),
        pytest.param(lambda file: None, "cannot be read: No such file", id="absent"),
    ],
)
def test_what_is_no_file_is_refused_at_once(tmp_path, make, told):
    file = tmp_path / "file"
    make(file)
    with pytest.raises(UserError, match=f"file: {told}"):
        read_bounded(file, 1 << 40)


def test_a_file_that_hides_its_size_is_read_no_further_than_allowed(tmp_path):
    if Path("/proc/kallsyms").exists():
        with pytest.raises(UserError, match=r"is larger than 1000 bytes"):
            read_bounded(Path("/proc/kallsyms"), 1000)
    with pytest.raises(UserError, match="is no name of a file"):
        read_bounded(tmp_path / "a\0b", 10)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        '{"a":' * 50_000,
        "[" * 51 + "]" * 51,
        '"' + '\\"' * 500_000,
        "9" * 50_000,
        "NaN",
        "[-Infinity]",
        "",
    ],
)
def test_json_that_is_no_small_thing_is_refused(text):
    with within_s(2.0), pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 50_000,
        "a = " + "{a = " * 12_000,
        "[" + "a." * 50_000 + "a]",
        "a." * 30_000 + "a = 1",
        "a = 1\n" + "'a' . " * 10_000 + "b = 1",
        "a" * 60_000,
        '"' * 60_000,
        "a = " + "9" * 60_000,
        "a = '''" + "a" * 60_000,
    ],
)
def test_toml_that_is_no_small_thing_is_refused(text):
    with within_s(2.0), pytest.raises(ValueError, match=r"."):
        parse_toml(text)


def test_json_toml_and_arrays_of_numbers_are_read():
    assert parse_json(b'{"a": ["[[[", 1.5, "\\"]"]}') == {"a": ["[[[", 1.5, '"]']}
    assert parse_json("[" * 50 + "]" * 50) is not None
    assert parse_toml('a.b = [1, "]]"]\n[[c]]\nd = 0.5') == {"a": {"b": [1, "]]"]}, "c": [{"d": 0.5}]}
    for dtype in ("<f4", "<f8", ">f8", "<i2", "|u1"):
        for array in (np.arange(12, dtype=dtype).reshape(4, 3), np.arange(12, dtype=dtype).reshape(3, 4).T):
            read = parse_npy(npy(array))
            assert read.dtype == array.dtype
            np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (npy(np.array([{}], dtype=object)), "dtype"),
        (npy(np.zeros(3, dtype="<U9")), "dtype"),
        (npy(np.zeros(3, dtype=[("a", "<f4")])), "dtype"),
        (npy(np.zeros(3, dtype=complex)), "dtype"),
        (npy(np.zeros(3))[:-1], "holds 23 bytes, not the "),
        (npy(np.zeros(3)) + b"x", "holds 25 bytes"),
        (npy(np.zeros(200)), "it holds 200 numbers; at most 100 are read"),
        (with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999, 3), }"), "holds 0 bytes"),
        (with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }", bytes(8)), "shape"),
        (with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (True, True), }", bytes(8)), "shape"),
        (with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (%s)}" % ("0, " * 200)), "."),
        (with_header("{'descr': '(1000000000,)f8', 'fortran_order': False, 'shape': ()}"), "dtype|header"),
        (with_header("[" * 900), "."),
        (with_header("-" * 900 + "1"), "."),
        (with_header("1" * 60_000), "."),
        (b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little"), "."),
        (b"\x93NUMPY\x03\x00" + bytes(20), "its format is of another version"),
        (b"PK\x03\x04" + bytes(60), "archive"),
        (b"", "."),
        (bytes(500), "."),
    ],
)
def test_any_other_array_is_refused(content, told):
    with within_s(2.0), pytest.raises(ValueError, match=told):
        parse_npy(content, most_numbers=100)


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
