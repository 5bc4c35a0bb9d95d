"""A real HTTP server on a Unix socket that answers as told: for answers that the real daemon never gives."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

JOB = {
    "id": "0197c2a4-7a10-7c3e-9f53-2c6bb7d2e4b1",
    "seq": 1,
    "topic": "orders",
    "destination": "api",
    "state": "pending",
    "reason": "new",
    "attempts": 0,
    "charged": 0,
    "max_attempts": 25,
    "size": 214,
    "content_type": "application/json",
    "created_at": "2026-07-20T10:15:00.123Z",
    "last_error": None,
}


def job(**members: Any) -> dict[str, Any]:
    return {**JOB, **members}


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    @property
    def line(self) -> str:
        return f"{self.method} {self.target}"


@dataclass
class Reply:
    """An answer; `raw` is written instead of HTTP, `silent` closes without a word, `stall` waits before the body."""

    status: int = 200
    document: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    raw: bytes | None = None
    silent: bool = False
    stall: threading.Event | None = None
    missing: int = 0  # bytes that Content-Length promises and that never come

    def content(self) -> bytes:
        return self.body if self.body is not None else json.dumps(self.document).encode()


def refusal(status: int, code: str, detail: str, **more: Any) -> Reply:
    document = {"type": "about:blank", "title": "No", "status": status, "code": code, "detail": detail, **more}
    return Reply(status, document, {"Content-Type": "application/problem+json"})


Script = Callable[[Request], Reply]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedDaemon

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = Request(self.command, self.path, dict(self.headers.items()), self.rfile.read(length))
        self.server.requests.append(request)
        reply = self.server.next_reply(request)
        if reply.silent:
            self.close_connection = True
            return
        if reply.raw is not None:
            self.wfile.write(reply.raw)
            if reply.stall is not None:
                reply.stall.wait(30)
            self.close_connection = True
            return
        content = reply.content()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) + reply.missing))
        self.end_headers()
        if reply.stall is not None:
            reply.stall.wait(30)
        self.wfile.write(content)
        if reply.missing:
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - http.server calls them so

    def log_message(self, *args: object) -> None:
        return

    def address_string(self) -> str:
        return "client"


class ScriptedDaemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, *replies: Reply | Script) -> None:
        super().__init__(str(path), _Handler)
        self.path = str(path)
        self.requests: list[Request] = []
        self._replies = list(replies)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    def next_reply(self, request: Request) -> Reply:
        """The next of the script; the last one repeats."""
        with self._lock:
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return reply(request) if callable(reply) else reply

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        return  # a client that went away is what some tests are about

    def __enter__(self) -> ScriptedDaemon:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in self._open:  # a daemon that ends takes its connections along
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        Path(self.path).unlink(missing_ok=True)
