"""`python -m trackmania_rl.telemetry.page`: see `command`."""

import sys

from trackmania_rl.telemetry.page.command import main

if __name__ == "__main__":
    sys.exit(main())
