"""`python -m trackmania_rl.dashboard`: see `command`."""

import sys

from trackmania_rl.dashboard.command import main

if __name__ == "__main__":
    sys.exit(main())
