"""The relay by itself: who is refused, what is taken once, and what wakes whoever waits."""

import asyncio

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")

from trackmania_rl.channels.over_ray.relay import Offer, Relay


def offer(collector, start, sequence):
    return Offer(collector, start, sequence, ["parcel"], waited_s=0.0, elapsed_s=0.0)


def taken(arrived):
    return [(one.collector, one.start, one.sequence) for one in arrived.offers]


def run(scene):
    asyncio.run(asyncio.wait_for(scene, 60))


async def look_in(relay, collector, start, *sequences, within_s=0.0):
    """Call the relay as a collector does, with these unreleased races."""
    offers = [offer(collector, start, sequence) for sequence in sequences]
    return await relay.look_in(collector, start, offers, (11.0, False), within_s)


def test_races_are_taken_once_in_their_order_and_of_the_current_process_alone():
    async def scene():
        relay = Relay()
        await relay.set_posts({3: 7, 5: 8})
        for collector, start, sequences in ((3, 7, (1,)), (5, 8, (1,)), (3, 7, (1, 2)), (3, 7, (1, 2)), (3, 7, (1,))):
            assert (await look_in(relay, collector, start, *sequences)).is_current
        assert not (await look_in(relay, 3, 6, 3)).is_current
        assert not (await look_in(relay, 4, 7, 1)).is_current
        assert taken(await relay.take(1.0)) == [(3, 7, 1), (5, 8, 1), (3, 7, 2)]
        assert taken(await relay.take(0.0)) == []
        await look_in(relay, 3, 7, 2, 3)
        await look_in(relay, 5, 8, 2)
        waiting = asyncio.create_task(look_in(relay, 3, 7, within_s=5.0))
        await asyncio.sleep(0.01)
        await relay.set_posts({3: 9, 5: 8})
        assert not (await waiting).is_current, "the process that was replaced is told at once"
        assert taken(await relay.take(0.0)) == [(5, 8, 2)], "what it had offered is dropped"
        assert (await look_in(relay, 3, 9, 1)).is_current
        assert taken(await relay.take(0.0)) == [(3, 9, 1)]

    run(scene())


def test_a_relay_that_came_back_refuses_nobody_until_it_knows_its_posts():
    async def scene():
        relay = Relay()
        answer = await look_in(relay, 0, 4, 9, within_s=0.05)
        assert answer.is_current
        assert not answer.is_ready
        arrived = await relay.take(5.0)
        assert (arrived.is_ready, arrived.news_number, arrived.offers) == (False, 0, [])
        waiting = asyncio.create_task(look_in(relay, 0, 4, 8, 9, within_s=5.0))
        await asyncio.sleep(0.01)
        await relay.set_posts({0: 4})
        await relay.release(0, 4, 8)
        assert (await waiting).released == [8]
        assert taken(await relay.take(0.0)) == [(0, 4, 8), (0, 4, 9)], "all that was not released comes again"

    run(scene())
