"""Entries for the system's journal, by its own protocol: what one filters by is a field beside the line.

    journalctl -u kurird KURIR_TOPIC=orders KURIR_VERDICT=dead

The line itself stays what it is on standard error. The protocol is a datagram per entry; nothing here ever waits. What
the journal does not take at this moment (it is gone, or behind) goes to standard error, which it reads too.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kurir.logs.sinks import Entry, StreamSink

SOCKET: Final = Path("/run/systemd/journal/socket")

FIELDS: Final = ("job", "topic", "destination", "correlation_id", "owner", "verdict", "error_kind")
"""What becomes a field, as KURIR_ and its name in capitals."""

_NAMES: Final = {name: f"KURIR_{name.upper()}".encode() for name in FIELDS}
_PRIORITIES: Final = {"debug": b"7", "info": b"6", "warning": b"4", "error": b"3"}  # of syslog
_IDENTIFIER: Final = (b"SYSLOG_IDENTIFIER", b"kurird")
_STDERR: Final = 2
_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class JournalSink:
    """Sends each entry as a datagram; what cannot be sent goes to the stream that the journal reads."""

    terminal: Final = False

    def __init__(self, address: Path, stream: socket.socket) -> None:
        """`stream`: standard error. The address is looked up each time: the journal may be started anew."""
        self._address = str(address)
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._stream = stream
        self._fallback = StreamSink(_Hasty(stream))

    def put(self, entries: Sequence[Entry]) -> bool:
        left = [entry for entry in entries if not self._send(entry)]
        return not left or self._fallback.put(left)

    def close(self) -> None:
        self._channel.close()
        self._stream.close()

    def _send(self, entry: Entry) -> bool:
        # Values are bounded where they are made clean, so that no entry is too long for a datagram.
        try:
            self._channel.sendto(datagram(entry), _FLAGS, self._address)
        except OSError:
            return False
        return True


class _Hasty:
    """A connected socket as a stream that never waits, without a flag that others who share it would notice."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def write(self, data: bytes, /) -> int | None:
        try:
            return self._channel.send(data, _FLAGS)
        except BlockingIOError:
            return None

    def isatty(self) -> bool:
        return False


def datagram(entry: Entry) -> bytes:
    """An entry as the journal's protocol has it."""
    fields = entry.fields
    pairs = [
        (b"MESSAGE", entry.line.removesuffix(b"\n")),
        (b"PRIORITY", _PRIORITIES.get(fields["level"], b"6")),
        _IDENTIFIER,
        *((name, str(fields[key]).encode()) for key, name in _NAMES.items() if key in fields),
    ]
    return encode(pairs)


def encode(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Names and values: on a line of their own, or, where a value has line ends in it, after its length."""
    return b"".join(
        b"%b\n%b%b\n" % (name, len(value).to_bytes(8, "little"), value)
        if b"\n" in value
        else b"%b=%b\n" % (name, value)
        for name, value in pairs
    )


def journal(environ: Mapping[str, str], address: Path = SOCKET) -> JournalSink | None:
    """The journal, if it is what reads standard error (systemd says which stream that is) and takes entries."""
    try:
        found = os.fstat(_STDERR)
        named = environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"
        if not (named and stat.S_ISSOCK(found.st_mode) and stat.S_ISSOCK(address.stat().st_mode)):
            return None
        return JournalSink(address, socket.socket(fileno=os.dup(_STDERR)))
    except OSError:
        return None
