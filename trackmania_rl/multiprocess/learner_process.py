"""The learner's process, which is the main one: it starts the collectors, learns from their races and ends the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.learner import CarryOut
from trackmania_rl.agents.run_network import pick_device
from trackmania_rl.agents.threads import pick_learner_threads
from trackmania_rl.channels.protocols import Channels, ReceivedRollout
from trackmania_rl.multiprocess.collector_logs import CollectorLogs
from trackmania_rl.multiprocess.supervisor import CollectorSupervisor
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.learner import build_learning
from trackmania_rl.training.monitor import Interval, RunMonitor

POLL_S = 0.1
"""How long the learner waits for a race before it looks after the run."""


def learner_process_fn(
    live: LiveSettings,
    network: IQN_Network,
    layout: ObservationLayout,
    seeds: SeedTree,
    channels: Channels,
    logs: CollectorLogs,
    supervisor: CollectorSupervisor,
    monitor: RunMonitor,
    view: TerminalView,
    should_stop: Callable[[], bool],
    interruptibly: CarryOut = lambda work: work(),
) -> None:
    """Learn until `should_stop()`; then end the collectors and write a last checkpoint.

    The update is compiled by `interruptibly`, since it would let a stop wait.

    Raises:
        CheckpointError: if the run's checkpoint cannot be read, does not fit, or has weights that are not finite.
        CollectorsKeepDyingError: if no collector can be kept alive; what was learned is saved first.
        UserError: if the weights are no longer finite numbers; the checkpoints written before stay as they are.
    """
    settings = live.current
    torch.set_num_threads(pick_learner_threads(settings, network, pick_device(settings.run.torch_device)))
    looks = Interval()

    def publish() -> None:
        channels.run_state.publish(settings=live.current, frames_total=monitor.statistics.frames_total)

    def housekeeping() -> None:
        publish()
        if looks.is_due(POLL_S):
            monitor.observe()
            supervisor.check()
            view.update(monitor.statistics)

    def receive() -> ReceivedRollout | None:
        race = channels.rollouts.get(POLL_S)
        if race is not None:
            supervisor.delivered(race.collector)
        return race

    learning = build_learning(
        live,
        network,
        layout,
        seeds,
        run_state=channels.run_state,
        receive=receive,
        should_stop=should_stop,
        on_race=monitor.on_race,
        housekeeping=housekeeping,
    )
    monitor.attach(learning)
    publish()
    with ExitStack() as at_end:  # what is entered last is done first, and everything is done whatever fails
        at_end.enter_context(view)
        at_end.enter_context(logs)  # inside the view, which shows the messages
        at_end.callback(monitor.close)
        at_end.callback(channels.rollouts.close)
        at_end.callback(supervisor.stop)
        at_end.callback(monitor.try_to_save)
        at_end.callback(channels.run_state.publish, stop=True)  # so that collectors end while the checkpoint is written
        supervisor.start()
        if settings.run.use_torch_compile and not should_stop():
            learning.rehearse(interruptibly)  # the collectors start and compile meanwhile
        learning.trainer.train()
