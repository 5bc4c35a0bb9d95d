"""How a line looks: JSON for journald and files, columns and colours for a person at a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

Fields = dict[str, Any]
Format = Callable[[Fields], bytes]
"""Makes a line with its end of fields whose text is clean; `timestamp`, `level` and `event` are among them."""

_encode: Final = msgspec.json.Encoder().encode


def json_line(fields: Fields) -> bytes:
    return _encode(fields) + b"\n"


def console(*, colours: bool) -> Format:
    """structlog's columns. Imported where somebody looks: with what it pulls in it takes 4.6 MiB and 85 ms."""
    from structlog.dev import ConsoleRenderer  # noqa: PLC0415 - see above

    render = ConsoleRenderer(sort_keys=False, colors=colours)

    def line(fields: Fields) -> bytes:
        return f"{render(None, fields['level'], fields)}\n".encode("utf-8", "backslashreplace")

    return line


class Stamp:
    """RFC 3339 time stamps; the text of an instant is made once."""

    __slots__ = ("_instant", "_second", "_start", "_text")

    def __init__(self) -> None:
        self._instant = -1
        self._second = -1
        self._start = ""
        self._text = ""

    def __call__(self, wall: float) -> str:
        """`wall`: seconds since 1970."""
        instant = int(wall * 1000)
        if instant != self._instant:
            second, millisecond = divmod(instant, 1000)
            if second != self._second:
                self._start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
                self._second = second
            self._text = f"{self._start}.{millisecond:03d}Z"
            self._instant = instant
        return self._text
