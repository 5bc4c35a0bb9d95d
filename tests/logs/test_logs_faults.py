"""Streams that fail, faults that nobody caught, and the format for a terminal."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kurir.logs import Folding, Logger, configure, install_handlers


class Memory(io.BytesIO):
    """A file that nobody looks at, or a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def stream() -> Memory:
    return Memory()


@pytest.fixture
async def logger(stream: Memory) -> Any:
    logger = configure("info", "json", stream)
    folding = Folding(lambda: 0, lambda *_: None)
    undo = install_handlers(asyncio.get_running_loop(), logger, folding, lambda text: text.replace("hunter2", "***"))
    yield logger
    undo()


async def test_a_fault_of_a_lost_task_is_one_line_that_says_where(logger: Logger, stream: Memory) -> None:
    async def fail() -> None:
        raise ValueError("hunter2\nsecond line")

    task = asyncio.create_task(fail())
    await asyncio.wait({task})
    del task
    gc.collect()
    (line,) = stream.lines()
    assert line["level"] == "error"
    assert line["event"] == "Task exception was never retrieved"
    assert line["fault"] == "ValueError: ***\\nsecond line"
    assert "test_logs_faults.py" in line["where"]


async def test_an_accept_that_fails_over_and_over_is_one_line(logger: Logger, stream: Memory) -> None:
    loop = asyncio.get_running_loop()
    fault = OSError(24, "Too many open files")
    for _ in range(1_000):
        loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": fault})
    assert len(stream.lines()) == 1


async def test_a_fault_of_a_thread_is_a_line(logger: Logger, stream: Memory) -> None:
    def fail() -> None:
        raise RuntimeError("in a thread")

    thread = threading.Thread(target=fail, name="writer")
    thread.start()
    await asyncio.to_thread(thread.join)
    (line,) = stream.lines()
    assert (line["thread"], line["fault"]) == ("writer", "RuntimeError: in a thread")


async def test_the_warnings_of_libraries_are_lines_and_are_folded(logger: Logger, stream: Memory) -> None:
    library = logging.getLogger("some.library")
    for number in range(100):
        library.warning("cannot do %s", f"number {number}\ud83d")
    library.info("nobody cares")
    wrong = {"name": "some.library", "levelno": logging.ERROR, "msg": "%d", "args": ("no number",)}
    (ours,) = [each for each in logging.getLogger().handlers if type(each).__module__ == "kurir.logs.faults"]
    ours.handle(logging.makeLogRecord(wrong))
    first, second = stream.lines()
    assert (first["logger"], first["text"]) == ("some.library", "cannot do number 0\\ud83d")
    assert (second["level"], second["text"]) == ("error", "%d")


async def test_a_fault_that_cannot_be_shown_is_shown_by_its_name(logger: Logger, stream: Memory) -> None:
    class Awkward(Exception):
        def __str__(self) -> str:
            raise ValueError

    asyncio.get_running_loop().call_exception_handler({"message": "broken", "exception": Awkward()})
    logger.error("direct", fault=Awkward())
    first, second = stream.lines()
    assert first["fault"] == "Awkward"
    assert "Awkward" in second["fault"]


async def test_queued_lines_are_written_together_at_the_end_of_the_tick(logger: Logger, stream: Memory) -> None:
    for number in range(3):
        logger.queue(logger.level, "attempt", {"n": number})
    assert stream.getvalue() == b""
    await asyncio.sleep(0)
    assert [line["n"] for line in stream.lines()] == [0, 1, 2]


async def test_a_line_at_once_comes_after_those_that_were_queued_before(logger: Logger, stream: Memory) -> None:
    logger.queue(logger.level, "first", {})
    logger.info("second")
    assert [line["event"] for line in stream.lines()] == ["first", "second"]


def test_an_uncaught_fault_of_the_program_is_one_line() -> None:
    code = """
import asyncio
from kurir.logs import *
log = configure("info", "json")
loop = asyncio.new_event_loop()
install_handlers(loop, log, Folding(lambda: 0, lambda *a: None), lambda text: text)
loop.close()
raise RuntimeError("the end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["fault"] == "RuntimeError: the end"


def test_a_full_disk_costs_lines_and_says_so_when_it_is_over(tmp_path: Path) -> None:
    class Disk(Memory):
        full = False

        def write(self, data: Any, /) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(data)

    disk = Disk()
    logger = configure("info", "json", disk)
    disk.full = True
    for _ in range(3):
        logger.info("lost")
    disk.full = False
    logger.info("kept")
    first, second = disk.lines()
    assert (first["event"], first["writes"]) == ("lines of the log could not be written", 3)
    assert second["event"] == "kept"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_real_full_device_raises_nothing() -> None:
    with Path("/dev/full").open("wb", buffering=0) as device:
        logger = configure("info", "json", device)
        logger.info("lost")
        assert logger.lost == 1


def test_a_line_that_was_written_in_part_spoils_no_other() -> None:
    class Half(Memory):
        left = 20

        def write(self, data: Any, /) -> int:
            if self.left == 0:
                raise OSError(28, "No space left on device")
            taken = min(len(data), self.left)
            self.left -= taken
            return super().write(data[:taken])

    half = Half()
    logger = configure("info", "json", half)
    logger.info("torn")
    half.left = 10_000
    logger.info("whole")
    torn, *rest = half.getvalue().splitlines()
    assert len(torn) == 20
    assert [json.loads(line)["event"] for line in rest] == ["lines of the log could not be written", "whole"]


@pytest.fixture
def broken_pipe() -> Iterator[Any]:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        yield pipe


def test_a_closed_pipe_and_a_closed_file_raise_nothing(broken_pipe: Any) -> None:
    logger = configure("info", "json", broken_pipe)
    logger.info("nobody reads")
    broken_pipe.close()
    logger.info("nothing to write to")
    assert logger.lost == 2


def test_a_pipe_that_nobody_reads_costs_lines_and_one_wait_and_goes_on_whole_when_it_is_read_again() -> None:
    """In a process of its own, whose standard error is the pipe: a write that waits would never end."""
    program = """
from kurir.logs import configure
log = configure("info", "json")
for number in range(3000):
    log.info("line", number=number)
print(log.lost > 1000, flush=True)
input()
log.info("read again")
"""
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, text=True
    ) as process:
        os.close(writing)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        said = os.read(reading, 1 << 20)
        process.stdin.write("\n")
        process.stdin.close()
        with os.fdopen(reading, "rb") as rest:
            said += rest.read()
        assert process.wait(20) == 0
    lines = said.splitlines()
    *whole, _torn = [line for line in lines if b'"line"' in line]
    assert [json.loads(line)["number"] for line in whole] == list(range(len(whole)))
    assert [json.loads(line)["event"] for line in lines[-2:]] == ["lines of the log could not be written", "read again"]


def test_a_terminal_gets_columns_and_anything_else_json() -> None:
    terminal, file = Memory(terminal=True), Memory()
    configure("info", "auto", terminal).info("it runs", topic="orders\x1b[2J", n=3)
    configure("info", "auto", file).info("it runs", topic="orders")
    shown = terminal.getvalue().decode()
    assert "it runs" in shown
    assert "\x1b[2J" not in shown
    assert not shown.startswith("{")
    assert file.lines()[0]["topic"] == "orders"
    assert "\x1b" in shown


def test_columns_that_are_asked_for_elsewhere_have_no_colours_which_a_journal_would_show_as_noise() -> None:
    file = Memory()
    configure("info", "console", file).info("it runs", topic="orders")
    text = file.getvalue().decode()
    assert "topic=orders" in text
    assert text.rstrip("\n").isprintable()


def test_structlog_is_imported_only_for_a_terminal() -> None:
    code = "import sys, kurir.logs as l; l.configure('info', 'json'); sys.exit('structlog' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
