"""Which job of a topic goes first: priorities, the newest first, and nobody starves."""

from __future__ import annotations

from kurir.domain.policy import Pick
from support.clock import FakeClock
from support.engine import registry, running
from support.server import Server


def bodies(srv, since=0):
    return [request.body for request in srv.requests[since:]]


async def test_the_newest_go_first_where_the_topic_says_so_and_none_is_forgotten(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, order=Pick.NEWEST, destination={"concurrency": 1})
        async with running(tmp_path, config) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for n in range(4):
                await daemon.submit(body=b"%d" % n)
            await daemon.submit(body=b"urgent", priority=5)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(5)
            assert bodies(srv) == [b"urgent", b"3", b"2", b"1", b"0"]


async def test_newest_first_with_room_for_several_empties_every_priority(tmp_path):
    async with (
        Server() as srv,
        running(tmp_path, registry(url=srv.url, order=Pick.NEWEST), clock=FakeClock()) as daemon,
    ):
        await daemon.engine.operations.pause("topic", "orders")
        for n in range(6):
            await daemon.submit(body=b"%d" % n, priority=n % 3)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.ended(6)


async def test_the_higher_priority_goes_first_and_the_lowest_does_not_starve(tmp_path):
    async with Server() as srv, running(tmp_path, registry(url=srv.url, destination={"concurrency": 1})) as daemon:
        await daemon.engine.operations.pause("topic", "orders")
        await daemon.submit(body=b"low", priority=-100)
        for n in range(20):
            await daemon.submit(body=b"high %d" % n, priority=10)
        await daemon.submit(body=b"top", priority=100)
        await daemon.engine.operations.resume("topic", "orders")
        await daemon.ended(22)
        order = bodies(srv)
        assert order[0] == b"top"
        assert order.index(b"low") < 8
        rest = [body for body in order if body.startswith(b"high")]
        assert rest == [b"high %d" % n for n in range(20)]
