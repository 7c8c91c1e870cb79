"""Play for a learner on another machine: games, and a copy of its network, on this one.

The learner runs `train.py --workers`. Only one outgoing connection is needed; while the learner is away, a few races
are kept in memory. Settings come from the learner, except those of user_config.py and --set. docs/other_machines.rst.

Examples:
  python scripts/worker.py --connect http://127.0.0.1:8470
  python scripts/worker.py --connect https://learner:8470 --token-file token --certificate learner.crt
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

from trackmania_rl.cli import (
    add_connection_options,
    command,
    end_in_order_when_terminated,
    worker_token,
)
from trackmania_rl.paths import CONFIG_FILES, PROJECT_FOLDER
from trackmania_rl.settings import load_settings


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_connection_options(parser)
    add = parser.add_argument
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="set a setting here; may be repeated")
    add("--code", action="append", default=[], metavar="MODULE", help="allow a module that the run's settings name")
    arguments = parser.parse_args()
    if arguments.connect is None:
        parser.error("name the learner: --connect https://HOST:PORT")
    end_in_order_when_terminated()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    token = worker_token(arguments.token_file)
    from trackmania_rl.multiprocess.worker import LearnerAddress, Worker, WorkerConfig

    learner = LearnerAddress.of_command(arguments.connect, token, arguments.certificate, arguments.insecure)
    config = WorkerConfig(
        project_folder=PROJECT_FOLDER,
        user=load_settings(PROJECT_FOLDER / CONFIG_FILES / "config.py").user,
        overrides=arguments.set,
        code=arguments.code,
    )
    with contextlib.suppress(KeyboardInterrupt):
        Worker(learner, config).play()


if __name__ == "__main__":
    sys.exit(main())
