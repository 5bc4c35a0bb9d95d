"""The server that the demo delivers to: the receiver, with two paths that refuse, and a switch to take it away."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from kurir.receiver.demo.failure import DemoFailed
from kurir.receiver.server import application, serve

HOST = "127.0.0.1"
FAILURES = 2
"""So many attempts of each job for /unsteady are answered with 503."""


class Destination:
    """The receiver on one port of the loopback interface, which it keeps while it comes and goes."""

    def __init__(self, store: Path, port: int) -> None:
        self._store = store
        self._port = port
        self._tried: Counter[str] = Counter()
        self._running = AsyncExitStack()
        self.url = ""

    async def appear(self) -> None:
        """Be reachable. Raises DemoFailed when the port cannot be had."""
        app = application(self._store)
        app.middlewares.insert(0, self._refuse)
        try:
            self.url = await self._running.enter_async_context(serve(app, HOST, self._port))
        except OSError as fault:
            reason = os.strerror(fault.errno) if fault.errno else str(fault)
            raise DemoFailed(
                f"cannot listen on {HOST}:{self._port}: {reason}; leave --port out to take a free one"
            ) from fault
        self._port = int(self.url.rpartition(":")[2])

    async def vanish(self) -> None:
        """Refuse every connection until `appear`; what was received stays."""
        await self._running.aclose()

    async def received(self) -> list[dict[str, Any]]:
        """What was delivered, as the receiver tells anybody who asks."""
        async with aiohttp.ClientSession() as session, session.get(self.url) as answer:
            document: dict[str, list[dict[str, Any]]] = await answer.json()
        return document["received"]

    @web.middleware
    async def _refuse(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/refused":
            return web.json_response({"error": "this server wants no such thing"}, status=422)
        if request.path == "/unsteady":
            key = request.headers.get("Idempotency-Key", "")
            self._tried[key] += 1
            if self._tried[key] <= FAILURES:
                return web.json_response({"error": "try again later"}, status=503)
        return await handler(request)
