"""Turn a Linesight run into a run that `train.py` can resume: weights, optimizer, counters and best times.

    python scripts/tools/import_linesight.py linesight/save/my_run --output save/my_run

The Linesight run's configuration is read from its folder (config_copy.py or config.bak.py, for example) or from
--linesight-config. Nothing in these files is executed. docs/coming_from.rst lists the converted parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command
from trackmania_rl.errors import UserError
from trackmania_rl.paths import PROJECT_FOLDER


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run_folder", type=Path, help="Linesight's save/RUN_NAME, with weights1.torch")
    add("--output", type=Path, required=True, help="the new run here, save/RUN_NAME; it must not exist yet")
    add(
        "--config",
        type=Path,
        default=PROJECT_FOLDER / "config_files" / "config_tmnf.py",
        help="our configuration to start from (default: the full-size one, config_tmnf.py)",
    )
    add("--linesight-config", type=Path, help="the run's configuration file, if it is not in its folder")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting; may be repeated")
    add("--frames", type=int, help="frames played so far (default: as in accumulated_stats.joblib)")
    return parser.parse_args(words)


@command
def main(words: list[str] | None = None) -> None:
    arguments = parse_arguments(words)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    import_run(arguments)


def import_run(arguments: argparse.Namespace) -> None:
    # Slow imports.
    from trackmania_rl.migration.linesight_run import (
        find_linesight_config,
        import_linesight_run,
        overrides_of_linesight_config,
        read_linesight_run,
    )

    if not arguments.run_folder.is_dir():
        raise UserError(f"{arguments.run_folder} is no folder")
    if arguments.frames is not None and arguments.frames < 0:
        raise UserError(f"--frames {arguments.frames} must be 0 or more")
    run = read_linesight_run(arguments.run_folder)
    if arguments.frames is not None:
        run = dataclasses.replace(run, statistics=dataclasses.replace(run.statistics, frames=arguments.frames))
    elif (transitions := run.statistics.transitions) not in (0, run.statistics.frames):
        logging.getLogger(__name__).info(
            "schedules continue at the %s frames played; in Linesight before its commit 098cbf8 (2024-12-05) they "
            "followed the transitions stored: for such a run give --frames %d",
            f"{run.statistics.frames:,}",
            transitions,
        )
    linesight_config = arguments.linesight_config or find_linesight_config(arguments.run_folder)
    overrides: tuple[str, ...] = ()
    if linesight_config is not None:
        overrides = overrides_of_linesight_config(linesight_config, arguments.config, arguments.set)
    output = arguments.output.resolve()
    folder = import_linesight_run(run, output, arguments.config, (*overrides, *arguments.set))
    root = output.parent.parent
    elsewhere = "" if root == PROJECT_FOLDER else f" --output-folder {root}"
    if arguments.config.resolve() != PROJECT_FOLDER / "config_files" / "config.py":  # train.py's default
        elsewhere += f" --config {arguments.config}"
    print(
        f"{folder.path}: {run.statistics.frames:,} frames, {run.statistics.batches:,} batches"
        f"{'' if run.moments is not None else ', a fresh optimizer'}. Go on with:\n"
        f"    python scripts/train.py --set run_name={output.name}{elsewhere}"
    )


if __name__ == "__main__":
    sys.exit(main())
