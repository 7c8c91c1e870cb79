"""The search in Ray Tune. Only this module imports Ray."""

from __future__ import annotations

import logging
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from research.search.outcome import Outcome
from research.search.space import Choices, Range, Space, text_of
from research.search.trial import Plan, RunTraining, Trial
from trackmania_rl.multiprocess.cluster import connected

ENVIRONMENT: Final = {
    "RAY_kill_child_processes_on_worker_exit": "false",  # trainings end in order, with their games
    "RAY_USAGE_STATS_ENABLED": "0",  # reports to its makers otherwise
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Variables of Ray that the user has not set."""
EXPERIMENT: Final = "search"
RAY_FOLDER: Final = "ray"
"""Tune's state, in the search's folder."""
KEPT: Final = 4
"""Checkpoints of each trial: with two, a donor's may be deleted before its clone begins."""
PIECES: Final = "training_iteration"
TRIES_AGAIN: Final = 1
"""Retries of a failed training from its last checkpoint."""


def cores_for(jobs: int, cores_each: int) -> int:
    """Return the processors that a trial requests from a cluster so that `jobs` trials run at a time.

    A trial can use `cores_each`; on a smaller machine it gets all of them.
    """
    of_nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return max(1, min(max(cores_each, sum(of_nodes) // jobs), max(of_nodes)))


@contextmanager
def ray_running(address: str | None, cores: int) -> Iterator[None]:
    """Join a cluster at an address as of `train.py --cluster`, or run Ray with `cores` on this machine's loopback.

    Raises:
        UserError: if the cluster cannot be joined.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with _connected_here(cores) if address is None else connected(address), _terminated_as_interrupted():
        yield


@contextmanager
def _connected_here(cores: int) -> Iterator[None]:
    ray.init(
        "local",
        num_cpus=cores,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
    )
    try:
        yield
    finally:
        ray.shutdown()


def search(
    plan: Plan, scheduler: str, trials: int, pieces: int, cores_each: int, run: RunTraining | None = None
) -> None:
    """Run all trials, or the rest of an interrupted search; results go to `Outcome`.

    Args:
        plan: of the search.
        scheduler: "pbt", "asha" or "random".
        trials: their number.
        pieces: of each training.
        cores_each: processors that a trial requests from Ray. They bound the trials at a time: PBT needs all trials to
            exist from the beginning, and gives each its turn.
        run: runs a training's command in the trial's process; None for `run_watched`.
    """
    storage = plan.output / RAY_FOLDER
    trainable = tune.with_resources(tune.with_parameters(drive_trial, plan=plan, run=run), {"cpu": cores_each})
    space = _domains(plan.space)
    if tune.Tuner.can_restore(str(storage / EXPERIMENT)):
        tuner = tune.Tuner.restore(str(storage / EXPERIMENT), trainable, resume_errored=True, param_space=space)
    else:
        random.seed(plan.seed)  # PBT's source
        np.random.seed(plan.seed)  # noqa: NPY002
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="score",
                mode="max",
                num_samples=trials,
                search_alg=BasicVariantGenerator(random_state=plan.seed),
                reuse_actors=True,
                scheduler=_scheduler(scheduler, plan.space, pieces),
            ),
            run_config=tune.RunConfig(
                name=EXPERIMENT,
                storage_path=str(storage),
                stop={PIECES: pieces},
                checkpoint_config=tune.CheckpointConfig(num_to_keep=KEPT),
                failure_config=tune.FailureConfig(max_failures=TRIES_AGAIN),
                callbacks=[NoteResults(plan.output, pieces)],
                verbose=0,
            ),
        )
    tuner.fit()


def drive_trial(config: Mapping[str, Any], plan: Plan, run: RunTraining | None) -> None:
    """Drive a trial until Tune ends it; report every piece with its checkpoint, as PBT copies at each report."""
    trial = Trial(plan, _number(tune.get_context().get_trial_id()), config, run)
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        trial.begin(None)
    else:
        with checkpoint.as_directory() as handed_on:
            trial.begin(Path(handed_on))
    while True:
        report = trial.drive()
        with tempfile.TemporaryDirectory(dir=plan.output, prefix=f".{trial.name}_") as folder:
            trial.hand_on(Path(folder))
            tune.report(asdict(report), checkpoint=tune.Checkpoint.from_directory(folder))


class NoteResults(tune.Callback):
    """Writes and prints the result of each piece."""

    def __init__(self, output: Path, pieces: int) -> None:
        self._output = output
        self._pieces = pieces

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Add a piece."""
        name = _name(trial)
        Outcome(self._output).add(name, trial.config, result["score"], result["frames"])
        print(
            f"{name}: {result[PIECES]}/{self._pieces}, score {result['score']:.3f}, {result['frames']:,} frames; "
            f"{text_of(trial.config)}",
            flush=True,
        )

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """End a trial that is complete or worse than others."""
        Outcome(self._output).end(_name(trial), "complete")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """End a failed trial with its reason."""
        lines = Path(trial.error_file).read_text(encoding="utf-8").splitlines() if trial.error_file else []
        why = next((line for line in reversed(lines) if line.strip()), "")
        Outcome(self._output).end(_name(trial), "failed", why.partition("Error: ")[2] or why)


def _number(trial_id: str) -> int:
    """Return a trial's number, with which Tune ends its id."""
    return int(trial_id.rpartition("_")[2])


def _name(trial: Any) -> str:
    return f"trial_{_number(trial.trial_id):05d}"


def _scheduler(name: str, space: Space, pieces: int) -> TrialScheduler:
    if name == "pbt":
        return PopulationBasedTraining(
            time_attr=PIECES,
            perturbation_interval=1,
            hyperparam_mutations={
                entry: list(what.choices) if isinstance(what, Choices) else _domain(what, space.whole_numbers(entry))
                for entry, what in space.entries.items()
            },
            custom_explore_fn=space.within,
        )
    if name == "asha":
        return ASHAScheduler(time_attr=PIECES, max_t=pieces, grace_period=1, reduction_factor=2)
    return FIFOScheduler()


def _domains(space: Space) -> dict[str, Any]:
    return {name: _domain(entry, space.whole_numbers(name)) for name, entry in space.entries.items()}


def _domain(entry: Range | Choices, whole: bool) -> Any:
    if isinstance(entry, Choices):
        return tune.choice(list(entry.choices))
    if whole:  # Tune excludes the upper end
        return (tune.lograndint if entry.log else tune.randint)(int(entry.low), int(entry.high) + 1)
    return (tune.loguniform if entry.log else tune.uniform)(entry.low, entry.high)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """End the search by SIGTERM as by Ctrl-C, which Tune handles; Ray takes SIGTERM for itself."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
