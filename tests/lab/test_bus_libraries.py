"""Both libraries on a real bus: the same answers, the same signals, the same end, and nothing from strangers."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kurir.system.dbus.connection import BUS, BUS_NAME, BusLost, Connection, Heard, Signal
from kurir.system.dbus.opening import open_connection
from kurir.system.dbus.peer import Listening, met
from kurir.system.login1 import MANAGER, NAME, PREPARE, ROOT
from support import stranger
from support.nmlab import PrivateBus, missing, missing_mocks

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("library")]

MOCK = "org.freedesktop.DBus.Mock"
LONG = "x" * 700_000  # below the limit of a message, above every buffer


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing() or missing_mocks():
        pytest.skip(reason)


async def opened(address: str) -> Connection:
    """A connection, as soon as the bus listens to its socket."""
    while True:
        try:
            return await open_connection(address)
        except BusLost:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def connected(private: PrivateBus, name: str = NAME) -> AsyncIterator[Connection]:
    async with asyncio.timeout(20):
        connection = await opened(private.address)
    try:
        async with asyncio.timeout(20):
            while not await connection.call(*BUS, "NameHasOwner", "s", name):
                await asyncio.sleep(0.01)
            yield connection
    finally:
        connection.close()


@pytest.fixture
def private(tmp_path: Path) -> AsyncIterator[PrivateBus]:
    """A bus with a mock login manager on it, which is asked and told everything here."""
    with PrivateBus(tmp_path / "bus") as bus:
        bus.start_mock("logind")
        yield bus


async def emit(
    connection: Connection, signature: str, *values: tuple[str, object], member: str = "PrepareForSleep"
) -> None:
    """Let the mock say a signal of the login manager."""
    await connection.call(NAME, ROOT, MOCK, "EmitSignal", "sssav", MANAGER, member, signature, list(values))


async def test_answers_of_every_type_are_the_same(private: PrivateBus) -> None:
    values = {
        "Truth": ("b", True),
        "Small": ("y", 7),
        "Signed": ("i", -7),
        "Large": ("t", 2**64 - 1),
        "Real": ("d", 0.5),
        "Text": ("s", "Café"),
        "Path": ("o", "/a/b"),
        "Bytes": ("ay", b"\x00\xff"),
        "Paths": ("ao", ["/", "/a"]),
        "Struct": ("(su)", ("a", 2)),
        "Structs": ("a(su)", [("a", 2), ("b", 3)]),
        "Nested": ("a{sv}", {"x": ("v", ("s", "y"))}),
    }
    async with connected(private) as connection, met(connection, NAME, lambda: None) as peer:
        await peer.call(ROOT, MOCK, "AddProperties", "sa{sv}", "test.Types", values)
        found = await peer.call(ROOT, "org.freedesktop.DBus.Properties", "GetAll", "s", "test.Types")
        assert found == values
        assert await peer.call(ROOT, "org.freedesktop.DBus.Peer", "Ping") is None
        said = await peer.properties(ROOT, "test.Types")
        assert (said.number("Small"), said.text("Text"), said.paths("Paths")) == (7, "Café", ("/a",))
        assert said.number("Truth") is said.number("Real") is None


async def test_a_refusal_has_its_name_and_one_line(private: PrivateBus) -> None:
    async with connected(private) as connection:
        with pytest.raises(BusLost) as refused:
            await connection.call(*BUS, "GetNameOwner", "s", "not.there")
        assert refused.value.name == "org.freedesktop.DBus.Error.NameHasNoOwner"
        with pytest.raises(BusLost, match=r"^org\.freedesktop\.login1\.Manager\.Nonsense: ") as refused:
            await connection.call(NAME, ROOT, MANAGER, "Nonsense")
        assert refused.value.name == "org.freedesktop.DBus.Error.UnknownMethod"
        assert "\n" not in str(refused.value)
        for path in ("no path", "/x/", "", "/ü"):
            with pytest.raises(BusLost):
                await connection.call(NAME, path, MANAGER, "Nonsense")
        with pytest.raises(BusLost):
            await connection.call(NAME, ROOT, MANAGER, "Nonsense", "u", "not a number")
        assert await connection.call(*BUS, "GetId")


async def test_what_is_large_arrives_whole_both_ways(private: PrivateBus) -> None:
    async with connected(private) as connection, met(connection, NAME, lambda: None) as peer:
        heard: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        async with peer.signals(Signal(ROOT, MANAGER, "Large"), heard.put_nowait):
            await peer.call(ROOT, MOCK, "AddProperties", "sa{sv}", "test.Large", {"Text": ("s", LONG)})
            assert (await peer.properties(ROOT, "test.Large")).text("Text") == LONG
            await emit(connection, "s", ("s", LONG), member="Large")
            assert await heard.get() == (LONG,)


async def test_no_signal_of_a_burst_is_lost(private: PrivateBus) -> None:
    async with connected(private) as connection, met(connection, NAME, lambda: None) as peer:
        heard: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        async with peer.signals(PREPARE, heard.put_nowait):
            for number in range(200):
                await emit(connection, "u", ("u", number))
            assert [(await heard.get())[0] for _ in range(200)] == list(range(200))
        await emit(connection, "u", ("u", 1))
        await connection.call(*BUS, "GetId")
        assert heard.empty(), "outside of the context nothing is heard"


async def test_only_what_is_listened_to_is_asked_for_at_the_bus(private: PrivateBus) -> None:
    async def rules(connection: Connection) -> list[str]:
        found = await connection.call(*BUS[:2], "org.freedesktop.DBus.Debug.Stats", "GetAllMatchRules")
        mine = await connection.call(*BUS, "GetConnectionUnixProcessID", "s", NAME)  # the mock's
        pids = {name: await connection.call(*BUS, "GetConnectionUnixProcessID", "s", name) for name in found}
        return sorted(rule for name, each in found.items() if pids[name] != mine for rule in each)

    async with connected(private) as connection:
        before = await rules(connection)
        async with met(connection, NAME, lambda: None) as peer:
            listening = Listening(peer, lambda values: None)
            one, two = (Signal(ROOT, "test.Kind", "Said", first) for first in ("a.b", "c.d"))
            assert await listening.only((one, two))
            assert not await listening.only((one, two)), "nothing new"
            asked = "".join(await rules(connection))
            assert "arg0='a.b'" in asked
            assert "arg0='c.d'" in asked
            assert f"arg0='{NAME}'" in asked
            assert not await listening.only((two,))
            assert "arg0='a.b'" not in "".join(await rules(connection))
            await listening.stop()
        assert await rules(connection) == before


async def test_who_has_a_name_is_followed(private: PrivateBus) -> None:
    async with connected(private) as connection:
        changed = asyncio.Event()
        async with met(connection, NAME, changed.set) as peer:
            first = peer.owner
            assert first.startswith(":")
            private.kill("mock logind")
            await changed.wait()
            assert peer.owner == ""
            changed.clear()
            private.start_mock("logind")
            await changed.wait()
            assert peer.owner not in ("", first)


async def test_a_stranger_is_not_taken_for_the_service_nor_for_the_bus(private: PrivateBus) -> None:
    async with connected(private) as connection, met(connection, NAME, lambda: None) as peer:
        heard: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        owner = peer.owner
        async with peer.signals(PREPARE, heard.put_nowait):
            sleep = stranger.signal(ROOT, MANAGER, "PrepareForSleep", "b", True)
            owners = stranger.signal(BUS[1], BUS_NAME, "NameOwnerChanged", "sss", NAME, owner, "")
            await stranger.tell_everybody(private.address, sleep, owners)
            await emit(connection, "b", ("b", False))
            assert await heard.get() == (False,), "the first that is heard is the real one"
            assert peer.owner == owner


async def test_messages_that_cannot_be_read_or_are_too_long_end_nothing(private: PrivateBus) -> None:
    async with connected(private) as connection, met(connection, NAME, lambda: None) as peer:
        heard: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        async with peer.signals(PREPARE, heard.put_nowait):
            odd = stranger.signal(ROOT, MANAGER, "PrepareForSleep", "av", [("b", True)] * 100)
            await stranger.tell_everybody(private.address, odd, altered=stranger.with_unknown_field)
            huge = stranger.signal(ROOT, MANAGER, "PrepareForSleep", "ay", b"\1" * 20_000_000)
            await stranger.tell_everybody(private.address, huge, odd)
            await emit(connection, "s", ("s", "neither true nor false"))
            assert await heard.get() == ("neither true nor false",)
            assert await connection.call(*BUS, "GetId")


async def test_descriptors_that_a_stranger_sends_do_not_stay(private: PrivateBus) -> None:
    async with connected(private) as connection, met(connection, NAME, lambda: None) as peer:
        heard: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        async with peer.signals(PREPARE, heard.put_nowait):
            before = len(os.listdir("/proc/self/fd"))
            gift = stranger.signal(ROOT, MANAGER, "PrepareForSleep", "h", 0)
            await stranger.tell_everybody(private.address, *[gift] * 10)
            await emit(connection, "b", ("b", False))
            assert await heard.get() == (False,)
            assert len(os.listdir("/proc/self/fd")) == before


async def test_the_end_of_the_bus_is_noticed_at_once_by_who_listens_and_who_asks(private: PrivateBus) -> None:
    async with connected(private) as connection:
        await connection.call(
            NAME, ROOT, MOCK, "AddMethod", "sssss", MANAGER, "Hang", "", "", "import time; time.sleep(60)"
        )
        asking = asyncio.create_task(connection.call(NAME, ROOT, MANAGER, "Hang"))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        private.kill("dbus")
        await connection.ended
        print(f"noticed {(time.monotonic() - began) * 1000:.1f} ms after the kill began")
        with pytest.raises(BusLost):
            await asking
        with pytest.raises(BusLost):
            await connection.call(*BUS, "GetId")
        private.kill("mock logind")


async def test_what_is_left_of_a_connection_does_not_make_the_next_one_deaf(private: PrivateBus) -> None:
    left = [await opened(private.address)]
    private.kill("dbus")
    await left[0].ended
    private.stop("mock logind")
    private.start_bus()
    private.start_mock("logind")
    async with connected(private) as connection, met(connection, NAME, lambda: None) as peer:
        heard: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        async with peer.signals(PREPARE, heard.put_nowait):
            left.clear()
            gc.collect()  # it had the descriptor that the new one has now
            async with asyncio.timeout(10):
                await emit(connection, "b", ("b", True))
                assert await heard.get() == (True,)


async def test_it_can_be_closed_twice_and_whoever_asks_is_told(private: PrivateBus) -> None:
    async with connected(private) as connection:
        asking = asyncio.create_task(connection.call(*BUS, "GetId"))
        await asyncio.sleep(0)
        connection.close()
        connection.close()
        assert connection.ended.done()
        async with asyncio.timeout(5):
            await asyncio.wait([asking])
        with pytest.raises(BusLost):
            await connection.call(*BUS, "GetId")


async def test_listening_to_the_same_twice_tells_both(private: PrivateBus) -> None:
    async with connected(private) as connection:
        heard: list[list[Heard]] = [[], []]
        signals = (connection.signals(NAME, PREPARE, each.append) for each in heard)
        async with next(signals):
            async with next(signals):
                await emit(connection, "b", ("b", True))
                await connection.call(*BUS, "GetId")
            assert [len(each) for each in heard] == [1, 1]
            await emit(connection, "b", ("b", False))
            await connection.call(*BUS, "GetId")
            assert [len(each) for each in heard] == [2, 1]
