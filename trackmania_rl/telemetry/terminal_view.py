"""Terminal output for a run: a live table, plain lines, and the closing text.

A view draws at an interval, in the thread that calls `update`. Before the first call a live view thread draws,
which Ctrl-C does not interrupt.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.race.race import RACE_KINDS
from trackmania_rl.runs.log import CommandClock
from trackmania_rl.telemetry.statistics import MapStatistics, RaceHistory, TrainingStatistics
from trackmania_rl.telemetry.tables import PlainConsole

LIVE_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 5.0
N_MESSAGES = 6
FEWEST_MESSAGE_LINES = 4
"""Times to beat leave so many lines to the messages, with the blank one above."""
LINES_OF_FRAME = 3
"""Border above and below, and the cursor line."""
MOST_TIMES_TO_BEAT = 3
"""Maps with which times to beat are shown, at most."""
MOST_CLOSING_MAPS = 5
RACE_HEADINGS = ("races", "finished", "recent", "best", "last", "median")
EPISODE_HEADINGS = ("episodes", "return", "best", "last", "length")
"""Columns for a custom environment; return and length are means over the recent episodes."""
MOST_POINTS_WITH_FRACTIONS = 1000.0
NOTHING = "-"
"""Placeholder for a missing value."""

MEDALS = ("author", "gold", "silver", "bronze")
LEVEL_STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red", logging.CRITICAL: "bold red"}


def open_terminal_view(
    mode: Literal["auto", "live", "plain", "off"], run_name: str, console: Console | None = None
) -> TerminalView:
    """Return the view for a mode; "auto" is "live" in a terminal and "plain" elsewhere."""
    console = console or _PatientConsole()
    if mode == "auto":
        mode = "live" if console.is_terminal and not console.is_dumb_terminal else "plain"
    if mode == "live":
        return LiveView(run_name, console)
    return PlainView(console) if mode == "plain" else TerminalView()


class _PatientConsole(PlainConsole):
    def on_broken_pipe(self) -> None:  # rich would end the program
        raise BrokenPipeError


class TerminalView:
    """View that shows nothing. Leaving the context restores the terminal."""

    interval_s = float("inf")

    def __init__(self) -> None:
        self._next_s = 0.0

    def update(self, figures: TrainingStatistics) -> None:
        """Show the figures if the interval is over; terminal errors are ignored."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self.interval_s
            self.try_to_show(figures)

    def try_to_show(self, figures: TrainingStatistics) -> None:
        """Show the figures now; terminal errors are ignored."""
        with contextlib.suppress(OSError):  # a full disk behind a redirection, a closed pipe
            self.show(figures)

    def show(self, figures: TrainingStatistics) -> None:
        """Show the figures now."""

    def preview(self, figures: TrainingStatistics) -> None:
        """Take the figures that the live view shows until the first `update`."""

    def end_start(self) -> None:
        """End the start phase display."""

    def __enter__(self) -> TerminalView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


class PlainView(TerminalView):
    """One line every few seconds, for files and pipes."""

    interval_s = PLAIN_INTERVAL_S

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    @override
    def show(self, figures: TrainingStatistics) -> None:
        print(plain_line(figures), file=self._console.file, flush=True)


class LiveView(TerminalView):
    """Table in place, with log messages. Printed text appears above it."""

    interval_s = LIVE_INTERVAL_S

    def __init__(self, run_name: str, console: Console) -> None:
        super().__init__()
        self._run_name = run_name
        self._messages = _RecentMessages()
        self._figures = TrainingStatistics(CommandClock())
        self._is_updated = threading.Event()
        self._start_drawer = threading.Thread(target=self._draw_start, name="terminal", daemon=True)
        self._silenced: list[logging.Handler] = []
        # rich writes what is printed above the table.
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=True, redirect_stderr=True)

    @override
    def update(self, figures: TrainingStatistics) -> None:
        self._end_start_drawer()
        super().update(figures)

    @override
    def preview(self, figures: TrainingStatistics) -> None:
        self._figures = figures

    @override
    def show(self, figures: TrainingStatistics) -> None:
        self._figures = figures
        if self._is_updated.is_set():
            self._draw()

    def _draw(self) -> None:
        picture = render(self._figures, self._run_name, tuple(self._messages.recent), self._messages.phases)
        # The terminal shows ^C at the cursor: in a separate line, it does not move the table.
        self._live.update(Group(picture, Text()), refresh=True)

    @override
    def end_start(self) -> None:
        self._messages.phases = None

    def _draw_start(self) -> None:
        while not self._is_updated.is_set():
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._draw()
            self._is_updated.wait(self.interval_s)

    def _end_start_drawer(self) -> None:
        if not self._is_updated.is_set():
            self._is_updated.set()
            self._start_drawer.join()

    def __enter__(self) -> LiveView:
        root = logging.getLogger()
        # These hold the terminal's stream and would write across the table.
        self._silenced = [handler for handler in root.handlers if _writes_to_terminal(handler)]
        for handler in self._silenced:
            root.removeHandler(handler)
        root.addHandler(self._messages)
        self._live.start()
        self._start_drawer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_start_drawer()
        self.try_to_show(self._figures)
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._live.stop()
        root = logging.getLogger()
        root.removeHandler(self._messages)
        for handler in self._silenced:
            root.addHandler(handler)


class _RecentMessages(logging.Handler):
    """Log handler that keeps the newest messages and the start phases.

    Attributes:
        recent: (time of day, level, one text line), oldest first.
        phases: by process, phase name and start time; None after the start.
    """

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self.recent: deque[tuple[str, int, str]] = deque(maxlen=N_MESSAGES)
        self.phases: dict[int | None, tuple[str, float]] | None = {}

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(record, "phase", None)
        if name is not None and self.phases is not None:
            self.phases = self.phases | {record.process: (name, record.created)}
            return
        time_of_day = time.strftime("%H:%M:%S", time.localtime(record.created))
        self.recent.append((time_of_day, record.levelno, " ".join(record.getMessage().split())))


def _writes_to_terminal(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    return stream is not None and hasattr(stream, "isatty") and stream.isatty()


def render(
    figures: TrainingStatistics,
    run_name: str,
    messages: Sequence[tuple[str, int, str]] = (),
    phases: Mapping[int | None, tuple[str, float]] | None = None,
) -> RenderableType:
    """Return the live view's table.

    Messages are (time of day, `logging` level, text), oldest first. Start phases are (name, time) by process.
    """
    times = f"{_duration(figures.elapsed_s)} since the start, {_duration(figures.training_s)} in all"
    if figures.left_s < math.inf:
        times = f"{_duration(figures.left_s)} left, {times}"
    return Panel(
        _Fitted(figures, messages, phases),
        title=Text(run_name, style="bold"),
        title_align="left",
        subtitle=f"{times} · Ctrl-C ends",
        subtitle_align="right",
        border_style="cyan",
        padding=(0, 1),
    )


class _Fitted:
    """Figures, map table, times to beat and messages; the newest messages, and times, as far as there is room."""

    def __init__(
        self,
        figures: TrainingStatistics,
        messages: Sequence[tuple[str, int, str]],
        phases: Mapping[int | None, tuple[str, float]] | None,
    ) -> None:
        self._messages, self._times = _MessageLines(messages), _times_to_beat(figures)
        self._figures = Group(_overview(figures, phases), Text(), _map_table(figures))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def lines(part: RenderableType) -> list[list[Segment]]:
            return console.render_lines(part, options.update(height=None), new_lines=True)

        n_free = options.max_height - LINES_OF_FRAME - len(lines(self._figures))
        yield self._figures
        if self._times is not None and len(lines(self._times)) <= n_free - FEWEST_MESSAGE_LINES:
            n_free -= len(lines(self._times))
            yield self._times
        messages = lines(self._messages)[-min(N_MESSAGES, max(0, n_free - 1)) :] if n_free > 1 else []
        if messages:
            yield Text()
            for line in messages:
                yield from line


def _overview(figures: TrainingStatistics, phases: Mapping[int | None, tuple[str, float]] | None) -> RenderableType:
    rates = figures.rates()
    rows: dict[str, Mapping[str, str] | str] = {
        "starting": _phases_text(phases) if phases else "",
        "driving": {
            "frames": f"{figures.frames_total:,}",
            "races": f"{figures.races_total:,}",
            "actions/s": f"{rates.actions_per_s:,.0f}",
            "races/min": f"{60 * rates.races_per_s:.1f}",
            "waiting": _percent(figures.collectors_waiting_share),
        },
        "learning": {
            "batches": f"{figures.updates_total:,}",
            "batches/s": f"{rates.batches_per_s:.1f}",
            "waiting": _percent(rates.learner_waiting_share),
        }
        | _named_values(figures.last_metrics),
        "schedules": _named_values(figures.current_values) or NOTHING,
        "replay": f"{figures.replay_transitions:,} of {figures.replay_capacity:,} transitions"
        if figures.replay_capacity > 0  # no replay memory otherwise
        else "",
        "checkpoint": _checkpoint_age(figures),
        "hooks": _named_values(figures.hook_figures),
    }
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="cyan")
    grid.add_column(ratio=1)
    for label, content in rows.items():
        if isinstance(content, Mapping) and content:
            pairs = [Text.assemble((f"{name} ", "dim"), value) for name, value in content.items()]
            grid.add_row(label, Columns(pairs, padding=(0, 3)))
        elif content:
            grid.add_row(label, Text(str(content)))
    return grid


def _phases_text(phases: Mapping[int | None, tuple[str, float]]) -> str:
    began_s: dict[str, float] = {}
    for name, phase_began_s in phases.values():
        began_s[name] = min(began_s.get(name, math.inf), phase_began_s)
    return ", ".join(f"{name} {max(0.0, time.time() - phase_began_s):.0f} s" for name, phase_began_s in began_s.items())


def _map_table(figures: TrainingStatistics) -> RenderableType:
    if not figures.maps:
        return Text("No race yet." if figures.races_total == 0 else "", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="cyan")
    table.add_column("map")  # the one column that wraps where the terminal is narrow
    table.add_column("", no_wrap=True)
    for heading in EPISODE_HEADINGS if figures.is_custom_env else RACE_HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for map_name, of_map in figures.maps.items():
        times = figures.reference_times.get(map_name)
        first_cell = map_name
        for kind, history in of_map.kinds.items():
            if history.n_races > 0:
                table.add_row(Text(first_cell, style="bold"), RACE_KINDS[kind], *_history_cells(history, times))
                first_cell = ""
    return table


def _times_to_beat(figures: TrainingStatistics) -> RenderableType | None:
    """Return a line with the times to beat for each map; None without any, or for many maps."""
    times_of_maps = [(name, times) for name, times in figures.reference_times.items() if name in figures.maps]
    to_beat = [f"{name}: {times_text(times)}" for name, times in times_of_maps]
    return Text("\n".join(to_beat), style="dim") if 0 < len(to_beat) <= MOST_TIMES_TO_BEAT else None


def times_text(times: MedalTimes) -> str:
    """Return the times to beat on a map as text."""
    of_medals = {name: getattr(times, f"{name}_ms") for name in MEDALS}
    return ", ".join(f"{name} {format_time(time_ms)}" for name, time_ms in of_medals.items() if time_ms is not None)


def _history_cells(history: RaceHistory, times: MedalTimes | None) -> Iterator[RenderableType]:
    yield f"{history.n_races:,}"
    if history.is_custom_env:
        yield from (format_return(history.mean_recent_m), _best(history, times), _last(history))
        yield f"{history.mean_recent_actions:,.0f}"
        return
    yield _percent(history.n_finished / history.n_races)
    all_recent_finished = history.n_recent_finished == len(history.recent)
    yield Text(f"{history.n_recent_finished}/{len(history.recent)}", style="green" if all_recent_finished else "")
    yield Text(_best(history, times), style="dim" if history.best_time_ms is None else "bold green")
    yield Text(_last(history), style="dim" if history.last_time_ms is None else "")
    yield format_time(history.median_time_ms)


def format_return(points: float) -> str:
    """Format an episode's return."""
    return f"{points:,.4g}" if abs(points) < MOST_POINTS_WITH_FRACTIONS else f"{points:,.0f}"


def _best(history: RaceHistory, times: MedalTimes | None) -> str:
    """Return the best time with the medal, or distance; a dash for several tracks."""
    if not history.is_one_track:
        return NOTHING
    if history.best_time_ms is None:
        return _progress(history, history.furthest_m)
    medal = None if times is None else times.medal(history.best_time_ms)
    return format_time(history.best_time_ms) + (f" ({medal})" if medal else "")


def _last(history: RaceHistory) -> str:
    return _progress(history, history.last_m) if history.last_time_ms is None else format_time(history.last_time_ms)


def _progress(history: RaceHistory, distance_m: float) -> str:
    return format_return(distance_m) if history.is_custom_env else f"{distance_m:,.0f} {history.progress_unit}"


class _MessageLines:
    """Message lines."""

    def __init__(self, messages: Sequence[tuple[str, int, str]]) -> None:
        self._messages = messages

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[Text] = []
        for time_of_day, level, text in self._messages:
            wrapped = Text(text, LEVEL_STYLES.get(level, "")).wrap(console, options.max_width - len(time_of_day) - 1)
            lines += [
                Text.assemble((time_of_day if row == 0 else " " * len(time_of_day), "dim"), " ", line)
                for row, line in enumerate(wrapped)
            ]
        yield from lines


def plain_line(figures: TrainingStatistics) -> str:
    """Return the run's figures as one text line."""
    rates = figures.rates()
    parts = [
        _duration(figures.elapsed_s),
        f"{_duration(figures.left_s)} left" if figures.left_s < math.inf else "",
        f"frames {figures.frames_total:,}",
        f"races {figures.races_total:,}",
        *(
            _plain_map(map_name, of_map, figures.reference_times.get(map_name))
            for map_name, of_map in figures.maps.items()
        ),
        f"replay {figures.replay_transitions:,}/{figures.replay_capacity:,}" if figures.replay_capacity > 0 else "",
        f"{rates.actions_per_s:,.0f} actions/s",
        f"{rates.batches_per_s:.1f} batches/s",
        f"waiting: learner {_percent(rates.learner_waiting_share)}, "
        f"collectors {_percent(figures.collectors_waiting_share)}",
        _plain_values(figures.current_values),
        _plain_values(figures.hook_figures),
        f"checkpoint {_checkpoint_age(figures)}",
    ]
    return " | ".join(part for part in parts if part)


def _plain_map(map_name: str, of_map: MapStatistics, times: MedalTimes | None) -> str:
    kinds = []
    for kind, history in of_map.kinds.items():
        if history.n_races > 0:
            recent = f"{history.n_recent_finished}/{len(history.recent)} finished"
            if history.is_custom_env:
                recent = f"return {format_return(history.mean_recent_m)}, length {history.mean_recent_actions:,.0f}"
            best = f", best {_best(history, times)}" if history.is_one_track else ""
            kinds.append(f"{RACE_KINDS[kind]} {recent}{best}, last {_last(history)}")
    return f"{map_name}: " + "; ".join(kinds)


def closing_text(
    figures: TrainingStatistics, folder: str, evaluate: str, drivers: Sequence[str] = (), resume_by: Sequence[str] = ()
) -> str:
    """Return a training's last lines; the same command with the options `resume_by` resumes it."""
    maps = [_closing_best(name, of_map, figures) for name, of_map in figures.maps.items()]
    if len(maps) > MOST_CLOSING_MAPS:
        maps[MOST_CLOSING_MAPS:] = [f"{len(maps) - MOST_CLOSING_MAPS} more maps"]
    lines = [f"{figures.races_total:,} races, {figures.frames_total:,} frames", *maps, f"run folder: {folder}"]
    if figures.races_finished_total > 0 or figures.is_custom_env:
        lines.append(f"evaluate and film: {evaluate} {folder}")
    lines += [f"the best evaluation race again: {evaluate} {driver}" for driver in drivers[:MOST_CLOSING_MAPS]]
    lines.append(
        " ".join(["resume training: repeat the training command", *(f"with {option}" for option in resume_by)])
    )
    return "\n".join(lines)


def _closing_best(name: str, of_map: MapStatistics, figures: TrainingStatistics) -> str:
    histories = [history for history in of_map.kinds.values() if history.n_races > 0]
    if not all(history.is_one_track for history in histories):
        last = histories[-1]
        return f"{name}: {last.n_recent_finished} of the last {len(last.recent)} races finished"
    best = min(histories, key=lambda history: (history.best_time_ms or math.inf, -history.furthest_m))
    result = _best(best, figures.reference_times.get(name))
    if best.is_custom_env:
        return f"{name}: best return {result}"
    return f"{name}: {result}, not finished yet" if best.best_time_ms is None else f"{name}: best time {result}"


def format_time(race_time_ms: float | None) -> str:
    """Format a race time as `minutes:seconds.milliseconds`."""
    if race_time_ms is None:
        return NOTHING
    minutes, rest_ms = divmod(round(race_time_ms), 60_000)
    return f"{minutes}:{rest_ms // 1000:02d}.{rest_ms % 1000:03d}"


def describe_race(race: Any) -> str:
    """Describe how a `ScriptResult` ended."""
    checkpoints = ", ".join(map(format_time, race.checkpoint_times_ms)) or "none"
    if race.is_finished:
        return f"finished in {format_time(race.race_time_ms)} ({race.race_time_ms} ms); checkpoints: {checkpoints}"
    return f"not finished after {format_time(race.race_time_ms)}; checkpoints: {checkpoints}"


def _duration(seconds: float) -> str:
    minutes, whole_s = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{whole_s:02d}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _named_values(values: Mapping[str, float]) -> dict[str, str]:
    return {name.replace("_", " "): f"{value:.4g}" for name, value in values.items()}


def _plain_values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _named_values(values).items())


def _checkpoint_age(figures: TrainingStatistics) -> str:
    if figures.checkpoint_time_s is None:
        return "none yet"
    return f"{_duration(figures.elapsed_s - figures.checkpoint_time_s)} ago"
