"""The middleware that makes a repeated request harmless.

What it guarantees, for requests that bear a key, as long as the store's file is kept:

- Of all requests with one key (in one scope) at most one runs at any moment, in all processes on this file.
- Once a response was recorded, which is before its first byte is sent, the handler never runs again for that key; the
  response is replayed. Recorded are responses that say that something was done (`succeeded`).
- A key stands for one request (method, target, body) until it expires.
- No key is in progress for ever: a claim is worth as much as the life of the process that made it, and the next repeat
  takes over from a dead one.

What it cannot guarantee: when the process dies *inside* the handler, nobody knows how far that came, and the repeat
runs it again. Effects outside this database are therefore "at least once" across a crash. A handler whose effects are
in the same SQLite file returns `await current_claim().commit(effects)`: effects and response become one transaction,
and that is exactly once. When the disk fails after an ordinary handler, its true response is sent but not recorded.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from http import HTTPStatus
from typing import Protocol, assert_never

from aiohttp import web

from kurir.receiver import keys
from kurir.receiver.claims import Answer, Asked, ClaimLost, InProgress, Mine, Reused, digest
from kurir.receiver.responses import problem, replay, snapshot, succeeded
from kurir.receiver.store import Store, StoreFailing

log = logging.getLogger("kurir.receiver")

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Not in the request's own storage: the keys that it wants differ between the releases of aiohttp that we support.
_claim: ContextVar[Claim | None] = ContextVar("claim", default=None)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Middleware(Protocol):
    """What `aiohttp.web.Application(middlewares=[…])` takes."""

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse: ...


class Claim:
    """The right to answer one key, for as long as its handler runs."""

    def __init__(self, store: Store, asked: Asked) -> None:
        self._store = store
        self._asked = asked
        self._over = False

    def __repr__(self) -> str:
        return f"<Claim {self._asked.key!r}>"

    @property
    def key(self) -> str:
        """The key as the client meant it, without quotes and escapes."""
        return self._asked.key

    async def commit(self, effects: Callable[[sqlite3.Connection], web.Response]) -> web.Response:
        """Run the effects and record the response that they return, whatever its status, as one transaction.

        `effects` runs on the store's thread and is done or not done as a whole; what it raises undoes it. Raises
        StoreFailing and ClaimLost, which the middleware turns into 503 and 409.
        """

        def work(connection: sqlite3.Connection) -> tuple[web.Response, Answer]:
            response = effects(connection)
            return response, snapshot(response, self._store.max_response)

        response = await self._store.commit(self._asked, work)
        self._over = True
        return response

    async def _settle(self, response: web.StreamResponse, remember: Callable[[web.StreamResponse], bool]) -> None:
        if self._over:
            return
        if not remember(response):
            await self._release()
            return
        answer = snapshot(response, self._store.max_response)
        try:
            await self._store.commit(self._asked, lambda _: (None, answer))
        except (StoreFailing, ClaimLost) as error:
            # The work is done, so the client hears it: to say otherwise would make it repeat for certain.
            log.error("cannot record the response of key %r: %s", self.key, error)
            await self._release()
        except BaseException:  # cancelled: recorded or not, nobody is at work any more
            await self._release()
            raise

    async def _release(self) -> None:
        if self._over:
            return
        self._over = True
        try:
            await self._store.release(self._asked)
        except StoreFailing as error:
            log.error("cannot release key %r: %s", self.key, error)


def current_claim() -> Claim | None:
    """Return the claim of the request that is being handled, None if it bears no key."""
    return _claim.get()


def middleware(
    store: Store,
    *,
    header: str = "Idempotency-Key",
    methods: Collection[str] = WRITES,
    scope: Callable[[web.Request], str] = keys.by_authorization,
    remember: Callable[[web.StreamResponse], bool] = succeeded,
) -> Middleware:
    """Build the middleware; its guarantee is at the top of `kurir.receiver.idempotency`.

    `scope` names the client whose keys these are, so that nobody is shown another one's response; put this middleware
    behind the one that authenticates. `remember` says which responses are recorded. The body of a request is read whole
    before its handler runs, up to the application's `client_max_size`.
    """

    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        key = keys.parse(request.headers.getall(header, [])) if request.method in methods else None
        if key is None:
            return await handler(request)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", error.text or "")
        asked = Asked(scope(request), key, digest(request.method, request.raw_path, body))
        return await _answer(Claim(store, asked), await store.claim(asked), request, handler, remember)

    @web.middleware
    async def idempotent(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await answer(request, handler)
        except keys.InvalidKey as error:
            return problem(HTTPStatus.BAD_REQUEST, "idempotency_key_invalid", f"cannot use {header}: {error}")
        except StoreFailing as error:
            log.error("%s", error)
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "store_failing", "cannot record anything now; try again")
        except ClaimLost:
            return _in_progress()

    return idempotent


async def _answer(
    claim: Claim,
    verdict: Mine | InProgress | Reused | Answer,
    request: web.Request,
    handler: Handler,
    remember: Callable[[web.StreamResponse], bool],
) -> web.StreamResponse:
    match verdict:
        case Mine():
            return await _run(claim, request, handler, remember)
        case Answer():
            return replay(verdict)
        case InProgress():
            return _in_progress()
        case Reused():
            detail = "this key was used for another request (method, target or body differ)"
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency_key_reused", detail)
        case _:
            assert_never(verdict)


async def _run(
    claim: Claim, request: web.Request, handler: Handler, remember: Callable[[web.StreamResponse], bool]
) -> web.StreamResponse:
    token = _claim.set(claim)
    try:
        response = await handler(request)
    except web.HTTPException as raised:
        await claim._settle(raised, remember)
        raise
    except BaseException:  # also when cancelled: a living process must not keep a key that it does not work on
        await claim._release()
        raise
    finally:
        _claim.reset(token)
    await claim._settle(response, remember)
    return response


def _in_progress() -> web.Response:
    detail = "the first request with this key has not been answered yet"
    return problem(HTTPStatus.CONFLICT, "idempotency_key_in_progress", detail)
