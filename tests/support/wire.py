"""HTTP/1.1 as far as the scripted server needs it: a request kept raw, and the two ways in which a body is framed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came in: nothing decoded, nothing sorted."""

    line: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    complete: bool  # False: the script did not want the rest, or the client did not send it
    connection: int  # from 1, in the order of connecting
    at: float  # time.monotonic() when the head was read

    @property
    def method(self) -> str:
        return self.line.split(b" ")[0].decode("latin-1")

    @property
    def target(self) -> str:
        return self.line.split(b" ")[1].decode("latin-1")

    def values(self, name: str) -> list[bytes]:
        """All values of a header, in order, whatever its case."""
        return [value for known, value in self.headers if known.lower() == name.lower().encode()]

    def header(self, name: str) -> bytes | None:
        """The one value of a header; None if it is absent. Fails when it is there twice."""
        values = self.values(name)
        assert len(values) <= 1, f"{name} is there {len(values)} times"
        return values[0] if values else None


def parse_head(head: bytes, connection: int, at: float) -> Request:
    """Take a request head (up to and with the empty line) apart, without judging it."""
    line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    pairs = (field.partition(b":") for field in fields)
    return Request(line, tuple((name, value.strip(b" \t")) for name, _, value in pairs), b"", False, connection, at)


async def read_body(request: Request, reader: asyncio.StreamReader) -> Request:
    """Return the request with its decoded body; `complete` says whether it came to its end."""
    body = bytearray()
    try:
        if (request.header("Transfer-Encoding") or b"").lower() == b"chunked":
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        else:
            body += await reader.readexactly(int(request.header("Content-Length") or b"0"))
    except asyncio.IncompleteReadError as error:
        return replace(request, body=bytes(body + error.partial))
    except ConnectionError:
        return replace(request, body=bytes(body))
    return replace(request, body=bytes(body), complete=True)


async def send(writer: asyncio.StreamWriter, *parts: bytes) -> None:
    writer.write(b"".join(parts))
    await writer.drain()
