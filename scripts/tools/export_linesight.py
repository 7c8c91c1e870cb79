"""Write a run as the files of a Linesight run: weights1.torch, weights2.torch, optimizer1.torch and the others.

    python scripts/tools/export_linesight.py save/my_run --output linesight/save/my_run

Only runs with a network like that of config_tmnf.py can be exported: no layer normalization, and an image.
docs/coming_from.rst lists the converted parts.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command


@command
def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folder", type=Path, help="save/RUN_NAME, with checkpoints/")
    parser.add_argument("--output", type=Path, required=True, help="a new or empty folder")
    arguments = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    from trackmania_rl.migration.linesight_run import export_linesight_run

    export_linesight_run(arguments.run_folder, arguments.output)
    print(f"{arguments.output}: {', '.join(sorted(file.name for file in arguments.output.iterdir()))}")


if __name__ == "__main__":
    sys.exit(main())
