"""`python -m trackmania_rl COMMAND`: see `console`."""

import sys

from trackmania_rl.console import main

if __name__ == "__main__":
    sys.exit(main())
