import multiprocessing
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.channels import rollout_transport
from trackmania_rl.channels.rollout_slot import RolloutBounds, RolloutTransportError
from trackmania_rl.channels.rollout_transport import RolloutReceiver

BOUNDS = RolloutBounds(max_actions=20, image_height_px=6, image_width_px=8, n_floats=5, n_actions=3)


@pytest.fixture
def children(monkeypatch):
    """The module of the spawned functions, importable in the children too (they inherit sys.path)."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import rollout_children

    return rollout_children


@pytest.fixture
def receiver():
    receiver = RolloutReceiver(BOUNDS, slots_per_collector=2)
    yield receiver
    receiver.close()


def assert_is_race(rollout, expected_results, expected_stats):
    assert rollout.rollout_results.keys() == expected_results.keys()
    for name, expected in expected_results.items():
        np.testing.assert_array_equal(rollout.rollout_results[name], expected)
        assert np.asarray(rollout.rollout_results[name]).dtype == np.asarray(expected).dtype
    assert rollout.end_race_stats == expected_stats


def spawn(function, *arguments):
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def test_races_of_spawned_collectors_arrive_whole_and_in_order(children, receiver):
    seeds = {0: [1, 2, 3, 4, 5], 1: [11, 12, 13]}
    processes = [spawn(children.send_races, receiver.open_collector(c), seeds[c], 7 + c) for c in seeds]
    arrived = {0: [], 1: []}
    for _ in range(8):
        with receiver.receive(timeout_s=60) as rollout:
            seed = seeds[rollout.collector][len(arrived[rollout.collector])]
            assert_is_race(rollout, *children.make_rollout(seed, 7 + rollout.collector))
            assert 0 <= rollout.waited_s <= rollout.elapsed_s
            arrived[rollout.collector].append(seed)
    assert arrived == seeds
    for process in processes:
        process.join(30)
        assert process.exitcode == 0  # 3 would mean that the child imported torch
    assert receiver.receive(timeout_s=0) is None


def test_a_killed_collector_is_replaced_by_a_fresh_set(children, receiver):
    killed = spawn(children.send_then_hang, receiver.open_collector(0), 1)
    receiver.receive(timeout_s=60)  # never released: the slot was being read when the collector died
    killed.kill()
    killed.join(30)
    again = spawn(children.send_races, receiver.open_collector(0), [8, 9, 10], 5)
    for seed in (8, 9, 10):
        with receiver.receive(timeout_s=60) as rollout:
            assert_is_race(rollout, *children.make_rollout(seed, 5))
    again.join(30)
    assert again.exitcode == 0


def test_the_collector_waits_without_a_free_slot_and_the_wait_is_measured(children, receiver):
    sender = receiver.open_collector(0)
    for seed in (0, 1):
        sender.send(sender.acquire(), *children.make_rollout(seed, 4))
    assert sender.acquire(timeout_s=0.05) is None
    assert sender.waited_s >= 0.05
    first = receiver.receive(timeout_s=1)
    kept_while_overwriting = receiver.receive(timeout_s=1)
    first.release()
    sender.send(sender.acquire(timeout_s=1), *children.make_rollout(2, 4))
    assert_is_race(kept_while_overwriting, *children.make_rollout(1, 4))
    third = receiver.receive(timeout_s=1)
    assert_is_race(third, *children.make_rollout(2, 4))
    assert third.waited_s >= 0.05
    for rollout in (kept_while_overwriting, third):
        rollout.release()
        rollout.release()  # a second release must not free a slot twice
    assert [sender.acquire(timeout_s=0, game=game) is not None for game in range(3)] == [True, True, False]
    sender.close()


def test_frames_written_during_the_race_are_not_copied(children, receiver):
    sender = receiver.open_collector(0)
    slot = sender.acquire()
    results, stats = children.make_rollout(5, 6, slot.frames)
    sender.send(slot, results, stats)
    results["frames"][3, 0, 2, 1] ^= 255  # still the very memory that the learner sees
    with receiver.receive(timeout_s=1) as rollout:
        np.testing.assert_array_equal(rollout.rollout_results["frames"], results["frames"])
        with pytest.raises(ValueError, match="read-only"):
            rollout.rollout_results["frames"][0] = 0
    del results, slot
    sender.close()


def test_a_lost_race_gives_its_slot_back(children, receiver):
    sender = receiver.open_collector(0)
    lost = sender.acquire()
    assert sender.acquire() is lost
    sender.send(lost, *children.make_rollout(1, 4))
    with pytest.raises(ValueError, match="sent already"):
        sender.send(lost, *children.make_rollout(1, 4))


def test_games_of_one_collector_have_slots_of_their_own(children):
    receiver = RolloutReceiver(BOUNDS, slots_per_collector=1, games_per_collector=3)
    sender = receiver.open_collector(0)
    slots = [sender.acquire(timeout_s=0, game=game) for game in range(3)]
    assert sorted(slot.index for slot in slots) == [0, 1, 2]
    assert sender.acquire(game=1) is slots[1], "its race was lost"
    sender.send(slots[2], *children.make_rollout(7, 4, slots[2].frames))
    assert sender.acquire(timeout_s=0.3, game=2) is None, "the learner has it"
    assert 0.1 <= sender.waited_s < 0.3, "one game of three waited"
    with receiver.receive(timeout_s=1) as rollout:
        assert_is_race(rollout, *children.make_rollout(7, 4))
    assert sender.acquire(timeout_s=0, game=2).index == slots[2].index
    del slots
    sender.close()
    receiver.close()


def test_games_send_from_threads_of_their_own(children):
    receiver = RolloutReceiver(BOUNDS, slots_per_collector=2, games_per_collector=5)
    sender = receiver.open_collector(0)

    def play(game):
        for race in range(8):
            slot = sender.acquire(timeout_s=30, game=game)
            sender.send(slot, *children.make_rollout(100 * game + race, 4, slot.frames))

    threads = [threading.Thread(target=play, args=(game,)) for game in range(5)]
    for thread in threads:
        thread.start()
    seeds = [100 * game + race for game in range(5) for race in range(8)]
    expected = {seed: children.make_rollout(seed, 4) for seed in seeds}
    by_floats = {results["state_float"].tobytes(): seed for seed, (results, _) in expected.items()}
    for _ in range(len(expected)):
        with receiver.receive(timeout_s=30) as rollout:
            seed = by_floats[rollout.rollout_results["state_float"].tobytes()]
            assert_is_race(rollout, *expected.pop(seed))
    assert not expected
    for thread in threads:
        thread.join()
    sender.close()
    receiver.close()


def test_without_an_image(children):
    receiver = RolloutReceiver(RolloutBounds(20, 0, 0, 5, 3), slots_per_collector=1)
    sender = receiver.open_collector(0)
    results, stats = children.make_rollout(1, 4)
    results["frames"] = np.zeros((4, 1, 0, 0), dtype=np.uint8)
    sender.send(sender.acquire(), results, stats)
    with receiver.receive(timeout_s=1) as rollout:
        assert_is_race(rollout, results, stats)
    sender.close()
    receiver.close()


def test_a_race_beyond_the_bound_is_refused_by_name(children, receiver):
    sender = receiver.open_collector(0)
    slot = sender.acquire()
    results, stats = children.make_rollout(1, 4)
    with pytest.raises(RolloutTransportError, match="state_float has shape"):
        sender.send(slot, results | {"state_float": np.zeros((30000, 5), dtype=np.float32)}, stats)
    sender.send(sender.acquire(), results, stats)  # the slot is still good
    with receiver.receive(timeout_s=1) as rollout:
        assert_is_race(rollout, results, stats)


def test_too_little_shared_memory_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(rollout_transport, "available_shared_memory_bytes", lambda: 3 * BOUNDS.slot_bytes)
    receiver = RolloutReceiver(BOUNDS, slots_per_collector=2)
    receiver.open_collector(0)
    receiver.open_collector(0)  # replacing needs no more
    with pytest.raises(RolloutTransportError, match="rollout_slots_per_collector"):
        receiver.open_collector(1)
    receiver.close()


def test_what_others_keep_in_too_little_shared_memory_is_named(monkeypatch):
    monkeypatch.setattr(rollout_transport, "available_shared_memory_bytes", lambda: 0)
    for others, end in (
        ("", r"--shm-size=1g\)"),
        ("Others have 5 MB there", r"--shm-size=1g\)\. Others have 5 MB there"),
    ):
        monkeypatch.setattr(rollout_transport, "describe_segments_of_others", lambda others=others: others)
        with pytest.raises(RolloutTransportError, match=end + "$"):
            RolloutReceiver(BOUNDS, slots_per_collector=2).open_collector(0)


def test_nothing_is_left_behind_and_nothing_is_said_at_exit(children, repository_root):
    program = textwrap.dedent(
        """
        import multiprocessing, sys
        sys.path.insert(0, sys.argv[1])
        import rollout_children
        from trackmania_rl.channels.rollout_slot import RolloutBounds
        from trackmania_rl.channels.rollout_transport import RolloutReceiver

        if __name__ == "__main__":
            receiver = RolloutReceiver(RolloutBounds(20, 6, 8, 5, 3), 2)
            sender = receiver.open_collector(0)
            child = multiprocessing.get_context("spawn").Process(
                target=rollout_children.send_then_hang, args=(sender, 1), daemon=True
            )
            child.start()
            with receiver.receive(60) as rollout:
                print(rollout.rollout_results["frames"].shape)
            child.kill()
            child.join()
            print(*receiver.open_collector(0)._shared.memory_names)
            receiver.close()
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
        assert not (rollout_transport.SHARED_MEMORY_FOLDER / name).exists()
