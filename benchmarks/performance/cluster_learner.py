"""The learner's side of `cluster`: it takes races by each way in turns, and lets weights be pulled on both nodes."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks.performance.measuring import FULL_SIZE, Options, settings_for
from benchmarks.performance.races import random_race
from benchmarks.performance.replay import Replays, replay_settings
from benchmarks.performance.transport import MOST_ROUNDS, TIMEOUT_S, one_race_each, through_queue, through_slots
from trackmania_rl.channels.over_ray.opening import start_relay
from trackmania_rl.channels.over_ray.relay import Offer
from trackmania_rl.channels.over_ray.rollouts import RayRolloutSource, RaySink
from trackmania_rl.channels.over_ray.run_state import RayRunState, RayRunStateView
from trackmania_rl.channels.protocols import NO_WEIGHTS, ReceivedRollout
from trackmania_rl.multiprocess.cluster.connecting import connected, environment
from trackmania_rl.multiprocess.cluster.placement import RESOURCE

if TYPE_CHECKING:
    from torch import nn

WARM_UPS: Final = 2
SURELY_FETCHED_S: Final = 0.5
"""A race that was sent so long ago has come from the other node."""
LOOK_EVERY_S: Final = 0.0005
N_FAKES: Final = 200
FAKES_CALL_FOR_S: Final = 10.0
NODES: Final = ("learner's node", "other node")


class Collector:
    """One of the cluster, as an actor: it drives nothing, but puts races, and pulls weights."""

    def begin(self, sink: RaySink, view: RayRunStateView, options: Options) -> None:
        """Take what a collector is given."""
        from benchmarks.performance.learner_step import make_network

        self._sink, self._view, self._options = sink, view, options
        self._network = make_network(view.settings)
        self._version = view.pull_weights("exploration", self._network, NO_WEIGHTS)
        self._n_races = 0

    def drive(self) -> None:
        """Have a race ready."""
        n_frames = self._options.n_frames
        frames = self._sink.acquire_frames(0, TIMEOUT_S)
        assert frames is not None, f"no room within {TIMEOUT_S} s"
        self._race = random_race(n_frames, self._options.image_size_px, seed=self._n_races)
        frames[:n_frames] = self._race["frames"]
        self._race["frames"] = frames[:n_frames]
        self._n_races += 1

    def put(self) -> None:
        """Send it."""
        self._sink.put(0, self._race | {"sent_at_s": time.perf_counter()}, {})

    def await_weights(self) -> float:
        """Pull until there are newer weights; return when they were here, by a clock that both nodes share."""
        while (version := self._view.pull_weights("exploration", self._network, self._version)) == self._version:
            time.sleep(LOOK_EVERY_S)
        self._version = version
        return time.perf_counter()


class FakeCollectors:
    """Many on one machine, as an actor: they offer races that hold nothing, and look in, as often as answered."""

    async def call(self, relay: Any, starts: dict[int, int]) -> float:
        """Call the relay for a while; return how many calls a second it answered."""
        ends_s = time.monotonic() + FAKES_CALL_FOR_S
        n_answered = 0

        async def one(collector: int, start: int) -> None:
            nonlocal n_answered
            sequence = 0
            epoch = (await relay.look_in.remote(collector, start, 0, False, 0.0)).epoch
            while time.monotonic() < ends_s:
                sequence += 1
                offer = Offer(collector, start, sequence, [None], waited_s=0.0, elapsed_s=0.0)
                await relay.offer.remote(offer, epoch)
                await relay.look_in.remote(collector, start, sequence, False, 0.0)
                n_answered += 2

        await asyncio.gather(*(one(*post) for post in starts.items()))
        return n_answered / FAKES_CALL_FOR_S


@dataclass(frozen=True)
class Measured:
    """What a learner measures.

    Attributes:
        samples: (wall_ms, processor_ms) by figure.
        relay_calls_per_s: that the relay answers when `N_FAKES` collectors call it all the time.
    """

    samples: dict[str, list[tuple[float, float]]]
    relay_calls_per_s: float


class ClusterWay:
    """Races by the relay from one node.

    Args:
        source: the learner's end.
        actor: a `Collector` on that node.
    """

    def __init__(self, source: RayRolloutSource, actor: Any) -> None:
        self._source, self._actor = source, actor

    def go(self) -> None:
        """Let a race be sent once it is ready."""
        ray.get(self._actor.drive.remote())
        self._actor.put.remote()

    def receive(self) -> tuple[ReceivedRollout, float]:
        """Take it."""
        rollout = self._source.get(TIMEOUT_S)
        assert rollout is not None, f"no race arrived within {TIMEOUT_S} s"
        return rollout, rollout.rollout_results["sent_at_s"]


def measure_ways(options: Options) -> Measured:
    """Measure on two nodes made here."""
    from benchmarks.performance.learner_step import make_network

    settings = settings_for(FULL_SIZE, options)
    network = make_network(settings)
    samples: dict[str, list[tuple[float, float]]] = {}
    with connected("local:2"):
        relay = start_relay()
        run_state = RayRunState(relay, settings, {"exploration": network}, weights_every_s=0.0)
        shape = (options.n_frames + 2, 1, *options.image_size_px)
        source = RayRolloutSource(relay, shape, slots_per_collector=2, games_per_collector=1)
        with closing(source):
            actors = _collectors(source, run_state, options)
            _measure_races(options, source, actors, samples)
            _measure_weights(options, run_state, network, actors, samples)
        return Measured(samples, _relay_calls_per_s())


def _relay_calls_per_s() -> float:
    relay = start_relay()
    starts = {collector: collector + 1 for collector in range(N_FAKES)}
    ray.get(relay.set_posts.remote(starts))
    made: Any = ray.remote(FakeCollectors).options(
        num_cpus=0, resources={RESOURCE: 1}, runtime_env={"env_vars": environment()}
    )
    answered = made.remote().call.remote(relay, starts)
    while not ray.wait([answered], timeout=0)[0]:
        ray.get(relay.take.remote(0.5))
    return float(ray.get(answered))


def _collectors(source: RayRolloutSource, run_state: RayRunState, options: Options) -> dict[str, Any]:
    """One actor on each node."""
    here = ray.get_runtime_context().get_node_id()
    there = next(node["NodeID"] for node in ray.nodes() if node["NodeID"] != here)
    actors: dict[str, Any] = {}
    for index, (name, node) in enumerate(zip(NODES, (here, there), strict=True)):
        pinned = NodeAffinitySchedulingStrategy(node, soft=False)
        made = ray.remote(Collector).options(
            num_cpus=0, scheduling_strategy=pinned, runtime_env={"env_vars": environment()}
        )
        actors[name] = made.remote()
        ray.get(actors[name].begin.remote(source.open_collector(index), run_state.view(), options))
    return actors


def _measure_races(
    options: Options, source: RayRolloutSource, actors: dict[str, Any], samples: dict[str, list[tuple[float, float]]]
) -> None:
    replays = Replays(options, replay_settings(options), options.image_size_px)

    def store(rollout: ReceivedRollout) -> None:
        with rollout:
            replays.fill(rollout.rollout_results)

    with through_slots(options) as slots, through_queue(options) as queue:
        ways = {"slots": slots(replays), "queue": queue(replays)}
        for name, actor in actors.items():
            way = ClusterWay(source, actor)
            ways[name] = way.go, way.receive, store
        for round_index in range(-WARM_UPS, min(options.repetitions, MOST_ROUNDS)):
            for name, (go, receive, store_it) in ways.items():
                taken = one_race_each(go, receive, store_it, SURELY_FETCHED_S)
                if round_index >= 0:
                    for figure, sample in taken.items():
                        samples.setdefault(f"{name} {figure}", []).append(sample)


def _measure_weights(
    options: Options,
    run_state: RayRunState,
    network: nn.Module,
    actors: dict[str, Any],
    samples: dict[str, list[tuple[float, float]]],
) -> None:
    for round_index in range(-WARM_UPS, min(options.repetitions, MOST_ROUNDS)):
        waiting = {name: actor.await_weights.remote() for name, actor in actors.items()}
        time.sleep(SURELY_FETCHED_S)
        began_s, began_processor_s = time.perf_counter(), time.process_time()
        run_state.publish(weights={"exploration": network})
        taken_s, taken_processor_s = time.perf_counter() - began_s, time.process_time() - began_processor_s
        pulled_ms = {name: 1e3 * (ray.get(pulled) - began_s) for name, pulled in waiting.items()}
        if round_index >= 0:
            samples.setdefault("publish", []).append((1e3 * taken_s, 1e3 * taken_processor_s))
            for name, wall_ms in pulled_ms.items():
                samples.setdefault(f"{name} weights", []).append((wall_ms, wall_ms))
