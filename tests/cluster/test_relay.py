"""The relay by itself: who is refused, what is taken once, and what wakes whoever waits."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")

from trackmania_rl.channels.over_ray.relay import Answer, Arrived, News, Offer, Relay


def offer(collector: int, start: int, sequence: int) -> Offer:
    return Offer(collector, start, sequence, ["parcel"], waited_s=0.0, elapsed_s=0.0)


def taken(arrived: Arrived) -> list[tuple[int, int, int]]:
    return [(one.collector, one.start, one.sequence) for one in arrived.offers]


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


async def look_in(relay: Relay, collector: int, start: int, *sequences: int, within_s: float = 0.0) -> Answer:
    """Call the relay as a collector does, with these unreleased races."""
    offers = [offer(collector, start, sequence) for sequence in sequences]
    return await relay.look_in(collector, start, offers, (11.0, False), within_s)


def test_races_are_taken_once_in_their_order_and_of_the_current_process_alone():
    async def scene() -> None:
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
    async def scene() -> None:
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


def test_released_room_and_the_end_wake_a_collector():
    async def scene() -> None:
        relay = Relay()
        await relay.set_posts({0: 1})

        async def told(by: Coroutine[Any, Any, Any]) -> Answer:
            waiting = asyncio.create_task(look_in(relay, 0, 1, 4, 5, within_s=5.0))
            await asyncio.sleep(0.01)
            await by
            return await waiting

        assert (await told(relay.release(0, 1, 4))).released == [4]
        assert (await look_in(relay, 0, 1, 4, 5)).released == [4], "until the collector has heard of it"
        assert (await look_in(relay, 0, 1, 5)).released == []
        over = News(1, b"settings", 7, is_over=True, weights={})
        assert (await told(relay.publish(over))).is_over
        await relay.release(0, 2, 5)
        assert (await look_in(relay, 0, 1, 5)).released == [], "of another process"

    run(scene())


def test_news_wake_where_they_are_newer_and_beats_and_log_records_come_with_races():
    async def scene() -> None:
        relay = Relay()
        waiting_for_news = asyncio.create_task(relay.await_news(0, 5.0))
        await asyncio.sleep(0.01)
        await relay.publish(News(3, b"", 30, is_over=False, weights={}))
        await relay.publish(News(2, b"", 20, is_over=False, weights={}))
        news = await waiting_for_news
        assert news.frames_total == 30
        assert (await relay.take(0.0)).news_number == 3
        assert await relay.await_news(3, 0.02) is None
        await relay.set_posts({0: 1, 2: 5})
        await relay.look_in(2, 5, [], (17.0, True), 0.0)
        waiting = asyncio.create_task(relay.take(5.0))
        await asyncio.sleep(0.01)
        await relay.log("record")
        arrived = await waiting
        assert arrived.logs == ["record"]
        assert arrived.heartbeats == {0: (0.0, False), 2: (17.0, True)}

    run(scene())
