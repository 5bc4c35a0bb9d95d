"""The stream of an export: as long as a queue, and worth nothing unless it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kurir.client.connection import Wire
from kurir.client.errors import Cause, DaemonUnreachable

END: Final = b'{"end":true,'
"""How the last line begins. It is no job."""


def export_lines(wire: Wire, target: str) -> Iterator[bytes]:
    """Every line without its break, the last one included. Raises DaemonUnreachable when that is missing."""
    connection, response = wire.stream(target, {})
    rest = b""
    try:
        while True:
            connection.allow(wire.timeout)  # of each piece: the whole may take as long as it likes
            piece = wire.read_piece(response)
            if not piece:
                raise DaemonUnreachable(wire.path, Cause.LOST, "the export broke off")
            *lines, rest = (rest + piece).split(b"\n") if b"\n" in piece else (rest + piece,)
            for line in lines:
                yield line
                if line.startswith(END):
                    return
    finally:
        connection.close()
