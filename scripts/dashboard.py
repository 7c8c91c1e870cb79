"""The live page of a run, in a browser; `python scripts/dashboard.py --help` says how."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

from trackmania_rl.telemetry.page.command import main

if __name__ == "__main__":
    sys.exit(main())
