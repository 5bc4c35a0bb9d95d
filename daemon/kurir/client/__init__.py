"""The client of kurird for Python programs: `Client` on the standard library alone, `AsyncClient` on aiohttp.

    from kurir.client import Client

    with Client() as kurird:
        job = kurird.submit("orders", {"id": 7}, ordering_key="customer-7")

A submit that returns is a promise: the job is on disk. One that raises `DaemonUnreachable` may be repeated with the
exception's `idempotency_key` and stays one job.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kurir.client.address import DEFAULT_SOCKET, socket_path
from kurir.client.documents import Body, Job, LineResult, Page
from kurir.client.errors import (
    BrokenAnswer,
    Cause,
    Clash,
    DaemonUnreachable,
    Invalid,
    KurirError,
    KurirProblem,
    NotAllowed,
    NotFound,
    Refused,
)
from kurir.client.event_stream import Event
from kurir.client.leases import LeasedJob
from kurir.client.submission import NOTHING, EditOptions, NewJob, RawJson, SubmitOptions, Text

if TYPE_CHECKING:
    from kurir.client.asynchronous import AsyncClient
    from kurir.client.blocking import Client, EventStream

# aiohttp takes a quarter of a second to import, http.client a twentieth: only who uses them shall pay.
_LATE = {
    "AsyncClient": "kurir.client.asynchronous",
    "Client": "kurir.client.blocking",
    "EventStream": "kurir.client.blocking",
}

__all__ = [
    "DEFAULT_SOCKET",
    "NOTHING",
    "AsyncClient",
    "Body",
    "BrokenAnswer",
    "Cause",
    "Clash",
    "Client",
    "DaemonUnreachable",
    "EditOptions",
    "Event",
    "EventStream",
    "Invalid",
    "Job",
    "KurirError",
    "KurirProblem",
    "LeasedJob",
    "LineResult",
    "NewJob",
    "NotAllowed",
    "NotFound",
    "Page",
    "RawJson",
    "Refused",
    "SubmitOptions",
    "Text",
    "socket_path",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
