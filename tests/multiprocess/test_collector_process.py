"""What a collector's process is made of: networks that follow the run's weights, and random numbers of its own."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trackmania_rl.multiprocess import collector_process
from trackmania_rl.multiprocess.collector_process import collector_process_fn, make_parts
from trackmania_rl.multiprocess.run_setup import share_run
from trackmania_rl.multiprocess.shared_run import CollectorTask, SharedRun
from trackmania_rl.multiprocess.stop_conditions import OF_THE_TERMINAL
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import SNAPSHOT_FILE, LiveSettings
from trackmania_rl.training.collector import CollectorParts


@pytest.fixture
def shared(live: LiveSettings, layout: ObservationLayout, tmp_path: Path) -> SharedRun:
    return share_run(live.current, layout, SeedTree(1), tmp_path / "config" / SNAPSHOT_FILE)


def task_of(live: LiveSettings, name: str, **changes: Any) -> CollectorTask:
    sender = SimpleNamespace()
    return CollectorTask(
        **{"index": 0, "name": name, "settings": live.current, "maps_folder": Path("maps"), "sender": sender, **changes}
    )


def first_draws(parts: CollectorParts) -> list[float]:
    """The first number of every random stream of a collector."""
    assert parts.generated_maps is not None
    choosers = [follower.inferer._chooser for follower in (parts.explorer, parts.evaluator)]
    streams: list[np.random.Generator] = [owner._rng for owner in (*choosers, parts.generated_maps)]
    return [stream.random() for stream in streams]


def test_every_random_stream_of_every_collector_is_one_of_its_own(live: LiveSettings, shared: SharedRun) -> None:
    one, other, one_again = (first_draws(make_parts(task_of(live, name), shared)) for name in ("one", "other", "one"))
    assert len({*one, *other}) == 3 + 3
    assert one_again == one


def test_another_seed_of_the_run_gives_other_random_numbers(live: LiveSettings, shared: SharedRun) -> None:
    one = first_draws(make_parts(task_of(live, "one"), shared))
    run = live.current.run.model_copy(update={"seed": live.current.run.seed + 1})
    reseeded = task_of(live, "one", settings=live.current.model_copy(update={"run": run}))
    assert not set(one) & set(first_draws(make_parts(reseeded, shared)))


def test_explorer_and_evaluator_follow_the_weights_that_are_meant_for_them(
    live: LiveSettings, shared: SharedRun
) -> None:
    parts = make_parts(task_of(live, "one"), shared)
    assert parts.explorer.shared is shared.exploration_weights
    assert parts.evaluator.shared is shared.evaluation_weights
    assert parts.explorer.inferer.network is not parts.evaluator.inferer.network


def test_a_collector_is_told_where_to_begin_and_keeps_its_tracks_apart(live: LiveSettings, shared: SharedRun) -> None:
    parts, others = (
        make_parts(task_of(live, "one", index=index, n_starts_before=3 + index), shared) for index in range(2)
    )
    assert (parts.first_entry, others.first_entry) == (3, 4)
    assert parts.generated_maps is not None
    assert others.generated_maps is not None
    assert parts.generated_maps._folder != others.generated_maps._folder


def test_a_collector_sees_the_runs_frame_count_and_its_end(live: LiveSettings, shared: SharedRun) -> None:
    parts = make_parts(task_of(live, "one"), shared)
    assert (parts.frames_total(), parts.stop_requested()) == (0, False)
    shared.frames_total.value = 7_000_000_000
    shared.stop_requested.set()
    assert (parts.frames_total(), parts.stop_requested()) == (7_000_000_000, True)


def test_a_collector_leaves_the_signals_of_the_terminal_to_the_main_process(
    live: LiveSettings, shared: SharedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HasSetItsSignalsError(Exception):
        pass

    def stop() -> None:
        raise HasSetItsSignalsError

    handlers: dict[int, object] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(collector_process, "_end_when_the_parent_is_gone", stop)
    with pytest.raises(HasSetItsSignalsError):
        collector_process_fn(task_of(live, "one"), shared)
    assert [handlers[number] for number in OF_THE_TERMINAL] == [signal.SIG_IGN] * len(OF_THE_TERMINAL)
    assert callable(handlers[signal.SIGTERM])
