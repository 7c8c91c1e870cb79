"""Train a driver: start games and collectors, learn from their races, show and save what happens.

Without options it trains on the simulated game with config_files/config.py. Ctrl-C ends it with a checkpoint; the same
command goes on from there. A run that exists goes on with its own copy of the configuration, save/{run_name}/config/:
edit that copy (you may do so while the run trains), or use --update-config to take the given file again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.command_line import command, end_in_order_when_terminated  # noqa: E402
from trackmania_rl.errors import UserError, one_line  # noqa: E402
from trackmania_rl.settings import Settings, changed_settings, load_settings, settings_table  # noqa: E402

if TYPE_CHECKING:
    from trackmania_rl.checkpoints import RunFolder

log = logging.getLogger("train")


@command
def main() -> None:
    """Run the command line."""
    arguments = parse_arguments()
    end_in_order_when_terminated()  # until `StopConditions` takes over
    try:
        if arguments.list_settings:
            list_settings(load_settings(arguments.config, arguments.set))
        else:
            train(arguments)
    finally:
        gc.freeze()  # skips the garbage collector's last pass over torch's objects, which takes seconds


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config", type=Path, default=PROJECT / "config_files" / "config.py", help="configuration file")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting; may be repeated")
    add("--output-folder", type=Path, default=PROJECT, help="holds save/ and tensorboard/ (default: the project)")
    add("--update-config", action="store_true", help="a run that exists takes --config (and --set) anew")
    add(
        "--weights-from",
        type=Path,
        metavar="RUN",
        help="begin a new run with the networks of another one: its folder, save/RUN, or a checkpoint",
    )
    add("--max-wall-s", type=float, default=float("inf"), metavar="S", help="end after S seconds")
    add("--max-frames", type=int, default=sys.maxsize, metavar="N", help="end when the run has N frames in all")
    add("--list-settings", action="store_true", help="print every setting with value, unit and range, and end")
    return parser.parse_args()


def list_settings(settings: Settings) -> None:
    """Print every setting with its value, unit and range."""
    from rich.console import Console

    Console().print(settings_table(settings))


def train(arguments: argparse.Namespace) -> None:
    """Take hold of the run's folder, and learn."""
    asked_for = load_settings(arguments.config, arguments.set)  # of a run that exists, only its name counts
    # Torch takes seconds to import: after the command line and its mistakes.
    from trackmania_rl.checkpoints import RunFolder
    from trackmania_rl.multiprocess.run_setup import training_alone

    folder = RunFolder.create(arguments.output_folder, asked_for.run.run_name)
    with training_alone(folder):
        learn(arguments, folder)


def learn(arguments: argparse.Namespace, folder: RunFolder) -> None:
    """Check what can be checked, set up the run, and learn until it is to end."""
    import torch

    from trackmania_rl.agents.run_network import make_network, pick_device
    from trackmania_rl.doctor.run_checks import check_edited_maps, load_reference_lines
    from trackmania_rl.multiprocess.collector_logs import CollectorLogs
    from trackmania_rl.multiprocess.learner_process import learner_process_fn
    from trackmania_rl.multiprocess.run_setup import check_machine, count_session, make_supervisor, open_run_channels
    from trackmania_rl.multiprocess.stop_conditions import StopConditions
    from trackmania_rl.race.observation import ObservationLayout
    from trackmania_rl.seeds import SeedTree
    from trackmania_rl.settings.live import SNAPSHOT_FILE, LiveSettings, SnapshotKeeper
    from trackmania_rl.telemetry.race_record import CommandClock
    from trackmania_rl.telemetry.statistics import TrainingStatistics
    from trackmania_rl.telemetry.terminal_view import open_terminal_view
    from trackmania_rl.track.reference_times import load_reference_times
    from trackmania_rl.training.demonstrations import load_demonstrations
    from trackmania_rl.training.monitor import RunMonitor

    clock = CommandClock()
    statistics = TrainingStatistics(clock)
    should_stop = StopConditions(
        arguments.max_wall_s, arguments.max_frames, clock, frames_total=lambda: statistics.frames_total
    )
    snapshot_file = folder.config / SNAPSHOT_FILE
    is_new = arguments.update_config or not snapshot_file.is_file()
    settings = load_settings(arguments.config if is_new else snapshot_file, arguments.set)
    maps_folder = PROJECT / settings.game.maps_folder
    with telling_which_configuration(arguments, snapshot_file, is_new):
        reference_lines_m = load_reference_lines(settings, maps_folder)
        statistics.reference_times = load_reference_times(settings.game.map_cycle, maps_folder)
        demonstrations = load_demonstrations(settings.game, PROJECT)
        seeds = SeedTree(settings.run.seed)
        layout = ObservationLayout.from_settings(settings.observation)
        network = make_network(settings, layout, seeds)
        check_machine(settings, folder.path)
    log_file = log_to(folder.log)
    try:
        with SnapshotKeeper(folder.config) as configuration:
            settings = write_configuration(arguments, snapshot_file, is_new)
            live = LiveSettings(
                snapshot_file,
                settings,
                check=functools.partial(check_edited_maps, maps_folder=maps_folder),
            )

            def begin_the_run() -> None:
                configuration.keep()
                with contextlib.suppress(OSError):  # a disk that fails is told where it matters
                    seeds.write_json(folder.seeds)  # by now the learner's parts have drawn theirs

            session = count_session(folder)
            channels = open_run_channels(settings, layout, seeds)
            logs = CollectorLogs()
            log.info(
                "%s: seed %d, a network of %s parameters on %s, maps %s",
                folder.path,
                settings.run.seed,
                f"{sum(parameter.numel() for parameter in network.parameters()):,}",
                pick_device(settings.run.torch_device),
                ", ".join(dict.fromkeys(entry.map_name for entry in settings.game.map_cycle)),
            )
            learner_process_fn(
                live,
                network,
                layout,
                seeds,
                channels,
                logs,
                supervisor=make_supervisor(channels, logs.queue, folder, maps_folder, session, demonstrations),
                monitor=RunMonitor(
                    live,
                    folder,
                    statistics,
                    clock,
                    session,
                    reference_lines_m,
                    learner_waited_s=lambda: channels.rollouts.waited_s,
                    weights_from=arguments.weights_from,
                    on_attached=begin_the_run,
                ),
                view=open_terminal_view(settings.telemetry.terminal_view, settings.run.run_name),
                should_stop=should_stop,
                interruptibly=should_stop.interruptibly,
            )
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the GPU's memory is full: {one_line(error)}; end other programs that use it, or lower n_collectors, "
            "batch_size or memory_size_schedule"
        ) from error
    except UserError as error:  # `command` tells the terminal, which may be gone when somebody looks
        log_file.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, "the training ends: %s", (error,), None))
        raise
    with contextlib.suppress(OSError):  # nobody may be there to read it
        print(f"{statistics.races_total:,} races, {statistics.frames_total:,} frames; everything is in {folder.path}")


def write_configuration(arguments: argparse.Namespace, snapshot_file: Path, is_new: bool) -> Settings:
    """Write the run's own configuration once all is checked, so that no mistake outlives its command.

    Args:
        arguments: the command line.
        snapshot_file: the run's own configuration.
        is_new: whether it is taken from the command line; else it goes on, with the overrides after its own lines.

    Returns:
        The settings in force.
    """
    from trackmania_rl.settings.live import append_overrides, write_snapshot

    if is_new:
        write_snapshot(arguments.config, snapshot_file.parent, arguments.set)
        return load_settings(snapshot_file)
    if changed_settings(load_settings(snapshot_file), load_settings(snapshot_file, arguments.set)):
        append_overrides(snapshot_file, arguments.set)
    if remark := remark_on_differences(arguments, snapshot_file):
        log.warning("going on with %s", remark)
    return load_settings(snapshot_file)


def remark_on_differences(arguments: argparse.Namespace, snapshot_file: Path) -> str:
    """How the configuration of a run that exists differs from the one of the command line; empty if it does not."""
    asked_for, own = (load_settings(file, arguments.set) for file in (arguments.config, snapshot_file))
    names = ", ".join(sorted(changed_settings(asked_for, own)))
    return names and (
        f"{snapshot_file}, which differs from {arguments.config} in: {names} (--update-config takes the latter)"
    )


@contextlib.contextmanager
def telling_which_configuration(arguments: argparse.Namespace, snapshot_file: Path, is_new: bool) -> Iterator[None]:
    """Add to an error that a run which exists has a configuration of its own: to mend another one changes nothing."""
    try:
        yield
    except UserError as error:
        if is_new or not (remark := remark_on_differences(arguments, snapshot_file)):
            raise
        raise UserError(f"{error}; this run goes on with {remark}") from error


def log_to(file: Path) -> logging.Handler:
    """Log to the terminal, with the time of day, and to the run's file, with the date as well: a run may take weeks.

    Returns:
        What writes the file.
    """
    line = "%(asctime)s %(levelname)s %(message)s"
    terminal, log_file = logging.StreamHandler(), logging.FileHandler(file, encoding="utf-8")
    terminal.setFormatter(logging.Formatter(line, "%H:%M:%S"))
    log_file.setFormatter(logging.Formatter(line, "%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=(terminal, log_file))
    return log_file


if __name__ == "__main__":
    sys.exit(main())
