"""The channels to an actor: races and news on their way, and an actor that is lost."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")

from trackmania_rl.channels.over_ray import CollectorEnds, News, RayRollouts, RayRunState  # noqa: E402
from trackmania_rl.channels.shared_memory.rollouts import RolloutBounds  # noqa: E402
from trackmania_rl.multiprocess.cluster.collectors import CollectorHost, RemoteCollector  # noqa: E402
from trackmania_rl.settings import load_settings  # noqa: E402

from ..keep_games_command import wait_until  # noqa: E402

BOUNDS = RolloutBounds(max_actions=11, image_height_px=5, image_width_px=7, n_floats=3, n_values=2)


class Playing(CollectorEnds):
    """Plays races of one number each, with a log record before each."""

    def play(self, *numbers):
        for number in numbers:
            frames = self.sink.acquire_frames(0)
            frames[:] = number
            self.send(logging.makeLogRecord({"name": "collector", "msg": f"race {number}", "levelno": logging.INFO}))
            self.sink.put(0, {"frames": frames[:9], "number": number}, {"race_time_ms": number})

    def weights(self):
        network = nn.Linear(5, 7)
        version = self.run_state.pull_weights("exploration", network, 0)
        return version, network.bias[0].item(), self.run_state.frames_total


@pytest.fixture(scope="module")
def settings(repository_root):
    return load_settings(repository_root / "config_files" / "config.py")


def network_of(value):
    network = nn.Linear(5, 7)
    nn.init.constant_(network.bias, value)
    return network


def test_races_come_from_an_actor_until_it_is_lost_and_from_its_replacement(settings, ray_here, caplog, monkeypatch):
    monkeypatch.setattr("trackmania_rl.channels.over_ray.WEIGHTS_EVERY_S", 3600.0)
    run_state = RayRunState(settings, {"exploration": network_of(1.0)})
    actor = ray.remote(Playing).options(num_cpus=0, max_concurrency=3)
    rollouts = RayRollouts(actor.remote, BOUNDS, run_state, slots_per_collector=3, games_per_collector=1)

    def receive(number):
        rollout = rollouts.get(timeout_s=60)
        assert rollout is not None
        assert rollout.collector == 0
        assert rollout.rollout_results["number"] == number
        np.testing.assert_array_equal(rollout.rollout_results["frames"], np.full((9, 1, 5, 7), number))
        return rollout

    before = rollouts.open_collector(0)
    ray.get(before.__ray_ready__.remote())
    playing = before.play.remote(*range(5))
    held = receive(0)
    with caplog.at_level(logging.INFO):
        for number in range(1, 5):
            receive(number).release()
        ray.get(playing)
    assert "race 3" in caplog.messages
    assert ray.get(before.weights.remote()) == (1, 1.0, 0)
    run_state.publish(weights={"exploration": network_of(2.0)}, frames_total=3)  # too early for weights
    wait_until(lambda: ray.get(before.weights.remote()) == (1, 1.0, 3))

    before.play.remote(7, 8, 9)  # for the last one there is no room while the first is held
    receive(7), receive(8)
    assert rollouts.get(timeout_s=0.3) is None
    ray.kill(before)
    assert held.rollout_results["frames"][0, 0, 0, 0] == 0
    after = rollouts.open_collector(0)
    held.release()
    ray.get(after.__ray_ready__.remote())
    after.play.remote(10)
    receive(10).release()
    rollouts.close()


def test_a_machine_without_room_for_the_channels_is_named(settings, ray_here, caplog):
    host, largest = ray.remote(CollectorHost).options(num_cpus=0), RolloutBounds(10**12, 5, 7, 3, 2)
    collector = RemoteCollector(SimpleNamespace(index=5, rollouts=host.remote(largest, 3, 1, News(settings))))
    collector.join(60)
    assert collector.exitcode == 1
    assert "docker run --shm-size=1g" in caplog.text
