"""The wire part of an attempt: build the request, send it, judge what came back.

Faults of the configuration (a secret that cannot be read, a target that has left its destination) are verdicts too.
"""

from __future__ import annotations

import asyncio
import hashlib
import operator
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from kurir.domain import outcome
from kurir.domain.conditions import Conditions, Connectivity
from kurir.domain.errors import Refused
from kurir.domain.job import BodyKind, ErrorKind, Job
from kurir.domain.outcome import Answer, Attempt, Hold, HoldDestination, Interrupted, Reject, Verdict
from kurir.domain.policy import Destination, Expect, OAuth
from kurir.services.delivering import request
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.delivering.tokens import Token, Tokens
from kurir.services.dispatching.gates import Gates
from kurir.store import bodies
from kurir.store.catalog import Lane
from kurir.store.claim import Claimed
from kurir.system.clock import Clock
from kurir.system.http import (
    Fault,
    HttpSender,
    Redirects,
    Route,
    WireFault,
    WireReply,
    WireRequest,
    check,
    check_route,
)
from kurir.system.secrets import Secrets, SecretUnusable

COMPARED = 1 << 20
"""The largest payload, in bytes, that is compared with what the server holds after a failed precondition."""

NOTHING_EXPECTED = Expect()
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_KINDS = {
    Fault.DNS: ErrorKind.DNS,
    Fault.CONNECT: ErrorKind.CONNECT,
    Fault.PROXY: ErrorKind.CONNECT,
    Fault.TLS: ErrorKind.TLS,
    Fault.TIMEOUT: ErrorKind.TIMEOUT,
    Fault.RESET: ErrorKind.RESET,
    Fault.PROTOCOL: ErrorKind.RESET,
    Fault.BODY_MISSING: ErrorKind.BODY_MISSING,
    Fault.DENIED: ErrorKind.CONNECT,
}


class Sent(Struct, frozen=True):
    """What came of the wire part of an attempt."""

    verdict: Verdict
    answer: Answer | None
    seconds: float = 0.0
    sent: int = 0
    received: int = 0
    truncated: bool = False
    status: int | None = None  # what the request was answered; `answer` may be that to the look after it


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What an attempt needs of the outside: who sends, what is secret, what the network is like."""

    sender: HttpSender
    secrets: Callable[[], Secrets]
    own_secrets: OwnSecrets
    tokens: Tokens
    conditions: Callable[[], Conditions]
    on_link: Callable[[str], bool]
    send_failed: Callable[[], None]
    look: Callable[[], Awaitable[Connectivity]]


class Exchange:
    """Makes one exchange with a destination and says what it means. Records nothing."""

    def __init__(self, gates: Gates, clock: Clock, folder: Path, world: World) -> None:
        self._gates = gates
        self._clock = clock
        self._folder = folder
        self._world = world
        self._basis: tuple[object, ...] = (None,) * 4
        self._way = Route(origin="")
        self.ambiguous_below = 0
        """Jobs up to this id may have been sent although nothing says so (a power cut took the record)."""

    def may_tell(self, owner: int) -> bool:
        """Whether what is kept of an exchange of this owner's job could hold a secret at all."""
        return self._world.secrets().known or self._world.own_secrets.known(owner)

    def redact(self, owner: int, text: str, *, cut: bool = False) -> str:
        """What is kept of an exchange of this owner's job: the text without secrets, configured or the owner's own.

        `cut`: it may end in the middle of one.
        """
        return self._world.own_secrets.redact(owner, self._world.secrets().redact(text, cut=cut), cut=cut)

    async def attempt(self, claimed: Claimed, lane: Lane) -> Sent:
        """The wire part: build, send, judge. Faults of configuration are verdicts too."""
        job = claimed.job
        destination = self._gates.registry.destination(lane)
        if destination is None:
            return Sent(Interrupted("its destination is not configured any more", wrote=False), None)
        changed = await self._changed(claimed)
        if changed is not None:
            return Sent(changed, None)
        token = None if destination.oauth is None else await self._token(lane, destination, destination.oauth)
        if isinstance(token, HoldDestination):
            return Sent(token, None)
        fill = self._fill(lane, destination, token)
        now = self._clock.now()
        accepted = job.wall_created if self._clock.trusted() else None
        try:
            wire = request.build(
                claimed,
                destination,
                self._headers_of(lane),
                fill,
                self._folder,
                age_s=(now - job.accepted_at) // 1000,
                accepted_at=accepted,
            )
        except SecretUnusable as fault:
            return Sent(_hold(str(fault)), None)
        except Refused as refusal:
            return Sent(Reject(ErrorKind.HTTP_STATUS, refusal.detail, wrote=False), None)
        try:
            reply = await self._send(wire, job, lane, destination, self._gates.registry.retention.result_bytes)
        except ValueError:
            unfit = self._unfit(wire, lane, destination, fill)
            if unfit is None:
                raise
            return Sent(unfit, None)
        if isinstance(reply, WireFault):
            return self._faulted(reply, destination)
        answer = Answer(reply.status, reply.headers, reply.body)
        suspected = await self._suspected(destination, reply.peer, outcome.portal_like(answer, destination.expect))
        verdict = outcome.judge(answer, self._circumstances(job, destination, suspected))
        if token is not None:
            verdict = self._world.tokens.judged(destination, job.id, token, answer.status, verdict)
        sent = Sent(
            verdict, answer, reply.seconds, reply.sent_bytes, reply.received_bytes, reply.truncated, reply.status
        )
        if isinstance(verdict, outcome.VerifyFirst | outcome.Conflict) and answer.status == 412:
            return await self._look(job, lane, destination, sent, fill)
        return sent

    async def _token(self, lane: Lane, destination: Destination, oauth: OAuth) -> Token | HoldDestination:
        route = replace(self._route(lane, destination), origin=request.origin_of(oauth.token_url))
        return await self._world.tokens.of(destination, oauth, route)

    def _fill(self, lane: Lane, destination: Destination, token: Token | None) -> request.Fill:
        """Whose secrets a reference means: those of the configuration never reach a URL that a job named itself."""
        if destination.adhoc:
            return partial(self._world.own_secrets.fill, lane.owner, lane.destination)
        if token is not None:
            return partial(self._world.secrets().fill, tokens={"oauth": token.value})
        return self._world.secrets().fill

    async def _changed(self, claimed: Claimed) -> Reject | None:
        """Whether the payload is no longer the one that was accepted: the key must not go out with other bytes."""
        job = claimed.job
        match job.body_kind:
            case BodyKind.INLINE:
                # SQLite does not notice a page that holds other bytes.
                if hashlib.sha256(claimed.body or b"").digest() != job.digest:
                    detail = "the payload in the store is not the one that was accepted"
                    return Reject(ErrorKind.CORRUPT, detail, wrote=False)
            case BodyKind.FILE:
                # It is read twice, from memory the second time. Sending what is hashed on the way would be found out
                # only when nearly all of it has left.
                try:
                    await asyncio.to_thread(bodies.verify, self._folder, job.uid, job.digest, job.size)
                except bodies.BodyMissing as fault:
                    return Reject(ErrorKind.BODY_MISSING, str(fault), wrote=False)
        return None

    def _unfit(self, wire: WireRequest, lane: Lane, destination: Destination, fill: request.Fill) -> Verdict | None:
        """Why a request could not be sent as it is: its destination's fault or the job's. None: neither, a defect."""
        route = self._route(lane, destination)
        try:
            check_route(route)
            check(request.without_job(destination, route.origin, fill), route)
        except (ValueError, SecretUnusable) as fault:
            return _hold(f"no request to the destination can be sent: {fault}")
        try:
            check(wire, route)
        except ValueError as fault:
            return Reject(ErrorKind.CORRUPT, f"the job cannot be sent as it is stored: {fault}", wrote=False)
        return None

    def _headers_of(self, lane: Lane) -> Mapping[str, str]:
        topic = self._gates.registry.topics.get(lane.topic)
        return topic.headers if topic is not None else _NO_HEADERS

    def _route(self, lane: Lane, destination: Destination) -> Route:
        gates = self._gates
        basis = (destination, gates.needs.of(lane), self._world.conditions().network, gates.registry.access)
        # Attempts in a row mostly take one way. By identity: none of these is ever changed.
        if not all(map(operator.is_, basis, self._basis)):
            self._basis, self._way = basis, request.route_of(*basis)
        return self._way

    async def _send(
        self, wire: WireRequest, job: Job, lane: Lane, destination: Destination, keep: int
    ) -> WireReply | WireFault:
        route = self._route(lane, destination)
        follow = Redirects.SAME_ORIGIN if destination.follow_redirects else Redirects.NEVER
        return await self._world.sender.send(wire, route, request.timeouts_of(destination), keep=keep, redirects=follow)

    async def _look(self, job: Job, lane: Lane, destination: Destination, sent: Sent, fill: request.Fill) -> Sent:
        """A precondition failed: see what the server holds. Ours already: done. Else it is kept for the conflict."""
        keep = max(self._gates.registry.retention.result_bytes, min(job.size + 1, COMPARED))
        try:
            wire = request.build_look(job, destination, self._headers_of(lane), fill)
            reply = await self._send(wire, job, lane, destination, keep)
        except SecretUnusable as fault:  # it was usable a moment ago
            reply = WireFault(kind=Fault.CONNECT, detail=str(fault), wrote=False)
        verdict = sent.verdict
        unsure = isinstance(verdict, outcome.VerifyFirst)
        final = verdict.otherwise if isinstance(verdict, outcome.VerifyFirst) else verdict
        if isinstance(reply, WireFault):
            return replace(sent, verdict=_ask_again("", pause=None, sick=True)) if unsure else sent
        answer = Answer(reply.status, reply.headers, reply.body[: self._gates.registry.retention.result_bytes])
        found = 200 <= reply.status <= 299
        ours = found and hashlib.sha256(reply.body).digest() == job.digest and not reply.truncated
        gone = reply.status in (404, 410)
        if unsure and (ours or (gone and job.method == "DELETE")):
            return replace(sent, verdict=outcome.Done(), answer=answer)
        whole = reply.body_complete or reply.truncated
        if not ((found and whole) or gone) or await self._elsewhere(answer, destination, reply.peer):
            words = f": {outcome.words(answer)}"
            again = _ask_again(words, pause=outcome.asked_pause(answer), sick=reply.status >= 500)
            return replace(sent, verdict=again) if unsure else sent
        return replace(sent, verdict=final, answer=answer)

    async def _elsewhere(self, answer: Answer, destination: Destination, peer: str) -> bool:
        """Whether a portal may have answered the look. What `expect` says is about answers to jobs."""
        like = outcome.portal_like(answer, NOTHING_EXPECTED)
        return like and await self._suspected(destination, peer, like)

    async def _suspected(self, destination: Destination, peer: str, like: bool) -> bool:
        if self._portal_suspected(destination, peer, self._world.conditions().network.connectivity):
            return True
        # NetworkManager looks every few minutes only: it may not have met the portal yet.
        return like and self._portal_suspected(destination, peer, await self._world.look())

    def _circumstances(self, job: Job, destination: Destination, portal_suspected: bool) -> Attempt:
        return Attempt(
            method=job.method,
            versioned=job.versioned,
            ambiguous=job.ambiguous or job.id <= self.ambiguous_below,
            portal_suspected=portal_suspected,
            expect=destination.expect,
            classify=destination.classify,
            hold_unauthorized=destination.hold_unauthorized,
        )

    def _portal_suspected(self, destination: Destination, peer: str, connectivity: Connectivity) -> bool:
        """Whether somebody else may have answered: NetworkManager says portal, or nothing proves the opposite."""
        if _loopback(peer):
            return False
        if connectivity is Connectivity.PORTAL:
            return True
        if not destination.url.startswith("http://") or connectivity is Connectivity.FULL:
            return False
        return not self._world.on_link(peer)

    def _faulted(self, fault: WireFault, destination: Destination) -> Sent:
        kind = _KINDS[fault.kind]
        if fault.certificate_time and not self._clock.trusted():
            kind = ErrorKind.CLOCK_SUSPECT
        if fault.kind is Fault.DENIED:
            verdict: Verdict = Reject(kind, fault.detail, wrote=False)
        else:
            verdict = outcome.judge_fault(outcome.Fault(kind, fault.detail, fault.wrote))
        if fault.kind is not Fault.BODY_MISSING:
            self._world.send_failed()
        return Sent(verdict, None, fault.seconds, fault.sent_bytes, fault.received_bytes)


def _hold(detail: str) -> HoldDestination:
    """What is configured for a destination cannot be used: nothing was sent, and no job would fare better."""
    return HoldDestination(Hold.SECRET, ErrorKind.UNAUTHORIZED, detail, wrote=False)


def _ask_again(words: str, *, pause: int | None, sick: bool) -> Verdict:
    """Nobody knows whether an edit was done: ask again another time rather than guess."""
    detail = f"answered 412; could not look why{words}"
    return outcome.RetryLater(ErrorKind.HTTP_STATUS, detail, 412, sick=sick, not_before=pause)


def _loopback(peer: str) -> bool:
    return peer.startswith("127.") or peer == "::1"
