"""A token server for client credentials (RFC 6749, section 4.4) on loopback: issues tokens, knows them, and fails.

async with TokenServer() as tokens:
    tokens.script = [503, 503]             # statuses of the first calls; afterwards it works
    tokens.valid                           # what an API accepts now
    tokens.revoke()
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote_plus

from aiohttp import web

CLIENT = ("edge 17", "s3cret+/of:us")


class TokenServer:
    """Counts `calls`, keeps `forms` and `authorizations` as they came."""

    def __init__(self, *, basic: bool = True, in_body: bool = False, expires_in: object = 3600) -> None:
        self.basic, self.in_body, self.expires_in = basic, in_body, expires_in
        self.valid: set[str] = set()
        self.script: list[int | dict[str, Any] | web.Response] = []
        self.refusal: dict[str, str] | None = None
        self.calls = 0
        self.forms: list[dict[str, str]] = []
        self.authorizations: list[str | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self._numbers = itertools.count(1)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/oauth/token", self._answer)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.port}/oauth/token"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def accepts(self, authorization: bytes | None) -> bool:
        """Whether an API lets this header in."""
        return authorization is not None and authorization.decode().removeprefix("Bearer ") in self.valid

    def revoke(self) -> None:
        self.valid.clear()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls += 1
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        self.authorizations.append(request.headers.get("Authorization"))
        self.arrived.set()
        await self.gate.wait()
        if self.script:
            step = self.script.pop(0)
            if isinstance(step, web.Response):
                return step
            return web.json_response(step) if isinstance(step, dict) else web.Response(status=step, text="down")
        if self.refusal is not None:
            return web.json_response(self.refusal, status=400)
        if form.get("grant_type") != "client_credentials":
            return web.json_response({"error": "unsupported_grant_type"}, status=400)
        if self._client(request, form) != CLIENT:
            return web.json_response({"error": "invalid_client"}, status=401)
        token = f"token-number-{next(self._numbers)}"
        self.valid.add(token)
        document = {"access_token": token, "token_type": "Bearer"}
        if self.expires_in is not None:
            document["expires_in"] = self.expires_in
        return web.json_response(document)

    def _client(self, request: web.Request, form: dict[str, str]) -> tuple[str, str] | None:
        authorization = request.headers.get("Authorization", "")
        if self.basic and authorization.startswith("Basic "):
            name, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
            return unquote_plus(name), unquote_plus(secret)
        if self.in_body and "client_secret" in form:
            return form["client_id"], form["client_secret"]
        return None
