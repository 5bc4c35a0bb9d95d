"""Messages cut out of the bytes that come from the bus, without collecting those that nobody wants.

Anybody on the bus may send us a message of many megabytes. Its head tells how long it is and whether it is wanted; the
rest of an unwanted one is dropped as it comes, and costs neither memory nor the time to read it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

FIXED = 16  # bytes: up to the length of the fields, which the head ends with
LONGEST_HEAD = 64 * 1024
_ORDER = {ord("l"): "<", ord("B"): ">"}


class NotABus(ValueError):
    """These bytes are no messages: there is no way to find the next one."""


class Frames:
    """Bytes in, wanted messages out."""

    def __init__(self, wanted: Callable[[bytes, int], bool]) -> None:
        """`wanted` judges a message by its head and the length of its body."""
        self._wanted = wanted
        self._held = bytearray()
        self._drop = 0  # bytes of an unwanted message that are still to come
        self._need = FIXED  # until then there is nothing to decide
        self._taken = False  # the message whose rest is awaited is wanted

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that these bytes complete. Raises NotABus."""
        self._held += data
        while True:
            dropped = min(self._drop, len(self._held))
            if dropped:
                del self._held[:dropped]
                self._drop -= dropped
            if self._drop or len(self._held) < self._need:
                return
            head, body = sizes(self._held)
            if self._taken:
                message = bytes(self._held[: head + body])
                del self._held[: head + body]
                self._taken, self._need = False, FIXED
                yield message
            elif len(self._held) < head <= LONGEST_HEAD:
                self._need = head
            elif head <= LONGEST_HEAD and self._wanted(bytes(self._held[:head]), body):
                self._taken, self._need = True, head + body
            else:
                self._drop, self._need = head + body, FIXED


def sizes(message: bytes | bytearray) -> tuple[int, int]:
    """The lengths of the head (with its padding) and of the body, from the first bytes. Raises NotABus."""
    order = _ORDER.get(message[0])
    if order is None:
        raise NotABus(f"a message begins with {bytes(message[:1])!r}")
    body, _, fields = struct.unpack_from(f"{order}III", message, 4)
    return FIXED + (fields + 7) // 8 * 8, body
