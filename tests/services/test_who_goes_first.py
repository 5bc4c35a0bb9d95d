"""Who goes first: fifo inside of a key under priorities, ageing under a stream, and `why` names who stands before."""

from __future__ import annotations

from kurir.domain.job import State
from kurir.domain.policy import Destination, Limits, OnDead, Ordering, Topic
from kurir.services.dispatching.turns import AGEING
from kurir.services.showing.inspector import Inspector
from kurir.services.showing.why import Explainer
from support.clock import FakeClock
from support.engine import ALICE, registry, running
from support.server import Hang, Reply, Server


def bodies(srv):
    return [request.body for request in srv.requests]


async def held_by(daemon, job):
    """What `why` says: kinds, and the jobs that stand before."""
    engine = daemon.engine
    explainer = Explainer(engine.gates, engine.dispatcher, engine.storage)
    inspector = Inspector(engine.storage, engine.reader, engine.gates, daemon.clock, explainer)
    return [(one.kind, one.job, one.detail) for one in (await inspector.why(ALICE, job.uid)).blocked_by]


async def test_inside_of_a_key_the_first_goes_first_whatever_the_priorities(tmp_path):
    async with Server() as srv:
        config = registry(url=srv.url, ordering=Ordering.KEY, destination={"concurrency": 1})
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            for n, priority in enumerate((-100, 100, 0, 50)):
                await daemon.submit(body=b"k%d" % n, ordering_key="k", priority=priority)
            for n, priority in enumerate((10, 20)):
                await daemon.submit(body=b"l%d" % n, ordering_key=f"l{n}", priority=priority)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.ended(6)
            order = bodies(srv)
            assert [body for body in order if body.startswith(b"k")] == [b"k0", b"k1", b"k2", b"k3"]
            assert order[:2] == [b"l1", b"l0"]  # between keys the priority of the first decides


async def test_a_stream_of_urgent_jobs_starves_none_of_low_priority(tmp_path):
    urgent = 0

    async def answer(request):
        nonlocal urgent
        if b"low" not in bodies(srv):  # each that is delivered is followed by two: the urgent ones never run out
            for _ in range(2):
                urgent += 1
                await daemon.submit(body=b"urgent %d" % urgent, priority=100)
        return Reply(200)

    async with Server() as srv:
        srv.answer(answer)
        config = registry(url=srv.url, destination={"concurrency": 1})
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            await daemon.engine.operations.pause("topic", "orders")
            await daemon.submit(body=b"low", priority=-100)
            await daemon.submit(body=b"urgent 0", priority=100)
            await daemon.engine.operations.resume("topic", "orders")
            await daemon.wait(lambda _: b"low" in bodies(srv))
            assert bodies(srv).index(b"low") <= AGEING
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == urgent + 2)


async def test_a_destination_that_hangs_does_not_hold_up_the_first_job_of_another(tmp_path):
    hang = Hang()
    async with Server() as srv, Server() as slow:
        slow.answer(hang)
        other = (
            Destination(name="slow", url=slow.url, concurrency=100),
            Topic(name="slow", destination="slow", path="/"),
        )
        config = registry(url=srv.url, more=other, limits=Limits(disk_reserve=0, in_flight=4))
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            for n in range(20):
                await daemon.submit(topic="slow", body=b"%d" % n)
            await slow.wait_requests(1)
            daemon.clock.advance(5_000)  # the first alone has had its time
            await slow.wait_requests(2)
            await daemon.submit(body=b"quick")
            (quick,) = await daemon.ended(1)
            assert (quick.state, bodies(srv)) == (State.DONE, [b"quick"])
            hang.until.set()


async def test_a_dead_parent_holds_its_children_and_why_names_it(tmp_path):
    async with Server() as srv:
        srv.answer(lambda request: Reply(422 if request.body == b"parent" else 200))
        async with running(tmp_path, registry(url=srv.url), clock=FakeClock()) as daemon:
            parent = await daemon.accept(body=b"parent")
            await daemon.ended(1)
            child = await daemon.accept(body=b"child", after=[parent.public_id])
            grandchild = await daemon.accept(body=b"grandchild", after=[child.public_id])
            await daemon.pass_time(60_000)
            detail = f"it comes after {parent.public_id} (dead), which has to be done first"
            assert await held_by(daemon, child) == [("after", parent.public_id, detail)]
            [(kind, before, _)] = await held_by(daemon, grandchild)
            assert (kind, before) == ("after", child.public_id)
            await daemon.engine.operations.cancel(ALICE, parent.uid)
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 2)
            assert bodies(srv) == [b"parent", b"child", b"grandchild"]


async def test_why_names_the_dead_head_that_blocks_a_key_and_the_holder_of_a_unique_key(tmp_path):
    hang = Hang()
    async with Server() as srv:
        srv.answer(lambda request: {b"bad": Reply(422), b"held": hang}.get(request.body, Reply(200)))
        config = registry(url=srv.url, ordering=Ordering.KEY, on_dead=OnDead.BLOCK)
        async with running(tmp_path, config, clock=FakeClock()) as daemon:
            head = await daemon.accept(body=b"bad", ordering_key="k")
            await daemon.ended(1)
            behind = await daemon.accept(body=b"behind", ordering_key="k")
            [(kind, before, detail)] = await held_by(daemon, behind)
            assert (kind, before) == ("order", head.public_id)
            assert detail.startswith(f"{head.public_id} (dead) goes first")
            holder = await daemon.accept(body=b"held", ordering_key="l", unique={"key": "u"})
            await srv.wait_requests(2)
            more = {"ordering_key": "m", "unique": {"key": "u", "policy": "append"}}
            appended = await daemon.accept(body=b"appended", **more)
            assert ("unique", holder.public_id) in [one[:2] for one in await held_by(daemon, appended)]
            hang.until.set()
            await daemon.wait(lambda _: len(daemon.endings(State.DONE)) == 2)
