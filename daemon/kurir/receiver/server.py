"""A small server that keeps whatever it is sent, once per idempotency key.

For trying the daemon and for its tests: what was received and the response to it are one transaction, so what `GET /`
lists is exactly what was delivered, through any crash of either side.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from kurir.receiver.idempotency import WRITES, current_claim, middleware
from kurir.receiver.store import WEEK, Store

SCHEMA = """
CREATE TABLE IF NOT EXISTS received (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at      REAL NOT NULL,
    method  TEXT NOT NULL,
    target  TEXT NOT NULL,
    key     TEXT,
    headers TEXT NOT NULL,
    sha256  TEXT NOT NULL,
    body    BLOB NOT NULL
) STRICT;
"""

_INSERT = "INSERT INTO received (at, method, target, key, headers, sha256, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
_DROP_OLD = "DELETE FROM received WHERE seq <= ?"
_COUNT = "SELECT count(*) FROM received"
_LIST = """SELECT seq, at, method, target, key, headers, sha256, length(body) FROM received
WHERE seq > ? ORDER BY seq LIMIT ?"""
_BODY = "SELECT body FROM received WHERE seq = ?"

MAX_BODY = 64 * 1024 * 1024
KEEP = 100_000
_PAGE = 1_000
_LARGEST = 2**63 - 1
_STORE = web.AppKey("store", Store)
_KEEP = web.AppKey("keep", int)
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})


def application(
    path: Path | str, *, keep: int = KEEP, max_body: int = MAX_BODY, expires_after: float = WEEK
) -> web.Application:
    """Build the server as an aiohttp application that keeps the newest `keep` things of at most `max_body` bytes."""
    store = Store(path, schema=SCHEMA, expires_after=expires_after)
    app = web.Application(middlewares=[middleware(store)], client_max_size=max_body)
    app[_STORE], app[_KEEP] = store, keep
    app.cleanup_ctx.append(store.run)
    app.router.add_get("/", _list)
    app.router.add_get("/received/{seq:[0-9]{1,18}}", _body)
    for method in sorted(WRITES):
        app.router.add_route(method, "/{path:.*}", _receive)
    return app


@asynccontextmanager
async def serve(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the application in this process and yield its base URL; port 0 takes a free one. Raises OSError."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        name, bound = runner.addresses[0][:2]
        yield f"http://[{name}]:{bound}" if ":" in name else f"http://{name}:{bound}"
    finally:
        await runner.cleanup()


async def _receive(request: web.Request) -> web.Response:
    body = await request.read()
    claim = current_claim()
    headers = [(name, "…" if name.lower() in _SECRET else _printable(value)) for name, value in request.headers.items()]
    keep = request.app[_KEEP]
    digest = hashlib.sha256(body).hexdigest()
    key = claim.key if claim else None
    row = (time.time(), request.method, _printable(request.raw_path), key, json.dumps(headers), digest, body)

    def insert(connection: sqlite3.Connection) -> web.Response:
        seq = connection.execute(_INSERT, row).lastrowid or 0
        connection.execute(_DROP_OLD, (seq - keep,))
        return web.json_response({"seq": seq, "sha256": digest}, status=201, headers={"Location": f"/received/{seq}"})

    return await (claim.commit(insert) if claim else request.app[_STORE].transaction(insert))


async def _list(request: web.Request) -> web.Response:
    """List what was received, oldest first: `?after=SEQ&limit=N`, at most 1 000."""
    after, limit = _whole(request.query.get("after", "0")), _whole(request.query.get("limit", str(_PAGE)))

    def look(connection: sqlite3.Connection) -> tuple[int, list[tuple[object, ...]]]:
        return connection.execute(_COUNT).fetchone()[0], connection.execute(
            _LIST, (after, min(limit, _PAGE))
        ).fetchall()

    count, rows = await request.app[_STORE].transaction(look)
    names = ("seq", "at", "method", "target", "idempotency_key", "headers", "sha256", "bytes")
    received = [dict(zip(names, row, strict=True)) for row in rows]
    for thing in received:
        thing["headers"] = json.loads(str(thing["headers"]))
    return web.json_response({"count": count, "received": received})


def _whole(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 <= (number := int(text)) <= _LARGEST:
            return number
    raise web.HTTPBadRequest(text="after and limit are whole numbers")


def _printable(text: str) -> str:
    """Text of a header or target without the surrogates that stand for bytes that were not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


async def _body(request: web.Request) -> web.Response:
    seq = int(request.match_info["seq"])
    row = await request.app[_STORE].transaction(lambda c: c.execute(_BODY, (seq,)).fetchone())
    if row is None:
        raise web.HTTPNotFound(text="nothing of that number was received, or it is no longer kept")
    return web.Response(body=row[0], content_type="application/octet-stream")
