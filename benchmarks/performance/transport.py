"""Transport of a race to the learner between processes: its duration, and the time that the learner is blocked."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from gymnasium.spaces import Discrete

from benchmarks.performance.measuring import Figure, Machine, Options, Timing
from benchmarks.performance.replay import Replays, replay_settings
from benchmarks.performance.senders import N_ACTIONS, N_FLOATS, send_through_queue, send_through_slots
from trackmania_rl.channels.rollouts import Rollouts, make_stop_flag
from trackmania_rl.processes import PipeEnd
from trackmania_rl.race.spaces import Spaces

PART = "transport"
SURELY_ANNOUNCED_S = 0.15
"""After this time a race waits for the learner, so receiving it takes only the learner's own time."""
TIMEOUT_S = 60.0
MOST_ROUNDS = 15

Way = tuple[Callable[[], None], Callable[[], tuple[Any, float]], Callable[[Any], None]]
"""Functions that let a race be sent, receive it with the time of its sending, and store it."""


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure both ways in turns, and the storing of the race in the replay memory."""
    replays = Replays(options, replay_settings(options), options.image_size_px)
    samples: dict[str, list[tuple[float, float]]] = {}
    with through_slots(options, replays) as ours, through_queue(options, replays) as classic:
        for round_index in range(-2, min(options.repetitions, MOST_ROUNDS)):
            for name, way in {"ours": ours, "classic": classic}.items():
                taken = one_race_each(*way)
                if round_index >= 0:
                    for figure, sample in taken.items():
                        samples.setdefault(f"{name} {figure}", []).append(sample)
    medians = {name: Timing.median(pairs) for name, pairs in samples.items()}
    height_px, width_px = options.image_size_px
    race_ms = machine.copy_ms(options.n_frames * (height_px * width_px + 4 * N_FLOATS))
    note = "learner's time from a waiting race to its transitions in the replay memory; floor: one copy of the race"
    return [
        Figure.of_times(PART, name, medians[f"ours {figure}"], medians[f"classic {figure}"], floor, note_of_figure)
        for name, figure, floor, note_of_figure in (
            ("learner blocked", "blocked", 0.0, ""),
            ("from sent to received", "wall", 0.0, ""),
            ("transport and fill", "with fill", race_ms, note),
        )
    ]


def one_race_each(
    go: Callable[[], None], receive: Callable[[], tuple[Any, float]], store: Callable[[Any], None]
) -> dict[str, tuple[float, float]]:
    """Send two races, one that is waited for and one that waits; return (wall_ms, processor_ms) of each figure."""
    go()
    rollout, sent_at_s = receive()
    wall_ms = 1e3 * (time.perf_counter() - sent_at_s)
    store(rollout)
    go()
    time.sleep(SURELY_ANNOUNCED_S)
    start_s, start_processor_s = time.perf_counter(), time.process_time()
    rollout, _ = receive()
    received_s, received_processor_s = time.perf_counter(), time.process_time()
    store(rollout)
    stored_s, stored_processor_s = time.perf_counter(), time.process_time()
    return {
        "wall": (wall_ms, wall_ms),
        "blocked": (1e3 * (received_s - start_s), 1e3 * (received_processor_s - start_processor_s)),
        "with fill": (1e3 * (stored_s - start_s), 1e3 * (stored_processor_s - start_processor_s)),
    }


@contextmanager
def through_slots(options: Options, replays: Replays) -> Iterator[Way]:
    """Start a sender of this project's way: frames are in shared memory from the start, a header follows."""
    height_px, width_px = options.image_size_px
    context = multiprocessing.get_context("spawn")
    floats = (0.0,) * N_FLOATS
    spaces = Spaces(floats, floats, Discrete(N_ACTIONS), (1, height_px, width_px))
    source = Rollouts(options.n_frames + 2, spaces, slots_per_collector=2, stop=make_stop_flag())
    here, there = context.Pipe()
    child = context.Process(
        target=send_through_slots, args=(there, source.open_collector(0), options.n_frames), daemon=True
    )

    def receive() -> tuple[Any, float]:
        rollout = source.get(TIMEOUT_S)
        assert rollout is not None, f"no race arrived within {TIMEOUT_S} s"
        return rollout, rollout.facts.figures["sent_at_s"]

    def store(rollout: Any) -> None:
        with rollout:
            replays.fill(rollout)

    with _running(child, here):
        yield partial(_ask_for_race, here), receive, store
    source.close()


@contextmanager
def through_queue(options: Options, replays: Replays) -> Iterator[Way]:
    """Start a sender of the classic way: a dictionary of lists of arrays, pickled through a `multiprocessing.Queue`."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(1)
    here, there = context.Pipe()
    child = context.Process(
        target=send_through_queue, args=(there, queue, options.n_frames, options.image_size_px), daemon=True
    )

    def receive() -> tuple[Any, float]:
        race = queue.get(timeout=TIMEOUT_S)
        return race, race["sent_at_s"]

    with _running(child, here):
        yield partial(_ask_for_race, here), receive, replays.fill_classic
    queue.close()


@contextmanager
def _running(child: Any, connection: PipeEnd) -> Iterator[None]:
    child.start()
    try:
        yield
    finally:
        connection.send(False)
        child.join(TIMEOUT_S)


def _ask_for_race(connection: PipeEnd) -> None:
    """Wait until the collector has driven its next race, and let it send."""
    assert connection.poll(TIMEOUT_S), f"the collector has no race after {TIMEOUT_S} s"
    connection.recv()
    connection.send(True)
