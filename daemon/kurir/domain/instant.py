"""The present instant, as the rules and the store are told it."""

from __future__ import annotations

from msgspec import Struct


class Now(Struct, frozen=True, gc=False):
    """One instant on both clocks, in milliseconds: device time decides, wall time is shown to people."""

    device: int
    wall: int
