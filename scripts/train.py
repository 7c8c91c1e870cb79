"""Train a driver: start games and collectors, learn from their races, show and save the progress.

Without options it trains on the simulated game with config_files/config.py. Ctrl-C ends it with a checkpoint; the same
command resumes, or `train.py save/{run_name}`. A run that exists has its own settings, save/{run_name}/settings.toml:
edit that file, also while the run trains, or use --update-config to apply the given configuration again. The words
--batch-size 64 and batch_size=64 are the same as --set batch_size=64.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports below ends it without a traceback

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.cli import (
    TOKEN_VARIABLE,
    add_configuration_arguments,
    command,
    discard_output,
    end_in_order_when_terminated,
    parse_with_plain_words,
    worker_token,
)
from trackmania_rl.errors import ExitCode
from trackmania_rl.multiprocess.supervised import WatchedTraining, supervise
from trackmania_rl.paths import PROJECT_FOLDER, WORKING_FOLDER, command_line_of, shown_path
from trackmania_rl.runs.log import CommandClock, read_status
from trackmania_rl.runs.snapshot import RunConfiguration, with_new_name
from trackmania_rl.seeds import read_seed
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.settings.descriptions import settings_list
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.terminal_view import TerminalView, open_terminal_view

if TYPE_CHECKING:
    from trackmania_rl.channels.over_grpc import WorkerAccess

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Command arguments, each named as the option; `resume_by` are options that a second call also needs."""

    config: Path
    set: Sequence[str]
    map: Sequence[str]
    output_folder: Path
    update_config: bool
    weights_from: Path | None
    accept_change: Sequence[str]
    max_wall_s: float
    max_frames: int
    max_updates: int
    cluster: str | None
    workers: str | None
    worker_token_file: Path | None
    worker_certificate: Sequence[Path] | None
    insecure_workers: bool
    dashboard: bool
    supervised: bool
    list_settings: str | None
    resume_by: Sequence[str] = ()

    def settings_before_maps(self) -> Settings:
        """Return the settings without `--map`; demonstrations, which may be for its maps, are left out."""
        return load_settings(self.config, [*self.set, "demonstrations=()"] if self.map else self.set)

    def with_run_name(self) -> Arguments:
        """Return the arguments with a name for an unnamed run."""
        overrides = with_new_name(self.settings_before_maps(), self.set)
        return replace(self, set=overrides, resume_by=[f"--set={override}" for override in overrides[len(self.set) :]])

    def continued_after(self, watched: WatchedTraining) -> Arguments:
        """Return the arguments for a training that a supervisor has started."""
        is_first = not watched.restart_reason  # later, the run's settings may have been edited
        remaining_s = self.max_wall_s - watched.elapsed_s
        return replace(self, max_wall_s=remaining_s, update_config=self.update_config and is_first)

    def with_maps(self) -> Arguments:
        """Return the arguments with the settings for `--map`."""
        if not self.map:
            return self
        from trackmania_rl.track.named_maps import overrides_for_maps

        settings = self.settings_before_maps()
        chosen = overrides_for_maps(settings, PROJECT_FOLDER / settings.game.maps_folder, self.map)
        return replace(self, set=[*(f"{name}={value!r}" for name, value in chosen.items()), *self.set])

    def worker_access(self) -> WorkerAccess | None:
        """Return where and how workers connect; None without `--workers`."""
        if self.workers is None:
            return None
        token = worker_token(self.worker_token_file)
        from trackmania_rl.channels.over_grpc import WorkerAccess

        return WorkerAccess.of_command(self.workers, token, self.worker_certificate, self.insecure_workers)


@command
def main() -> int:
    arguments = Arguments(**vars(parse_arguments())).with_run_name()
    end_in_order_when_terminated()
    watched = WatchedTraining.by_environment()
    if watched is None and arguments.supervised:
        return supervise([sys.executable, __file__, *sys.argv[1:], *arguments.resume_by])
    with contextlib.nullcontext() if watched is None else watched.heartbeat() as heartbeat:
        gc.disable()  # saves a quarter of the imports' time
        try:
            if watched is None:
                run(arguments.with_maps())
            else:
                run(arguments.continued_after(watched).with_maps(), heartbeat, watched.restart_reason)
        finally:
            gc.freeze()  # skips the last garbage collection on torch's objects, which takes seconds
    return ExitCode.DONE


def run(arguments: Arguments, heartbeat: Heartbeat | None = None, restart_reason: str = "") -> None:
    """Train, or print the settings.

    Args:
        arguments: from the command line.
        heartbeat: read by a supervising process.
        restart_reason: how the previous training ended.
    """
    settings = load_settings(arguments.config, arguments.set)  # before torch's slow import
    if arguments.list_settings is not None:
        print(settings_list(settings, arguments.list_settings, shutil.get_terminal_size().columns))
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    with _shown_at_once(arguments) as view:
        from trackmania_rl.multiprocess.learner_process import BeatForSupervisor
        from trackmania_rl.run import stages_of, train
        from trackmania_rl.telemetry.terminal_view import closing_text
        from trackmania_rl.training.hooks.hook import Hook

        hooks: list[Hook] = []
        if arguments.dashboard:
            from trackmania_rl.telemetry.page.beside_training import ServePage

            hooks.append(ServePage())
        workers = arguments.worker_access()
        if heartbeat is not None:
            hooks.append(BeatForSupervisor(heartbeat, restart_reason))
        stages = stages_of(arguments.config, arguments.output_folder, arguments.set)
        gc.freeze()  # garbage collections skip the modules' many objects
        gc.enable()
        log.info("preparing the run", extra={"phase": "preparing the run"})
        figures = train(
            arguments.config,
            overrides=arguments.set,
            output_folder=arguments.output_folder,
            project_folder=PROJECT_FOLDER,
            update_config=arguments.update_config,
            weights_from=arguments.weights_from,
            accept_change=arguments.accept_change,
            max_wall_s=arguments.max_wall_s,
            max_frames=arguments.max_frames,
            max_updates=arguments.max_updates,
            cluster=arguments.cluster,
            workers=workers,
            hooks=hooks,
            view=view,
        )
    folders = [stage.configuration.folder.path for stage in stages]
    folder = next(filter(Path.exists, reversed(folders)), folders[-1])
    drivers = [shown_path(file) for file in sorted(folder.glob("best_runs/*/*.driver"))]
    evaluate = command_line_of("evaluate")
    try:
        print(closing_text(figures, shown_path(folder), evaluate, drivers, arguments.resume_by), flush=True)
    except OSError:  # a closed pipe or full disk: the run itself has ended well
        discard_output()


@contextlib.contextmanager
def _shown_at_once(arguments: Arguments) -> Iterator[TerminalView]:
    """Show the run in the terminal before torch's slow import."""
    update = arguments.update_config
    configuration = RunConfiguration(arguments.config, arguments.output_folder, arguments.set, update)
    mode = configuration.read().telemetry.terminal_view
    with open_terminal_view(mode, configuration.folder.name) as view:
        log.info("importing torch, torchrl and numba", extra={"phase": "importing"})
        figures = TrainingStatistics(CommandClock(), ends_at_s=arguments.max_wall_s)
        if (status := read_status(configuration.folder.run_log)) is not None:
            figures.load_totals(status.figures)
        view.preview(figures)
        yield view


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_configuration_arguments(parser, PROJECT_FOLDER / "config_files")
    add("--seed", type="seed={}".format, action="append", dest="set", metavar="N", help="the same as --set seed=N")
    repeat = "repeat a run: the seed of its save/RUN/seeds.json; give its settings by --config save/RUN/settings.toml"
    add("--seeds-from", type=lambda file: f"seed={read_seed(Path(file))}", action="append", dest="set", help=repeat)
    maps = (
        "train on this map: a track of maps/ (kart), a track file or line (mine.toml, line.npy), a generated track "
        "(generated:DIFFICULTY:SEED), a map that maps.py add has added; repeatable. The run is called {run_name}_{map}"
    )
    add("--map", action="append", default=[], metavar="NAME", help=maps)
    add(
        "--output-folder", type=Path, default=WORKING_FOLDER, help="holds save/ and tensorboard/ (default: the project)"
    )
    add("--update-config", action="store_true", help="apply --config again to a run that exists")
    weights = "begin a new run with the networks of a run's folder, save/RUN, a checkpoint or a driver's file"
    add("--weights-from", type=Path, metavar="RUN", help=weights)
    accept = "resume although these settings differ from the checkpoint and change the meaning of what was learned"
    add("--accept-change", nargs="+", action="extend", default=[], metavar="NAME", help=accept)
    add("--max-wall-s", type=float, default=float("inf"), metavar="S", help="end after S seconds")
    add("--max-frames", type=int, default=sys.maxsize, metavar="N", help="end when the run has N frames in all")
    cluster = (
        "let collectors play on the machines of a Ray cluster: auto (the one of this machine), HOST:PORT, or local:N, "
        "which makes one of N nodes on this machine (docs/other_machines.rst)"
    )
    add("--cluster", metavar="CLUSTER", help=cluster)
    workers = "serve workers on other machines at this address, such as 0.0.0.0:8470 (docs/other_machines.rst)"
    add("--workers", metavar="HOST:PORT", help=workers)
    add("--worker-token-file", type=Path, metavar="FILE", help=f"holds the workers' token (default: {TOKEN_VARIABLE})")
    add("--worker-certificate", type=Path, nargs=2, metavar=("CRT", "KEY"), help="PEM files of TLS for --workers")
    add("--insecure-workers", action="store_true", help="serve workers beyond this machine without token and TLS")
    add("--max-updates", type=int, default=sys.maxsize, metavar="N", help="end when the run has N updates in all")
    add("--dashboard", action="store_true", help="show the run in a browser as it trains; prints the page's address")
    supervised = "watch the training and start it again if it crashes or hangs, see docs/long_runs.rst"
    add("--supervised", action="store_true", help=supervised)
    listed = "print the settings with WORD in their name, group or description (without WORD: all), and end"
    add("--list-settings", nargs="?", const="", metavar="WORD", help=listed)
    return parse_with_plain_words(parser)


if __name__ == "__mp_main__":
    gc.disable()  # in a collector, which imports this file before all others
if __name__ == "__main__":
    sys.exit(main())
