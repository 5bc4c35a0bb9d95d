"""What the scripted server can do with a request: values, so that a script is a list that reads like the story."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field

Headers = tuple[tuple[str, str], ...]


class Stage(enum.Enum):
    """How much of a request the server lets in before it acts."""

    CONNECT = "connect"  # nothing is read
    HEADERS = "headers"  # the body stays in the socket
    BODY = "body"  # the whole request was read


@dataclass(frozen=True, slots=True)
class Reply:
    """An ordinary response. `length` overrides Content-Length: a lie if it is not the body's."""

    status: int = 200
    body: bytes = b""
    headers: Headers = ()
    reason: str = "Scripted"
    keep_alive: bool = True
    length: int | None = None
    chunked: bool = False

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status:03d} {self.reason}", *(f"{name}: {value}" for name, value in self.headers)]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        elif self.status not in (204, 304):
            lines.append(f"Content-Length: {len(self.body) if self.length is None else self.length}")
        if not self.keep_alive:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")

    def content(self) -> bytes:
        if not self.chunked:
            return self.body
        first = b"%x\r\n%s\r\n" % (len(self.body), self.body) if self.body else b""
        return first + b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes as they are; then the connection is closed, unless it is kept."""

    data: bytes
    keep_alive: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """An orderly close (FIN) without a response."""

    after: Stage = Stage.BODY


@dataclass(frozen=True, slots=True)
class Reset:
    """A hard one (RST)."""

    after: Stage = Stage.BODY


@dataclass(frozen=True, slots=True)
class Cut:
    """The response head and a part of its body (by default half), then FIN."""

    reply: Reply
    sent: int | None = None


@dataclass(frozen=True, slots=True)
class Drip:
    """The response in small pieces, `gap` seconds apart."""

    reply: Reply
    size: int = 1
    gap: float = 0.01


@dataclass(frozen=True, slots=True)
class Hang:
    """Silence until the event, or until the server stops; then the rest of the request is read and answered."""

    until: asyncio.Event = field(default_factory=asyncio.Event)
    then: Reply = field(default_factory=Reply)
    after: Stage = Stage.BODY


Answer = Reply | Raw | Close | Reset | Cut | Drip | Hang


def false_gzip(status: int = 502, *, headers: Headers = ()) -> Reply:
    """A response that says it is gzip and is not."""
    return Reply(status, b"<html>this is not gzip</html>", (("Content-Encoding", "gzip"), *headers))
