"""The C++ host as a Python object: it builds the library, loads a plugin's script and calls its callbacks."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from script_interface import as_text, read_declarations

HOST_FOLDER = Path(__file__).resolve().parent / "host"
SOURCES = ("host.cpp", "api.cpp", "registry.cpp", "sockets.cpp", "strings.cpp")
HEADERS = ("host.h", "registry.h")
HEADER_FOLDER = Path("/usr/include/angelscript")
LIBRARY_NAME = "plugin_host.so"

_INT32_POINTER = ctypes.POINTER(ctypes.c_int32)
_BYTES_POINTER = ctypes.POINTER(ctypes.c_uint8)

FUNCTION_TYPES = {
    "game_state": ctypes.CFUNCTYPE(ctypes.c_int32),
    "race_clock": ctypes.CFUNCTYPE(None, *[_INT32_POINTER] * 5),
    "save_state": ctypes.CFUNCTYPE(ctypes.c_int32, _BYTES_POINTER, ctypes.c_int32),
    "restore_state": ctypes.CFUNCTYPE(None, _BYTES_POINTER, ctypes.c_int32),
    "set_input": ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32),
    "set_speed": ctypes.CFUNCTYPE(None, ctypes.c_float),
    "give_up": ctypes.CFUNCTYPE(None),
    "prevent_finish": ctypes.CFUNCTYPE(None),
    "reset_camera": ctypes.CFUNCTYPE(None),
    "run_command": ctypes.CFUNCTYPE(None, _BYTES_POINTER, ctypes.c_int32),
    "input_script": ctypes.CFUNCTYPE(ctypes.c_int32, _BYTES_POINTER, ctypes.c_int32),
    "capture": ctypes.CFUNCTYPE(None, _BYTES_POINTER, ctypes.c_int32, ctypes.c_int32),
    "toggle_interface": ctypes.CFUNCTYPE(None, ctypes.c_int32),
    "log": ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int32),
}
"""In the order of `GameFunctions` in host.h."""


class GameFunctions(ctypes.Structure):
    _fields_ = list(FUNCTION_TYPES.items())


class HostError(Exception):
    """The host cannot be built, or the script does not compile."""


def what_is_missing():
    """Why the host cannot be built here; None if it can."""
    if shutil.which("g++") is None:
        return "no g++ is installed"
    if not (HEADER_FOLDER / "scriptarray.h").is_file():
        return "the AngelScript engine is not installed (Debian: apt-get install angelscript-dev)"
    return None


def build(folder):
    """Compile the host, unless it was with these sources; returns the library.

    Raises:
        HostError: with the compiler's words.
    """
    digest = hashlib.sha256(b"".join((HOST_FOLDER / name).read_bytes() for name in (*SOURCES, *HEADERS))).hexdigest()
    library = folder / f"{digest[:16]}-{LIBRARY_NAME}"
    if library.is_file():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as workplace:
        made = Path(workplace) / LIBRARY_NAME
        command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-DAS_USE_NAMESPACE"]
        command += [f"-I{HEADER_FOLDER}", *(str(HOST_FOLDER / name) for name in SOURCES), "-o", str(made)]
        command += ["-langelscript-addon", "-langelscript"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise HostError(result.stderr)
        os.replace(made, library)
    return library


class Counters(NamedTuple):
    """Actions of the script."""

    reads_that_block: int  # of more bytes than had come, which would stop the real game
    writes: int
    open_sockets: int
    script_exceptions: int  # callbacks that ended with one


class PluginHost:
    """One engine with one plugin.

    The library keeps its state in global variables, so each host loads a copy of its own.

    Args:
        library: result of `build`.
        script: the plugin.
        game: an object with a method for each name in FUNCTION_TYPES.
        interface: a file with all that TMInterface declares; without it only what the host can do is there.

    Raises:
        HostError: if the script does not compile, or the interface cannot be registered, or is not what the host does.
    """

    def __init__(self, library, script, game, interface=None):
        with tempfile.TemporaryDirectory() as folder:
            self._library = ctypes.CDLL(shutil.copy(library, folder))
        # Kept here, since the library only keeps the addresses.
        self._functions = GameFunctions(*(made(getattr(game, name)) for name, made in FUNCTION_TYPES.items()))
        self._library.host_messages.restype = ctypes.c_char_p
        declared = "" if interface is None else as_text(read_declarations(interface))
        if self._library.host_open(str(script).encode(), ctypes.byref(self._functions), declared.encode()) != 0:
            raise HostError(f"{script} does not compile:\n{self._library.host_messages().decode(errors='replace')}")

    def call(self, name, *arguments):
        """Call `host_NAME` of the library: a callback of the script, or what TMInterface does with it (host.h)."""
        return getattr(self._library, f"host_{name}")(*arguments)

    def set_variable(self, name, value):
        """Set a variable; False if the plugin registered none of this name."""
        return bool(self.call("set_variable", name.encode(), ctypes.c_double(value)))

    def run_custom_command(self, name):
        """Run a console command of the plugin's; False if it registered none of this name."""
        return bool(self.call("run_custom_command", name.encode()))

    def counters(self):
        values = [ctypes.c_int64() for _ in range(4)]
        self._library.host_counters(*(ctypes.byref(value) for value in values))
        return Counters(*(value.value for value in values))
