"""The connection through jeepney, to a bus that says what no real one does; what real ones do is tested in the lab."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from jeepney import DBusAddress, Header, HeaderFields, Message, Parser, new_error, new_method_return, new_signal

from kurir.system.dbus import through_jeepney
from kurir.system.dbus.connection import BUS, BusLost, Connection, Heard, Signal
from kurir.system.dbus.through_jeepney import LONGEST_BODY, connect

SIGNAL = Signal("/a", "test.Kind", "Said")
Answer = Callable[[Message], list[bytes]]


def said(*values: Any, signature: str) -> bytes:
    """The signal that is listened to."""
    return new_signal(DBusAddress("/a", interface="test.Kind"), "Said", signature, values).serialise(1)


def of_no_type(message: bytes) -> bytes:
    """A message with one string, spoilt: no version knows the type of what it says."""
    return message.replace(b"\1g\0\1s\0", b"\1g\0\1?\0")


def plainly(question: Message) -> list[bytes]:
    """An answer to whatever is asked."""
    return [new_method_return(question, "s", ("fine",)).serialise(1)]


@asynccontextmanager
async def bus(folder: Path, answer: Answer = plainly, login: bytes = b"OK 1234\r\n") -> AsyncIterator[str]:
    """A bus that lets anybody in and answers as it is told; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = Parser()
        try:
            assert (await reader.readline()).startswith(b"\0AUTH EXTERNAL ")
            writer.write(login)
            assert await reader.readline() == b"BEGIN\r\n"
            while data := await reader.read(4096):
                for message in parser.feed(data):
                    member = message.header.fields[HeaderFields.member]
                    for part in plainly(message) if member in ("Hello", "AddMatch") else answer(message):
                        writer.write(part)
        except (ConnectionError, AssertionError):
            pass  # it went away, and the test looks at its side
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, folder / "bus")
    try:
        yield f"unix:path={folder}/bus"
    finally:
        server.close()


async def ask(connection: Connection, *arguments: Any) -> Any:
    async with asyncio.timeout(5):
        return await connection.call("test.Peer", "/a", "test.Kind", "Ask", *arguments)


@pytest.mark.parametrize(
    ("login", "words"),
    [
        (b"REJECTED EXTERNAL\r\n", "does not answer: .*REJECTED"),
        (b"OK 1234\r\nunasked\r\n", "does not answer: Unexpected"),
        (b"x" * 10_000, "does not answer: Too much"),
        (b"OK 1234\r\n" + b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer"),
        (b"", "does not answer: timed out"),
    ],
)
async def test_who_refuses_us_or_is_no_bus_is_told(
    tmp_path: Path, login: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_jeepney, "GREETING_S", 0.5)
    async with bus(tmp_path, login=login) as address:
        with pytest.raises(BusLost, match=words):
            await connect(address)


@pytest.mark.parametrize(
    "address", ["", "tcp:host=localhost,port=1", "unix:", ";;=,:", "unix:path=/not/there", "unix:abstract=kurir-none"]
)
async def test_an_address_that_leads_nowhere_is_told(address: str) -> None:
    with pytest.raises(BusLost, match="cannot open the system bus"):
        await connect(address)


async def test_the_next_address_is_tried_when_one_leads_nowhere(tmp_path: Path) -> None:
    async with bus(tmp_path) as address:
        connection = await connect(f"unix:path={tmp_path}/not-there;{address}")
        assert await ask(connection) == "fine"
        connection.close()


async def test_what_cannot_be_read_is_no_answer_and_ends_nothing(tmp_path: Path) -> None:
    garbage: list[Callable[[bytes], bytes]] = [
        of_no_type,
        lambda message: message[:-2] + b"\xff\0",  # no UTF-8
        lambda message: message[:-1] + b"x",  # not ended
    ]
    spoilt = iter(garbage)

    def answer(question: Message) -> list[bytes]:
        (good,) = plainly(question)
        spoil = next(spoilt, None)
        return [spoil(good)] if spoil else [good]

    async with bus(tmp_path, answer) as address:
        connection = await connect(address)
        for _ in garbage:
            with pytest.raises(BusLost, match=r"test\.Kind\.Ask: "):
                await ask(connection)
        assert await ask(connection) == "fine"
        connection.close()


async def test_answers_to_nobody_and_kinds_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    def answer(question: Message) -> list[bytes]:
        stray = new_method_return(question, "s", ("stray",))
        stray.header.fields[HeaderFields.reply_serial] = 4711
        (good,) = plainly(question)
        return [stray.serialise(1), good[:1] + b"\x09" + good[2:], good, good]

    async with bus(tmp_path, answer) as address:
        connection = await connect(address)
        assert [await ask(connection) for _ in range(3)] == ["fine"] * 3
        connection.close()


async def test_an_answer_that_is_too_long_is_not_collected_and_ends_nothing(tmp_path: Path) -> None:
    def answer(question: Message) -> list[bytes]:
        size = LONGEST_BODY + 1 if question.header.fields.get(HeaderFields.signature) else 10
        return [new_method_return(question, "ay", (b"x" * size,)).serialise(1)]

    async with bus(tmp_path, answer) as address:
        connection = await connect(address)
        with pytest.raises(BusLost, match="bytes is too long"):
            await ask(connection, "s", "the long one")
        assert await ask(connection) == b"x" * 10
        connection.close()


async def test_an_error_is_told_with_its_name_whatever_it_says(tmp_path: Path) -> None:
    errors = iter([("s", ("two\nlines",)), ("u", (7,)), (None, ())])

    def answer(question: Message) -> list[bytes]:
        return [new_error(question, "test.Refused", *next(errors)).serialise(1)]

    async with bus(tmp_path, answer) as address:
        connection = await connect(address)
        for words in ("two lines", "test.Refused", "test.Refused"):
            with pytest.raises(BusLost) as refused:
                await ask(connection)
            assert (refused.value.name, str(refused.value)) == ("test.Refused", f"test.Kind.Ask: {words}")
        connection.close()


async def test_who_never_answers_is_waited_for_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[bytes] = []

    def answer(question: Message) -> list[bytes]:
        late.extend(plainly(question))
        return late if len(late) > 1 else []

    async with bus(tmp_path, answer) as address:
        connection = await connect(address)
        monkeypatch.setattr(through_jeepney, "ANSWER_S", 0.1)
        with pytest.raises(BusLost, match="no answer within"):
            await ask(connection)
        monkeypatch.setattr(through_jeepney, "ANSWER_S", 5.0)
        assert await ask(connection) == "fine", (
            "the late answer to the first question is not taken for that to the second"
        )
        connection.close()


async def test_signals_that_cannot_be_read_are_left_to_who_listens(tmp_path: Path) -> None:
    def answer(question: Message) -> list[bytes]:
        good = said("fine", signature="s")
        huge = said(b"x" * (LONGEST_BODY + 1), signature="ay")
        return [of_no_type(good), huge, good, *plainly(question)]

    async with bus(tmp_path, answer) as address:
        connection = await connect(address)
        heard: list[Heard] = []
        async with connection.signals("test.Peer", SIGNAL, heard.append):
            await ask(connection)
        assert len(heard) == 2, "the one that is too long never comes"
        with pytest.raises(BusLost, match="cannot be read"):
            heard[0].contents()
        assert heard[1].contents() == ("fine",)
        connection.close()


async def test_garbage_between_messages_ends_the_connection_and_nobody_waits(tmp_path: Path) -> None:
    async with bus(tmp_path, lambda question: [b"\r\n\r\nHTTP/1.1 400 Bad Request\r\n"]) as address:
        connection = await connect(address)
        with pytest.raises(BusLost):
            await ask(connection)
        assert connection.ended.done()
        with pytest.raises(BusLost, match="went away"):
            await connection.call(*BUS, "GetId")


def test_a_head_of_garbage_is_never_wanted() -> None:
    # What the head says is read by jeepney: whatever it raises is no reason to end.
    async def judge() -> None:
        connection = through_jeepney.JeepneyConnection()
        good = said("fine", signature="s")
        _, length = Header.from_buffer(good)
        for position in range(length):
            for byte in (0, 1, 255):
                connection._wanted(good[:position] + bytes([byte]) + good[position + 1 : length], 8)

    asyncio.run(judge())
