"""A driver as one file: weights and settings of a run, without code.

scripts/evaluate.py and load_driver drive it, scripts/train.py --weights-from trains it further: see docs/drivers.rst.

Examples:
  python scripts/tools/driver.py pack save/simulated
  python scripts/tools/driver.py show simulated.driver
  python scripts/tools/driver.py configuration simulated.driver
  python scripts/tools/driver.py export simulated.driver --onnx simulated.onnx
  python scripts/tools/driver.py push simulated.driver USER/valley
  python scripts/tools/driver.py pull USER/valley
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command
from trackmania_rl.errors import UserError
from trackmania_rl.paths import IS_CHECKOUT, SHIPPED_FOLDER, command_line_of
from trackmania_rl.telemetry.tables import PlainConsole

from rich.table import Table
from rich.text import Text


@command
def main(words: list[str] | None = None) -> None:
    arguments = parse_arguments(words)
    arguments.run(arguments)


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add_command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    packing = add_command("pack", pack, "write the trained network of a run as a driver file")
    packing.add_argument("source", type=Path, metavar="RUN", help="the run's folder, save/{run_name}")
    packing.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="of this run (default: the newest one)")
    packing.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: {run_name}.driver, here")
    packing.add_argument("--force", action="store_true", help="overwrite another driver of that name")

    showing = add_command("show", show, "print the contents of a driver file; nothing in it is run")
    showing.add_argument("file", type=Path, metavar="FILE", help="NAME.driver")

    writing = add_command(
        "configuration", configuration, "write a driver's settings as a configuration, to train it further"
    )
    writing.add_argument("file", type=Path, metavar="FILE", help="NAME.driver")
    where = "beside config.py (default: config_files/config_NAME.py)"
    writing.add_argument("-o", "--output", type=Path, metavar="FILE", help=where)

    exporting = add_command("export", export, "write a driver's greedy policy as ONNX, for programs without torch")
    exporting.add_argument("source", type=Path, metavar="RUN|FILE", help="save/{run_name}, or NAME.driver")
    exporting.add_argument("--onnx", type=Path, metavar="FILE", required=True, help="NAME.onnx, to be written")

    pushing = add_command("push", push, "upload a driver file to the Hugging Face Hub (package huggingface-hub)")
    pushing.add_argument("file", type=Path, metavar="FILE", help="NAME.driver")
    pushing.add_argument("repository", metavar="USER/NAME", help="made if it does not exist")
    pushing.add_argument("--private", action="store_true", help="make a repository that only you can see")

    pulling = add_command("pull", pull, "fetch a driver file from the Hugging Face Hub")
    pulling.add_argument("repository", metavar="USER/NAME[/FILE]", help="FILE may be left out if it is the only one")
    pulling.add_argument("--revision", metavar="NAME", help="a branch, tag or commit (default: the newest state)")
    pulling.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: the same name, here")
    return parser.parse_args(words)


def pack(arguments: argparse.Namespace) -> None:
    # Slow imports.
    from trackmania_rl.drivers.driver_file import ENDING, write_driver
    from trackmania_rl.drivers.loading import load_run_settings, own_code, pack_run

    code = own_code(load_run_settings(arguments.source))  # raises for a driver file
    driver = pack_run(arguments.source, arguments.checkpoint)
    file = arguments.output or Path(f"{driver.card.name}{ENDING}")
    if file.suffix != ENDING:
        raise UserError(f"--output {file}: a driver's file is called NAME{ENDING}")
    if file.exists() and not arguments.force:
        raise UserError(f"{file} is there already: name another file with --output, or add --force to overwrite it")
    write_driver(file, driver)
    print(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB)")
    if code:
        print(f"driving it also needs this code of yours: {'; '.join(code)}")


def show(arguments: argparse.Namespace) -> None:
    table = Table(show_header=False)
    for heading, text in described(arguments.file).items():
        table.add_row(heading, Text(text))
    PlainConsole(width=None if sys.stdout.isatty() else 120).print(table)


def described(file: Path) -> dict[str, str]:
    from trackmania_rl.drivers.driver_file import read_driver
    from trackmania_rl.drivers.loading import own_code, settings_here
    from trackmania_rl.telemetry.terminal_view import format_time

    driver = read_driver(file)
    settings = settings_here(file, driver.card)
    card, game, image = driver.card, settings.game, driver.card.interface.image_shape
    tracks = [
        f"{track.map_name} {'not finished' if track.best_time_ms is None else format_time(track.best_time_ms)}"
        for track in card.tracks
    ]
    actions, blocks = card.interface.actions, len(card.interface.blocks)
    duration = settings.replay.temporal_mini_race_duration_actions
    of_blocks = f" in {blocks} blocks" if blocks else ""
    on = f"among {len(actions)}: " if game.actions == "keys" else "on "
    return {
        "driver": card.name,
        "best times": ", ".join(tracks),
        "trained": f"{card.frames_total:,} frames, {card.training_s / 60:.1f} minutes",
        "sees": f"{card.interface.n_floats} floats{of_blocks}, "
        + (f"image of {image[2]} x {image[1]} pixels, {image[0]} at a time" if image[1] else "no image"),
        "decides": f"every {game.ms_per_action} ms {on}{', '.join(actions)}",
        "mini-race": "none" if duration is None else f"{duration} actions",
        "network": f"{driver.n_parameters:,} parameters",
        "agent": str(settings.agent.agent),
        "needs code": "; ".join(own_code(settings)) or "none but this program",
        "packed by": f"version {card.program}",
    }


def configuration(arguments: argparse.Namespace) -> None:
    from trackmania_rl.drivers.driver_file import read_driver
    from trackmania_rl.drivers.loading import CONFIG_FILE, settings_here
    from trackmania_rl.settings import DRIVER_SETTINGS

    driver = read_driver(arguments.file)
    settings = settings_here(arguments.file, driver.card)
    groups = (group.model_dump(include=set(DRIVER_SETTINGS), warnings=False) for _, group in settings)
    lines = [f"{name} = {value!r}\n" for group in groups for name, value in group.items()]
    head = f'"""The settings of the driver {arguments.file.name}."""\n\nbased_on = "{CONFIG_FILE.name}"\n\n'
    file = arguments.output or CONFIG_FILE.parent / f"config_{re.sub(r'[^A-Za-z0-9]', '_', driver.card.name)}.py"
    if not IS_CHECKOUT and file.is_relative_to(SHIPPED_FOLDER):
        raise UserError("copy the configurations here first (python -m trackmania_rl init), or use --output")
    if file.exists():
        raise UserError(f"{file} is there already: name another file with --output")
    try:
        file.write_text(head + "".join(lines), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
    how = f"--config {file} --weights-from {arguments.file} --set run_name=NEW"
    print(f"wrote {file}; train the driver further with\n  {command_line_of('train')} {how}")


def export(arguments: argparse.Namespace) -> None:
    from trackmania_rl.drivers.evaluation import load_driver
    from trackmania_rl.drivers.onnx_export import export_onnx

    export_onnx(load_driver(arguments.source, torch_device="cpu"), arguments.onnx)
    print(f"wrote {arguments.onnx} ({arguments.onnx.stat().st_size / 1e6:.1f} MB)")


def push(arguments: argparse.Namespace) -> None:
    from trackmania_rl.drivers.hub import push_driver

    page = push_driver(arguments.file, arguments.repository, described(arguments.file), is_private=arguments.private)
    print(f"{arguments.file} is at {page}")


def pull(arguments: argparse.Namespace) -> None:
    from trackmania_rl.drivers.hub import pull_driver

    user, _, rest = arguments.repository.partition("/")
    name, _, file = rest.partition("/")
    written = pull_driver(f"{user}/{name}" if name else user, file, arguments.output, arguments.revision)
    print(f"wrote {written}; look at it with {command_line_of('tools/driver')} show {written}")


if __name__ == "__main__":
    sys.exit(main())
