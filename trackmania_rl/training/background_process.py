"""Work that the learner leaves to a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

_BESIDE_THE_PACKAGE: Final = Path(__file__).resolve().parents[2]


def start_in_background(module: str, *arguments: str, gives_way: bool = False) -> subprocess.Popen[str]:
    """Run a module of this project; what it writes to its error stream can be read when it has ended.

    The terminal's Ctrl-C does not reach it, so that a run that ends in order waits for it, or ends it.

    Args:
        module: its name.
        arguments: of its command line.
        gives_way: whether its niceness counts beside the training: Linux shares the processor evenly among sessions,
            and looks at niceness within each, so that it gets no session of its own then.

    Raises:
        OSError: if it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=_BESIDE_THE_PACKAGE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=not gives_way,
        process_group=0 if gives_way else None,
    )
