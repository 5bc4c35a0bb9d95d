"""The desk: takes each request, finds out who asks and what for, lets the handler answer, and words every refusal.

One function and no layers of middleware: what it costs is paid by every submit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec
from aiohttp.web import BaseRequest, StreamResponse
from msgspec import Struct

from kurir.control import answers, reading
from kurir.control.answers import Answer
from kurir.control.call import Call, Handler
from kurir.control.connection import Patience
from kurir.control.endpoint import Endpoint, Media, Who
from kurir.control.events import EventStream
from kurir.control.handlers import HANDLERS
from kurir.control.local import LocalConnection
from kurir.control.looking import get_health, healthy
from kurir.control.problems import unexplained
from kurir.control.protocol import ENDPOINTS
from kurir.control.routes import Routes
from kurir.control.services import Services
from kurir.domain.errors import Refused, StoreCorrupt, StoreFailing

Report = Callable[[str, Exception], None]
"""Told of every defect: the endpoint, and what was raised. One line of the log."""

_WITH_PAYLOAD: Final = frozenset({"edit_job", "resolve_job", "put_schedule"})


class Desk:
    """Answers requests of the Unix socket."""

    def __init__(
        self, events: EventStream, overflow_uid: int, report: Report, handlers: Mapping[str, Handler] = HANDLERS
    ) -> None:
        self.services: Services | None = None  # None: the store is being opened
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events = events
        self._overflow = overflow_uid
        self._report = report
        self._routes = Routes(ENDPOINTS)
        self._handlers = {endpoint.name: handlers[endpoint.name] for endpoint in ENDPOINTS}
        # Without a query every member has its default: made once.
        self._unasked = {endpoint.name: msgspec.convert({}, endpoint.query) for endpoint in ENDPOINTS}
        self._bodies = {endpoint.name: _document_type(endpoint) for endpoint in ENDPOINTS}

    def serve(self, services: Services | None) -> None:
        """From now on ask these; who waits for something hears of it."""
        self.services = services
        self.news.set_result(None)
        self.news = asyncio.get_running_loop().create_future()

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """The answer to one request; a refusal is one too."""
        connection = cast(LocalConnection, request.protocol)
        connection.work(request.content)
        answer = await self._answer(request, connection)
        answer.written = connection.rest
        return cast(StreamResponse, answer)

    async def _answer(self, request: BaseRequest, connection: LocalConnection) -> Answer:
        where = "unknown"
        try:
            if connection.uid == self._overflow:
                raise Refused("unknown_peer", "your user is not known here (a container, or a user namespace)")
            endpoint, parameters, query = self._find(request)
            where = endpoint.name
            peer = connection.peer() or await connection.introduced()
            if endpoint.who is Who.ADMIN and not peer.admin:
                raise Refused("forbidden", "that is for root, the daemon's user, and the groups of access.admin_groups")
            services = self.services
            if services is None:
                if where == get_health.__name__:
                    return healthy()  # the process answers, whatever the store does
                raise Refused("busy", "the store is being opened; try again in a moment")
            said = await self._read(endpoint, request, connection.patience, services)
            asked = reading.query(query, endpoint.query) if query and not endpoint.tail else self._unasked[where]
            call = Call(self, self._events, connection, request, peer, parameters, asked, said, self.stopping)
            return await self._handlers[where](call)
        except _WrongVerb as wrong:
            return answers.problem(wrong.refusal, {"Allow": wrong.allow})
        except Refused as refusal:
            return answers.problem(refusal)
        except (StoreFailing, StoreCorrupt):
            return answers.problem(Refused("storage_failing", "the store does not work; it is tried again"))
        except ConnectionError:
            return answers.problem(Refused("malformed", "the client is gone"))  # nobody reads it
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # noqa: BLE001 - a defect of one handler must not take the others down; it is reported
            self._report(where, fault)
            return answers.problem(unexplained())

    def _find(self, request: BaseRequest) -> tuple[Endpoint, Mapping[str, str], str]:
        path, _, query = reading.target(request).partition("?")
        found = self._routes.find(path)
        if found is None:
            raise Refused("not_found", "there is no such path; GET /v1/openapi.json describes them all")
        verbs, parameters = found
        verb = "GET" if request.method == "HEAD" else request.method
        endpoint = verbs.get(verb)
        if endpoint is None:
            raise _WrongVerb(request.method, verbs)
        return endpoint, parameters, query

    async def _read(
        self, endpoint: Endpoint, request: BaseRequest, patience: Patience, services: Services
    ) -> Struct | None:
        type_ = self._bodies[endpoint.name]
        if type_ is None:
            return None
        most = reading.most_with_payload(services.limits) if endpoint.name in _WITH_PAYLOAD else reading.SMALL
        return await reading.document(request, type_, most, patience)


class _WrongVerb(Exception):
    """The path is known, the method is not."""

    def __init__(self, method: str, verbs: Mapping[str, Endpoint]) -> None:
        super().__init__(method)
        self.allow = ", ".join(sorted({*verbs, *(("HEAD",) if "GET" in verbs else ())}))
        self.refusal = Refused("method_not_allowed", f"this path knows {self.allow}, not {method[:20]}")


def _document_type(endpoint: Endpoint) -> type[Struct] | None:
    """The type of a body that is nothing but a document; others are for their handlers to read."""
    return endpoint.takes.get(Media.JSON) if set(endpoint.takes) == {Media.JSON} else None
