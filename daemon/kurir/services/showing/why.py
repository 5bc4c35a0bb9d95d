"""Why a job has not gone, and when it is looked at again: every thing that holds it, in words for people."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from kurir.domain.job import Job, Place, Reason, State
from kurir.services.accepting.timing import NEVER
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Gates
from kurir.services.keeping.storage import Storage
from kurir.services.showing.documents import BlockDocument, WhyDocument
from kurir.services.showing.views import Lens, instant
from kurir.store.catalog import Lane
from kurir.store.lines import UNTIL_ATTEMPT_OVER, UNTIL_SUCCESS
from kurir.store.look import Before

_PAUSES = {
    Reason.SCHEDULED: "it is scheduled for later",
    Reason.RETRY: "it failed and is tried again after a pause",
    Reason.INTERRUPTED: "its attempt was interrupted and is repeated after a pause",
    Reason.RECOVERED: "its attempt was under way when the daemon ended, and is repeated after a pause",
}
_PERSON = {
    State.DEAD: "it needs a person: mend what is wrong, then retry, edit or discard it",
    State.CONFLICT: "server and device both changed it; somebody has to resolve that",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """One thing that holds a job. `until` in device milliseconds; None: until something else happens."""

    kind: str
    detail: str
    until: int | None = None
    job: bytes | None = None


class Explainer:
    """Asks everybody who may hold a job; the dispatcher acts upon the same answers."""

    def __init__(self, gates: Gates, dispatcher: Dispatcher, storage: Storage) -> None:
        self._gates = gates
        self._dispatcher = dispatcher
        self._storage = storage

    def why(self, job: Job, before: tuple[Before, ...], lens: Lens, *, clock_trusted: bool) -> WhyDocument:
        """What holds a pending job; of one that has ended badly, what it needs."""
        state = job.state
        if state in _PERSON:
            error = f" ({job.last_error.detail})" if job.last_error else ""
            return WhyDocument(state.value, [BlockDocument(state.value, _PERSON[state] + error)], None)
        if state is not State.PENDING:
            return WhyDocument(state.value, [], None)
        now = lens.now.device
        held = _time(job, now, trusted=clock_trusted)
        held += [_stands_before(one) for one in before]
        held += self._gates_of(job, now)
        held += self._daemon(job)
        next_at = _next(job, held, now)
        if job.expires_at is not None and (next_at is None or next_at >= job.expires_at):
            held.append(Holder("expiry", "it expires if it has not gone by then", job.expires_at))
        return WhyDocument(state.value, [_block(one, lens) for one in held], lens.estimate(next_at))

    def _gates_of(self, job: Job, now: int) -> list[Holder]:
        lane = self._storage.catalog.by_id.get(job.lane) or Lane(job.topic, job.destination, job.owner, "")
        return [Holder(gate.kind, gate.detail, gate.until) for gate in self._gates.why(lane, now)]

    def _daemon(self, job: Job) -> list[Holder]:
        """What the daemon itself is short of."""
        found = []
        if job.place is Place.SUSPECT:
            found.append(
                Holder("suspect", "it was under way when the process ended uncleanly: such jobs go one by one")
            )
        if self._storage.trouble is not None:
            found.append(
                Holder("store", f"nothing is sent while the store cannot be written ({self._storage.trouble})")
            )
        limit = self._dispatcher.limits.in_flight
        topic = self._gates.registry.topics.get(job.topic)
        if topic is not None and topic.local:
            return found  # a consumer takes none of the slots
        if self._dispatcher.in_flight >= limit:
            found.append(Holder("slots", f"{limit} attempts are under way, the limit of all"))
        return found


def _time(job: Job, now: int, *, trusted: bool) -> list[Holder]:
    if job.wall_not_before is not None and not trusted:
        detail = f"it goes at {instant(job.wall_not_before)}; the time of day is not known for certain"
        return [Holder("clock_untrusted", detail)]
    if job.due_at <= now:
        return []
    until = None if job.due_at >= NEVER else job.due_at
    return [Holder("time", _PAUSES.get(job.reason or Reason.NEW, "its time has not come"), until)]


def _stands_before(one: Before) -> Holder:
    name = uuid.UUID(bytes=one.uid)
    how = f"{name} ({one.place.state})"
    if one.kind is None:
        return Holder("order", f"{how} goes first: same ordering key, topic or target", job=one.uid)
    if one.kind == UNTIL_SUCCESS:
        return Holder("after", f"it comes after {how}, which has to be done first", job=one.uid)
    until = "whose attempt has to be over" if one.kind == UNTIL_ATTEMPT_OVER else "which has to end"
    return Holder("unique", f"it waits for {how} of the same unique key, {until}", job=one.uid)


def _next(job: Job, held: list[Holder], now: int) -> int | None:
    """When the last of the known instants has come; None if something has none."""
    if any(one.until is None for one in held):
        return None
    return max([now, *(one.until for one in held if one.until is not None)]) if held else max(now, job.due_at)


def _block(one: Holder, lens: Lens) -> BlockDocument:
    job = None if one.job is None else str(uuid.UUID(bytes=one.job))
    return BlockDocument(one.kind, one.detail, lens.estimate(one.until), job)
