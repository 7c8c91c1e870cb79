r"""Hold variants against one of them over several benchmarks: of several days, or several machines.

Each benchmark's folder has a `runs.csv`, a line for each run. Pairs are runs of the same track, seed and length within
one folder, since a machine's speed is not the same for long; the table and the picture are those of
benchmarks/driving/run.py. See docs/driving_benchmark.rst.

Examples:
  python benchmarks/driving/compare_folders.py monday tuesday --output both
  python benchmarks/driving/compare_folders.py monday.csv tuesday.csv --against default --output both
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from benchmarks.driving.comparison import check_against, compare  # noqa: E402
from benchmarks.driving.pictures import draw_comparison  # noqa: E402
from benchmarks.driving.report import comparison_table, markdown, restructured  # noqa: E402
from benchmarks.driving.results import RUNS_FILE, read_results  # noqa: E402
from trackmania_rl.cli import command  # noqa: E402
from trackmania_rl.errors import UserError  # noqa: E402


@command
def main() -> None:
    """Run the command line."""
    arguments = parse_arguments()
    folders = [read_results(path / RUNS_FILE if path.is_dir() else path) for path in arguments.folders]
    variants = list(dict.fromkeys(run.variant for runs in folders for run in runs))
    against = arguments.against or variants[0]
    check_against(against, variants)
    comparisons = compare(folders, against)
    if len(comparisons) == 1:
        raise UserError(f"no other variant has a run of the same folder, track, seed and length as one of {against}")
    rows = comparison_table(comparisons)
    output: Path = arguments.output
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "table.md").write_text(markdown(rows), encoding="utf-8")
        (output / "table.rst").write_text(restructured(rows), encoding="utf-8")
        draw_comparison(output / "comparison.png", comparisons)
    except OSError as error:
        raise UserError(f"--output {output}: cannot be written to: {error.strerror}") from error
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(Markdown(markdown(rows)))
    console.print(f"wrote table.md, table.rst and comparison.png in {output}", soft_wrap=True, highlight=False)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="of a benchmark, or a file that is a copy of its runs.csv",
    )
    add("--against", metavar="NAME", help="variant to hold the others against (default: the first one)")
    add("--output", type=Path, required=True, metavar="FOLDER", help="for table and picture")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
