"""What becomes of races and news where a relay or a collector is lost."""

import numpy as np
import pytest
from torch import nn

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")

from ray.exceptions import GetTimeoutError, RayError  # noqa: E402

from trackmania_rl.channels.over_ray.rollouts import RayRolloutSource, RaySink  # noqa: E402
from trackmania_rl.channels.over_ray.run_state import open_ray_channels  # noqa: E402
from trackmania_rl.settings import load_settings  # noqa: E402

from ..keep_games_command import wait_until  # noqa: E402

SHAPE = (11, 1, 5, 7)


@pytest.fixture(scope="module")
def settings(repository_root):
    return load_settings(repository_root / "config_files" / "config.py")


@pytest.fixture
def channels(settings, ray_here):
    opened = open_ray_channels(settings, SHAPE, {"exploration": nn.Linear(5, 7)}, games_per_collector=1)
    yield opened
    opened.rollouts.close()


def put(sink, number):
    frames = sink.acquire_frames(0, timeout_s=60)
    assert frames is not None
    frames[:] = number
    sink.put(0, {"frames": frames[:9], "number": number}, {"race_time_ms": number})


def got(channels):
    rollout = channels.rollouts.get(timeout_s=60)
    assert rollout is not None
    return rollout


def test_a_killed_relay_loses_no_race_and_brings_none_twice(channels):
    sink = channels.rollouts.open_collector(0)
    assert isinstance(sink, RaySink)
    assert isinstance(channels.rollouts, RayRolloutSource)
    view, late = channels.run_state.view(), channels.run_state.view()
    channels.run_state.publish(frames_total=13)
    wait_until(lambda: view.pull() or view.frames_total == 13)
    put(sink, 1)
    held = got(channels)
    put(sink, 2)
    ray.kill(channels.rollouts.relay, no_restart=False)
    put(sink, 3)
    numbers = []
    for _ in range(2):
        with got(channels) as rollout:
            numbers.append(rollout.rollout_results["number"])
            np.testing.assert_array_equal(rollout.rollout_results["frames"], np.full((9, 1, 5, 7), numbers[-1]))
    assert numbers == [2, 3]
    left_out = channels.rollouts.left_out
    wait_until(lambda: channels.rollouts.get(timeout_s=0.1) is not None or left_out["races_had_before"] >= 1)
    assert left_out["races_had_before"] >= 1, "the one that is held"
    assert channels.rollouts.get(timeout_s=0.3) is None, "what was had before was offered again"
    assert held.rollout_results["frames"][0, 0, 0, 0] == 1
    held.release()
    wait_until(lambda: late.pull() or late.frames_total == 13)  # the relay that came back is told the news again
    ray.kill(channels.rollouts.relay, no_restart=False)
    channels.run_state.publish(frames_total=17)
    wait_until(lambda: view.frames_total == 17)
    for number in (4, 5, 6, 7, 8):  # all room has come back
        put(sink, number)
        with got(channels) as rollout:
            assert rollout.rollout_results["number"] == number


def test_a_collector_that_was_replaced_is_refused_and_its_races_are_dropped(channels):
    before = channels.rollouts.open_collector(0)
    put(before, 1)
    after = channels.rollouts.open_collector(0)
    wait_until(lambda: before.is_refused)
    assert before.acquire_frames(0) is None
    put(after, 2)
    with got(channels) as rollout:
        assert rollout.rollout_results["number"] == 2
    assert channels.rollouts.get(timeout_s=0.3) is None


def test_weights_come_no_more_often_than_they_shall(settings, ray_here, monkeypatch):
    monkeypatch.setattr("trackmania_rl.channels.over_ray.run_state.WEIGHTS_EVERY_S", 3600.0)
    network = nn.Linear(5, 7)
    channels = open_ray_channels(settings, SHAPE, {"exploration": network}, games_per_collector=1)
    view = channels.run_state.view()
    version = view.pull_weights("exploration", nn.Linear(5, 7), 0)
    assert version == 1
    channels.run_state.publish(weights={"exploration": network}, frames_total=3)
    wait_until(lambda: view.frames_total == 3)
    assert view.pull_weights("exploration", nn.Linear(5, 7), version) == version
    channels.rollouts.close()


def is_gone(parcel):
    try:
        ray.get(parcel, timeout=1.0)
    except GetTimeoutError:
        return False
    except RayError:
        return True
    return False


def test_a_race_whose_machine_is_gone_is_lost_and_counted(channels):
    @ray.remote(num_cpus=0)
    class Collector:
        def play(self, sink):  # in a process that does not have this module
            frames = sink.acquire_frames(0)
            sink.put(0, {"frames": frames}, {"race_time_ms": 1})

    assert isinstance(channels.rollouts, RayRolloutSource)
    sink = channels.rollouts.open_collector(0)
    note = channels.rollouts._note
    offered = []
    channels.rollouts._note = offered.append
    actor = Collector.remote()
    ray.get(actor.play.remote(sink))
    wait_until(lambda: offered)
    ray.kill(actor)
    wait_until(lambda: is_gone(offered[0].parcel[0]))
    note(offered[0])
    wait_until(lambda: channels.rollouts.left_out["races_lost"] == 1)
    assert channels.rollouts.get(timeout_s=0) is None
