"""The run's state in the terminal view, and races and status in the run log."""

from __future__ import annotations

import contextlib
import cProfile
import logging
import math
import pstats
import threading
import time
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from trackmania_rl.race.race import Race
from trackmania_rl.runs.log import RunStatus
from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.hooks.hook import Hook, Interval

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
MOST_LOSSES: Final = 100
PROFILE_EVERY_S: Final = 60.0
MOST_FUNCTIONS: Final = 15
"""Rows in a profile."""
LEARNER_STALL_S: Final = 900.0
"""Timeout for the training loop. Compiling and saving take less."""


class ShowInTerminal(Hook):
    """Shows the run's figures in a view, which is open until the run ends."""

    def __init__(self, view: TerminalView) -> None:
        self._view = view

    def begin(self) -> None:
        self._view.preview(self.run.statistics)

    @override
    def on_race(self, race: Race) -> None:
        self._view.end_start()

    on_fragment = on_race

    def tick(self) -> None:
        self._view.update(self.run.statistics)

    def end(self) -> None:
        log.info("the training ends: the last checkpoint is written, the collectors stop")
        self._view.try_to_show(self.run.statistics)


class WriteLog(Hook):
    """Writes each race to the run log."""

    @override
    def begin(self) -> None:
        """Mark races after the run's checkpoint as undone. Raise `UserError` if the log cannot be written."""
        n_undone = self.run.run_log.undo_after(self.run.statistics.frames_total)
        if n_undone > 0:
            log.info("%d races that came after the checkpoint are undone", n_undone)

    @override
    def on_race(self, race: Race) -> None:
        statistics = self.run.statistics
        with self.run.surviving_disk():
            self.run.run_log.write(race.facts, statistics.frames_total, statistics.training_s)


class WriteStatus(Hook):
    """Writes the status to the run log every second in a thread, because an update may take longer."""

    def __init__(self) -> None:
        self._status: RunStatus | None = None
        self._raced_at_s: float | None = None
        self._is_due = Interval()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write_repeatedly, name="status", daemon=True)

    def begin(self) -> None:
        self._stamp_progress()
        self._status = self._status_now()
        self._write(self._status)
        self._thread.start()

    @override
    def on_race(self, race: Race) -> None:
        self._raced_at_s = time.monotonic()

    on_fragment = on_race

    def tick(self) -> None:
        """Stamp this training loop pass, and copy the run's figures in the thread that changes them."""
        self._stamp_progress()
        if self._is_due.is_due(EVERY_S):
            self._status = self._status_now()

    def end(self) -> None:
        if self._status is None:
            return
        self._ends.set()
        self._thread.join()
        self._write(self._status_now(is_over=True))

    def _write_repeatedly(self) -> None:
        while not self._ends.wait(EVERY_S):
            assert self._status is not None
            heartbeat = self.run.heartbeat
            heartbeat.beat()
            stamps = {"timestamp_s": heartbeat.at_s, "ticked_at_s": heartbeat.progress_at_s}
            self._write(self._status.model_copy(update=stamps))

    def _write(self, status: RunStatus) -> None:
        with contextlib.suppress(OSError):  # `WriteLog` logs it
            self.run.run_log.write_status(status)

    def _stamp_progress(self) -> None:
        self.run.heartbeat.progress(self.run.settings.run.learner_silence_s, LEARNER_STALL_S)

    def _status_now(self, *, is_over: bool = False) -> RunStatus:
        statistics = self.run.statistics
        now_s = time.monotonic()
        rates = statistics.rates()
        saved_s = statistics.checkpoint_time_s
        losses = [(name, value) for name, value in statistics.last_metrics.items() if math.isfinite(value)]
        return RunStatus(
            is_over=is_over,
            timestamp_s=now_s,
            ticked_at_s=self.run.heartbeat.progress_at_s,
            raced_at_s=self._raced_at_s,
            saved_at_s=None if saved_s is None else now_s - (statistics.elapsed_s - saved_s),
            silence_s=self.run.heartbeat.silence_s,
            stall_s=self.run.heartbeat.stall_s,
            figures={
                "frames_total": statistics.frames_total,
                "races_total": statistics.races_total,
                "races_finished_total": statistics.races_finished_total,
                "updates_total": statistics.updates_total,
                "updates_not_finite_total": statistics.updates_not_finite,
                "races_refused_total": statistics.races_refused,
                "collector_restarts_total": statistics.collector_restarts,
                "collectors_alive": statistics.collectors_alive,
                "sessions_total": self.run.session,
                "frames_per_second": rates.actions_per_s,
                "races_per_second": rates.races_per_s,
                "updates_per_second": rates.batches_per_s,
                "learner_waiting_share": rates.learner_waiting_share,
                "replay_transitions": statistics.replay_transitions,
                "training_seconds_total": statistics.training_s,
            },
            losses=dict(losses[:MOST_LOSSES]),
            maps=statistics.map_rows(),
        )


class ProfileRounds(Hook):
    """Logs where the learner thread's time went, once a minute and at the end.

    A round is the wait for a race or fragment and all work on it.
    """

    def __init__(self) -> None:
        self._is_due = Interval()
        self._n_rounds = 0
        self._profile = cProfile.Profile()

    def begin(self) -> None:
        self._profile.enable()

    @override
    def after_updates(self) -> None:
        self._n_rounds += 1
        if self._is_due.is_due(PROFILE_EVERY_S):
            self.end()
            self._n_rounds = 0
            self._profile = cProfile.Profile()
            self._profile.enable()

    def end(self) -> None:
        self._profile.disable()
        if self._n_rounds == 0:
            return
        stats: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(self._profile).stats  # type: ignore[attr-defined]
        own_s = {function: figures[2] for function, figures in stats.items()}
        total_s = sum(own_s.values())
        lines = [f"profile of {self._n_rounds} rounds of {1000 * total_s / self._n_rounds:.1f} ms; own times:"]
        for file, line, name in sorted(own_s, key=lambda function: -own_s[function])[:MOST_FUNCTIONS]:
            seconds = own_s[file, line, name]
            where = f" ({'/'.join(Path(file).parts[-2:])}:{line})" if line else ""
            lines.append(f"  {seconds / total_s:6.1%} {1000 * seconds / self._n_rounds:9.2f} ms  {name}{where}")
        log.info("%s", "\n".join(lines))
