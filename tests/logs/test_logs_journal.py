"""Entries for the journal: their fields, and what becomes of them when nobody takes them (the real one: in the lab)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain import events
from kurir.domain.job import Place, State
from kurir.logs import Folding, Level, Logger, LogSubscriber
from kurir.logs.formats import json_line
from kurir.logs.journal import JournalSink, encode
from kurir.logs.sinks import Entry
from support.builders import build_job


def decoded(data: bytes) -> dict[str, bytes]:
    """A datagram of the journal's protocol, read as systemd describes it."""
    found: dict[str, bytes] = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, end, data = data[8 : 8 + size], data[8 + size : 9 + size], data[9 + size :]
            assert end == b"\n"
        assert name.decode() not in found
        found[name.decode()] = value
    return found


class Journal:
    """The two sockets that journald reads."""

    def __init__(self, folder: Path) -> None:
        self.address = folder / "socket"
        self.listen()
        self.stderr, ours = socket.socketpair()
        self.sink = JournalSink(self.address, ours)
        self.logger = Logger(Level.INFO, json_line, self.sink)

    def listen(self) -> None:
        self.entries_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.entries_socket.bind(str(self.address))
        self.entries_socket.setblocking(False)

    def stop(self) -> None:
        self.entries_socket.close()
        self.address.unlink()

    def entries(self) -> list[dict[str, bytes]]:
        found = []
        while True:
            try:
                found.append(decoded(self.entries_socket.recv(1 << 20)))
            except BlockingIOError:
                return found

    def lines(self) -> list[dict[str, Any]]:
        """What came on standard error."""
        data = b""
        while True:
            try:
                data += self.stderr.recv(1 << 20, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return [json.loads(line) for line in data.splitlines() if line]

    def close(self) -> None:
        self.sink.close()
        self.stderr.close()
        self.entries_socket.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    journal.close()


@given(
    st.lists(
        st.tuples(st.from_regex(rb"[A-Z][A-Z_]{0,10}", fullmatch=True), st.binary()), unique_by=lambda pair: pair[0]
    )
)
def test_values_of_any_bytes_come_back_as_they_were(pairs: list[tuple[bytes, bytes]]) -> None:
    assert decoded(encode(pairs)) == {name.decode(): value for name, value in pairs}


def test_an_attempt_has_fields_to_filter_by_and_the_line_that_it_has_elsewhere(journal: Journal) -> None:
    subscriber = LogSubscriber(
        journal.logger, Folding(lambda: 0, lambda *_: None), lambda text: text.replace("hunter2", "***"), lambda: 0
    )
    job = build_job(correlation_id="order 7\nKURIR_OWNER=0", topic="orders", destination="api", owner=1000)
    subscriber.on_event(events.AttemptEnded(job, "dead", 404, 0.01, 1, 1, "no hunter2\nhere", "http_status"))
    [entry] = journal.entries()
    message = json.loads(entry.pop("MESSAGE"))
    assert entry == {
        "PRIORITY": b"4",
        "SYSLOG_IDENTIFIER": b"kurird",
        "KURIR_JOB": job.public_id.encode(),
        "KURIR_TOPIC": b"orders",
        "KURIR_DESTINATION": b"api",
        "KURIR_CORRELATION_ID": rb"order 7\nKURIR_OWNER=0",
        "KURIR_OWNER": b"1000",
        "KURIR_VERDICT": b"dead",
        "KURIR_ERROR_KIND": b"http_status",
    }
    assert message["event"] == "attempt"
    assert message["error"] == r"no ***\nhere"
    assert journal.lines() == []


def test_levels_are_priorities_of_syslog(journal: Journal) -> None:
    journal.logger.set_level(Level.DEBUG)
    for level in Level:
        journal.logger.write(level, "it runs")
    assert [entry["PRIORITY"] for entry in journal.entries()] == [b"7", b"6", b"4", b"3"]


def test_a_journal_that_is_gone_is_replaced_by_standard_error_until_it_is_back(journal: Journal) -> None:
    journal.stop()
    journal.logger.info("nobody is there", topic="orders")
    assert [line["topic"] for line in journal.lines()] == ["orders"]
    journal.listen()
    journal.logger.info("there it is")
    assert [json.loads(entry["MESSAGE"])["event"] for entry in journal.entries()] == ["there it is"]
    assert journal.lines() == []


def test_a_journal_that_does_not_read_costs_lines_that_are_counted_and_never_a_wait(journal: Journal) -> None:
    while not journal.logger.lost:  # until both sockets are full
        journal.logger.info("again", text="x" * 400)
    journal.logger.info("lost")
    assert journal.logger.lost == 2
    kept = len(journal.entries())
    assert kept > 0
    assert len(journal.stderr.recv(1 << 24)) > 0
    journal.logger.info("it reads again")
    told, last = (json.loads(entry["MESSAGE"]) for entry in journal.entries())
    assert (told["event"], told["writes"]) == ("lines of the log could not be written", 2)
    assert last["event"] == "it reads again"


def test_an_entry_that_is_too_long_for_a_datagram_goes_to_standard_error(journal: Journal) -> None:
    journal.stderr.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    line = b'{"event": "' + b"x" * 300_000 + b'"}\n'
    journal.sink.put([Entry({"level": "info", "event": "x"}, line), Entry({"level": "info", "event": "y"}, b"{}\n")])
    assert [entry["MESSAGE"] for entry in journal.entries()] == [b"{}"]
    assert journal.stderr.recv(1 << 16).startswith(b'{"event": "xxx')


SAY = """
import sys
from pathlib import Path
from kurir.logs.journal import journal
address, *streams = sys.argv[1:]
print(*(type(journal({"JOURNAL_STREAM": stream}, Path(address))).__name__ for stream in streams))
print(journal({}, Path(address)))
"""


def test_only_a_standard_error_that_the_journal_reads_makes_one(journal: Journal) -> None:
    theirs, ours = socket.socketpair()
    found = os.fstat(ours.fileno())
    right = f"{found.st_dev}:{found.st_ino}"

    def kinds(address: Path, *streams: str) -> str:
        command = [sys.executable, "-c", SAY, str(address), *streams]
        return subprocess.run(command, stderr=ours, stdout=subprocess.PIPE, text=True, check=True).stdout

    with theirs, ours:
        wrong = ("", "8:17", "nonsense", f"{right}:1", "\u00b2:\u00b2")
        assert kinds(journal.address, right, *wrong) == f"JournalSink {'NoneType ' * 4}NoneType\nNone\n"
        assert kinds(journal.address.with_name("missing"), right) == "NoneType\nNone\n"
        assert kinds(journal.address.parent, right) == "NoneType\nNone\n"


def test_the_end_of_a_job_that_no_attempt_told_has_the_fields_too(journal: Journal) -> None:
    subscriber = LogSubscriber(journal.logger, Folding(lambda: 0, lambda *_: None), str, lambda: 0)
    job = build_job(place=Place.DEAD)
    subscriber.on_event(events.JobChanged(job, State.PENDING, 9.0))
    [entry] = journal.entries()
    assert (entry["KURIR_JOB"], entry["PRIORITY"]) == (job.public_id.encode(), b"4")
