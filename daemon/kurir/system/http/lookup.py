"""Names to addresses, without a cache and without a shared queue.

Nothing is remembered: a changed record or resolv.conf counts with the next connection, and a failure never sticks. Each
look-up has a thread of its own, so that a name server that hangs holds up the names it is asked for and no other; the
thread is a daemon, so that it cannot hold up the end of the process either.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from threading import Thread

from aiohttp.abc import AbstractResolver, ResolveResult

from kurir.system.http.watchdog import CURRENT

_MOST_THREADS = 64

_Found = list[tuple[socket.AddressFamily, str]]


class Lookups(AbstractResolver):
    """Look-ups in progress: at most one for each name, shared by all who ask for it meanwhile."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[_Found]] = {}
        self._threads = 0

    def forget(self) -> None:
        """Ask anew from now on: an answer still awaited is one of the former network."""
        self._running.clear()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of a name. Raises OSError (socket.gaierror is one)."""
        attempt = CURRENT.get()
        attempt.resolving = True
        found = await asyncio.shield(self._running.get(host) or self._start(host))
        attempt.resolving = False
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in found
            if family in (socket.AF_UNSPEC, kind)
        ]

    async def close(self) -> None:
        """Nothing to close: the threads end by themselves."""

    def _start(self, host: str) -> asyncio.Future[_Found]:
        if self._threads >= _MOST_THREADS:
            raise OSError(f"{_MOST_THREADS} look-ups of names hang already")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Found] = loop.create_future()
        self._running[host] = future
        self._threads += 1

        def finish(result: _Found | OSError) -> None:
            self._threads -= 1
            if self._running.get(host) is future:
                del self._running[host]
            if isinstance(result, OSError):
                future.set_exception(result)
                future.exception()  # nobody may be waiting any more
            else:
                future.set_result(result)

        def work() -> None:
            result = _look_up(host)
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(finish, result)

        Thread(target=work, name=f"lookup {host}", daemon=True).start()
        return future


def _look_up(host: str) -> _Found | OSError:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except OSError as error:
        return error
    except ValueError as error:  # a label that is empty or too long
        return socket.gaierror(socket.EAI_NONAME, str(error))
    found: _Found = []
    for family, _type, _protocol, _name, address in answers:
        text = str(address[0])
        if family == socket.AF_INET6 and len(address) == 4 and address[3] and "%" not in text:
            text += f"%{address[3]}"
        if (family, text) not in found:
            found.append((family, text))
    return found or socket.gaierror(socket.EAI_NODATA, "no address")
