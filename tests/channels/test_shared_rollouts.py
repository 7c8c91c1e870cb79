"""Rollouts in shared memory: between real processes, when one is killed, and when memory is short."""

import multiprocessing
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.channels.protocols import ChannelError
from trackmania_rl.channels.shared_memory import rollouts
from trackmania_rl.channels.shared_memory.rollouts import SharedRolloutSource
from trackmania_rl.channels.shared_memory.slots import RolloutBounds
from trackmania_rl.channels.shared_memory.stop_flag import StopFlag

from .conftest import BOUNDS, SPAWN, assert_is_race


def source_of(bounds):
    return SharedRolloutSource(bounds, slots_per_collector=2, stop=StopFlag(SPAWN))


@pytest.fixture
def source():
    source = source_of(BOUNDS)
    yield source
    source.close()


def spawn(function, *arguments):
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def test_races_of_spawned_collectors_arrive_whole_and_in_order(children, source):
    seeds = {0: [1, 2, 3, 4, 5], 1: [11, 12, 13]}
    processes = [spawn(children.send_races, source.open_collector(c), seeds[c], 7 + c) for c in seeds]
    arrived = {0: [], 1: []}
    for _ in range(8):
        with source.get(timeout_s=60) as rollout:
            seed = seeds[rollout.collector][len(arrived[rollout.collector])]
            assert_is_race(rollout, *children.make_rollout(seed, 7 + rollout.collector))
            assert 0 <= rollout.waited_s <= rollout.elapsed_s
            arrived[rollout.collector].append(seed)
    assert arrived == seeds
    for process in processes:
        process.join(30)
        assert process.exitcode == 0  # 3 would mean that the child imported torch
    assert source.get(timeout_s=0) is None


def test_a_killed_collector_is_replaced_by_a_fresh_set(children, source):
    killed = spawn(children.send_then_hang, source.open_collector(0), 1)
    source.get(timeout_s=60)  # never released: the slot was being read when the collector died
    killed.kill()
    killed.join(30)
    again = spawn(children.send_races, source.open_collector(0), [8, 9, 10], 5)
    for seed in (8, 9, 10):
        with source.get(timeout_s=60) as rollout:
            assert_is_race(rollout, *children.make_rollout(seed, 5))
    again.join(30)
    assert again.exitcode == 0


def test_a_header_enters_its_pipe_whole_however_long_the_race(children, source, monkeypatch):
    sink = source.open_collector(0)
    headers = []
    monkeypatch.setattr(sink._shared.headers_in, "send", headers.append)
    for n_actions in (2, 19):
        sink.acquire_frames(0)
        results, stats = children.make_rollout(1, n_actions)
        sink.put(0, results, stats | {"inputs": "0.00 press up\n" * 200 * n_actions})
    sizes = [len(pickle.dumps(header)) for header in headers]
    assert max(sizes) < 4096, "what POSIX systems write to a pipe at once"
    assert abs(sizes[1] - sizes[0]) < 20


def test_without_an_image(children):
    source = source_of(RolloutBounds(20, 0, 0, 5, 3))
    sink = source.open_collector(0)
    results, stats = children.make_rollout(1, 4)
    results["frames"] = np.zeros((4, 1, 0, 0), dtype=np.uint8)
    assert sink.acquire_frames(0).size == 0
    sink.put(0, results, stats)
    with source.get(timeout_s=1) as rollout:
        assert_is_race(rollout, results, stats)
    sink.close()
    source.close()


def test_a_race_beyond_the_bound_is_refused_by_name(children, source):
    sink = source.open_collector(0)
    sink.acquire_frames(0)
    results, stats = children.make_rollout(1, 4)
    with pytest.raises(ChannelError, match="state_float has shape"):
        sink.put(0, results | {"state_float": np.zeros((30000, 5), dtype=np.float32)}, stats)
    sink.put(0, results, stats)  # the slot is still good
    with source.get(timeout_s=1) as rollout:
        assert_is_race(rollout, results, stats)


def test_too_little_shared_memory_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(rollouts, "available_shared_memory_bytes", lambda: 3 * BOUNDS.slot_bytes)
    source = source_of(BOUNDS)
    source.open_collector(0)
    source.open_collector(0)  # replacing needs no more
    with pytest.raises(ChannelError, match="rollout_slots_per_collector"):
        source.open_collector(1)
    source.close()


def test_what_others_keep_in_too_little_shared_memory_is_named(monkeypatch):
    monkeypatch.setattr(rollouts, "available_shared_memory_bytes", lambda: 0)
    for others, end in (
        ("", r"--shm-size=1g\)"),
        ("Others have 5 MB there", r"--shm-size=1g\)\. Others have 5 MB there"),
    ):
        monkeypatch.setattr(rollouts, "describe_segments_of_others", lambda others=others: others)
        with pytest.raises(ChannelError, match=end + "$"):
            source_of(BOUNDS).open_collector(0)


def test_nothing_is_left_behind_and_nothing_is_said_at_exit(children, repository_root):
    program = textwrap.dedent(
        """
        import multiprocessing, sys
        sys.path.insert(0, sys.argv[1])
        import rollout_children
        from trackmania_rl.channels.shared_memory.rollouts import SharedRolloutSource
        from trackmania_rl.channels.shared_memory.slots import RolloutBounds
        from trackmania_rl.channels.shared_memory.stop_flag import StopFlag

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            source = SharedRolloutSource(RolloutBounds(20, 6, 8, 5, 3), 2, stop=StopFlag(context))
            sink = source.open_collector(0)
            child = context.Process(target=rollout_children.send_then_hang, args=(sink, 1), daemon=True)
            child.start()
            with source.get(60) as rollout:
                print(rollout.rollout_results["frames"].shape)
            child.kill()
            child.join()
            print(*source.open_collector(0)._shared.memory_names)
            source.close()
        """
    )
    script = Path(children.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program, str(script)], cwd=repository_root, capture_output=True, text=True, timeout=100
    )
    assert done.stderr == ""
    shape, *names = done.stdout.split("\n")
    assert shape == "(4, 1, 6, 8)"
    for name in names[0].split():
        assert not (rollouts.SHARED_MEMORY_FOLDER / name).exists()
