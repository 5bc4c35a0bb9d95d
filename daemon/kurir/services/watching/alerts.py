"""Tells a program of the operator what needs a person: dead letters, holds, what is degraded.

A subscriber of events that never waits: alerts stand in a short queue, and the program is run for one after the other.
Those of a kind are folded: the first is told at once, and what comes within the time of `fold` as one with a count when
that is over. While nothing happens nothing runs, and no timer is set.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kurir.domain.events import DestinationHeld, Event, JobChanged, StoreDegraded
from kurir.domain.job import ADHOC_TOPIC, Job, Place
from kurir.logs import Folding
from kurir.logs.clean import clean
from kurir.logs.folding import Key
from kurir.services.agenda import Agenda
from kurir.services.defects import report
from kurir.services.showing.views import Lens, instant
from kurir.system.command import LONGEST, tell

LIMIT: Final = 30.0
"""Seconds that the program may take for one alert."""

BACKLOG: Final = 64
"""Alerts that wait for the one before them; beyond that the oldest are given up, and the next one says how many."""

PERSISTENT: Final = 3
"""Failures in a row that are a degraded reason."""

REASON: Final = "alert_command"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_encode: Final = msgspec.json.Encoder().encode
_STOPPING: Final = 2.0
_DEAD: Final = Place.DEAD

Members = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Whom alerts are told, and how those of a kind are folded (milliseconds); an empty command: nobody."""

    command: tuple[str, ...] = ()
    fold: int = 300_000


class Alerts:
    """Owns the queue and the program that runs. Subscribe `on_event` to the events of KINDS."""

    KINDS: Final = (JobChanged, DestinationHeld, StoreDegraded)

    def __init__(
        self,
        told: Told,
        agenda: Agenda,
        lens: Callable[[], Lens],
        redact: Callable[[str], str],
        environ: Mapping[str, str],
        complain: Callable[[str], None],
    ) -> None:
        """`redact` takes secrets out of text; `complain` writes a line of the log about the program itself."""
        self._told = told
        self._lens = lens
        self._redact = redact
        self._environ = {"PATH": PATH, "LANG": "C.UTF-8", **environ}
        self._complain = complain
        self._folding = Folding(agenda.now, agenda.book, window=lambda: self._told.fold, name="alerts")
        self._waiting: deque[dict[str, object]] = deque()
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._missed = 0
        self._failures = 0
        self._fault: str | None = None
        self._over = False

    @property
    def trouble(self) -> str | None:
        """Why nobody is told: the program has failed again and again."""
        return self._fault if self._failures >= PERSISTENT else None

    def adopt(self, told: Told) -> None:
        """Take over another configuration. Another command begins with a clean record."""
        if told.command != self._told.command:
            self._failures = 0
        self._told = told
        if not told.command:
            self._waiting.clear()
            self._folding.forget()

    def on_event(self, event: Event) -> None:
        """Subscriber."""
        if not self._told.command:
            return
        match event:
            case JobChanged(job):
                if job.place is _DEAD:
                    self._dead(job)
            case DestinationHeld(destination, hold, detail):
                held = {"destination": destination, "hold": str(hold), "detail": detail}
                self._tell(("held", _folded(destination)), "destination.held", lambda: held)
            case StoreDegraded(reason, detail):
                self.degraded(reason, detail)

    def degraded(self, reason: str, detail: str) -> None:
        """Something is wrong that no event tells of."""
        if self._told.command:
            self._tell(("degraded", reason), "store.degraded", lambda: {"reason": reason, "detail": detail})

    async def run(self) -> None:
        """Run the program for each alert, until cancelled; then the one that runs is killed."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                self._idle.clear()
                while self._waiting:
                    await self._run(self._waiting.popleft())
            except Exception as defect:  # noqa: BLE001 - reported; a queue without alerts still delivers
                report("an alert failed", defect)
            finally:
                self._idle.set()

    async def stop(self) -> None:
        """Tell what is kept back, give the program a moment to end, and begin nothing more."""
        self._folding.flush()
        self._over = True
        try:
            async with asyncio.timeout(_STOPPING):
                while self._waiting or not self._idle.is_set():
                    await self._idle.wait()
                    await asyncio.sleep(0)
        except TimeoutError:
            if self._waiting:
                self._complain(f"{len(self._waiting)} alerts were not told: the daemon stops")
            self._waiting.clear()

    def _dead(self, job: Job) -> None:
        where = ADHOC_TOPIC if job.topic == ADHOC_TOPIC else _folded(job.destination or job.topic)
        self._tell(("dead", where), "job.dead", lambda: self._of_job(job))

    def _of_job(self, job: Job) -> Members:
        error = job.last_error
        return {
            "topic": job.topic,
            "destination": job.destination or None,
            "error_kind": None if error is None else error.kind.value,
            "status": None if error is None else error.status,
            "detail": "" if error is None else error.detail,
            "owner": job.owner,
            "job": self._lens().job(job),
        }

    def _tell(self, key: Key, event: str, members: Callable[[], Members]) -> None:
        """Now, or folded with the like of it; what is told is made when it is."""
        at = self._lens().now.wall

        def say(left_out: int) -> None:
            told = members()
            detail = clean(self._redact(str(told["detail"])))
            head = {"kind": key[0], "event": event, "at": instant(at), "count": left_out + 1}
            self._queue({**head, **told, "detail": detail})

        self._folding.tell(key, say)

    def _queue(self, document: dict[str, object]) -> None:
        if self._over:
            return
        if len(self._waiting) >= BACKLOG:
            self._waiting.popleft()
            self._missed += 1
        self._waiting.append(document)
        self._wanted.set()

    async def _run(self, document: dict[str, object]) -> None:
        command = self._told.command
        if not command:
            return
        if self._missed:
            document["missed"], self._missed = self._missed, 0
        content = _encode(document) + b"\n"
        if len(content) > LONGEST:  # a job of an owner who likes long keys
            content = _encode({**document, "job": None}) + b"\n"
        fault = await tell(command, content, limit=LIMIT, environ=self._environ)
        if fault is None:
            self._failures = 0
            return
        self._fault = clean(self._redact(f"the alert command failed: {fault}"))
        self._failures += 1
        self._complain(self._fault)


def _folded(destination: str) -> str:
    """Whose alerts are folded as one: origins are chosen by users, who must not make an alert of each."""
    return ADHOC_TOPIC if "://" in destination else destination
