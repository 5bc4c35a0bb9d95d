"""Handlers for dead letters: grouped, looked at, sent again, given up."""

from __future__ import annotations

from kurir.control import answers, reading
from kurir.control.answers import Answer
from kurir.control.call import Call
from kurir.control.protocol_letters import Count, LedgerAsked, LettersAsked, LettersMeant
from kurir.domain.errors import Refused
from kurir.services.accepting.timing import instant
from kurir.services.acting.letters import Acted, Range
from kurir.store.letters import LetterFilter


async def group_dead(call: Call) -> Answer:
    """Why jobs are dead."""
    return answers.document(200, await call.services.letters.causes(call.peer, _filter(call.asked(LettersAsked))))


async def retry_dead(call: Call) -> Answer:
    """Send dead letters again."""
    said = call.told(LettersMeant)
    if said.dry_run:
        return await _counted(call, said)
    return _acted(said, await call.services.letters.retry(call.peer, _filter(said), _uids(said), _part(said)))


async def discard_dead(call: Call) -> Answer:
    """Give dead letters up."""
    said = call.told(LettersMeant)
    if said.dry_run:
        return await _counted(call, said)
    return _acted(said, await call.services.letters.discard(call.peer, _filter(said), _uids(said), _part(said)))


async def get_request(call: Call) -> Answer:
    """What a job sends."""
    return answers.document(200, await call.services.inspector.request(call.peer, reading.uid(call.parameters["id"])))


async def list_dropped(call: Call) -> Answer:
    """A page of the ledger."""
    asked = call.asked(LedgerAsked)
    owner = call.peer.sees if asked.owner is None else asked.owner
    if call.peer.sees not in (None, owner):
        raise Refused("forbidden", "cannot list what others lost: that is for administrators", field="owner")
    page = call.services.inspector.ledger(owner, asked.topic, asked.why, asked.limit, asked.cursor)
    return answers.document(200, await page)


async def _counted(call: Call, said: LettersMeant) -> Answer:
    return answers.document(200, Count(await call.services.letters.count(call.peer, _filter(said), _uids(said))))


def _acted(said: LettersMeant, acted: Acted) -> Answer:
    if said.limit is None:
        return answers.document(200, Count(acted.count))
    return answers.document(200, Count(acted.count, None if acted.rest is None else acted.rest.text()))


def _filter(said: LettersAsked) -> LetterFilter:
    return LetterFilter(
        topic=said.topic,
        destination=said.destination,
        error_kind=said.error_kind,
        status=said.status,
        before=None if said.before is None else instant(said.before, "before"),
        owner=said.owner,
    )


def _uids(said: LettersMeant) -> tuple[bytes, ...] | None:
    try:
        return None if said.ids is None else tuple(reading.uid(id_) for id_ in said.ids)
    except Refused as refusal:
        raise Refused("invalid", f"cannot act on the jobs: {refusal.detail}", field="ids") from None


def _part(said: LettersMeant) -> Range:
    return Range.read(said.cursor, said.limit)
