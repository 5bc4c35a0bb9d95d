"""From a job and the configuration of today to the request that goes over the wire. One place for every header.

Method, target, payload, the job's own headers and the key are what was accepted; the destination's url and headers are
what is configured now, with secrets filled in at the last moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from kurir import __version__
from kurir.domain import targets
from kurir.domain.conditions import NetworkFacts, Place, interface_for
from kurir.domain.job import BodyKind, Job
from kurir.domain.policy import Access, Destination, KeyStyle, Needs
from kurir.services.registry import place
from kurir.services.showing.views import instant
from kurir.store.bodies import FOLDER, name_of
from kurir.store.claim import Claimed
from kurir.system.http import Route, Timeouts, WireRequest

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
USER_AGENT = f"kurird/{__version__}"

Fill = Callable[[str], str]
"""Puts the values of secrets in place of references to them. Raises SecretUnusable."""


LONGEST_REMEMBERED = 200
"""Targets of more characters are joined anew each time: they are one job's own, or hold a signature."""


def wire_url(base: str, target: str) -> str:
    """The whole URL. Raises Refused if the target has left its destination since it was accepted."""
    return _remembered_url(base, target) if len(target) <= LONGEST_REMEMBERED else _joined_url(base, target)


def _joined_url(base: str, target: str) -> str:
    path, mark, query = target.partition("?")
    url = f"{targets.join(base, path)}{mark}{query}"
    targets.verify(base, url)
    return url


_remembered_url = lru_cache(maxsize=512)(_joined_url)


@lru_cache(maxsize=1024)
def origin_of(url: str) -> str:
    """scheme://authority exactly as written: the wire compares bytes."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.split('/', 1)[0].split('?', 1)[0]}"


def route_of(destination: Destination, needs: Needs, network: NetworkFacts, access: Access) -> Route:
    """Which connections a request may use: to this origin, with this trust, over the interface that met the need.

    A network need is about how data leaves the device: what stays on it is bound to no interface.
    """
    bound = needs.network != "any" and place(destination) is Place.REMOTE
    return Route(
        origin=origin_of(destination.url),
        tls=destination.tls,
        proxy=destination.proxy,
        interface=(interface_for(needs, network) or "") if bound else "",
        deny=access.adhoc_deny if destination.adhoc else (),
    )


def timeouts_of(destination: Destination) -> Timeouts:
    return Timeouts(
        connect=destination.connect_timeout,
        idle=destination.idle_timeout,
        response=destination.response_timeout,
        attempt=destination.attempt_timeout,
    )


def idempotency_value(key: str, style: KeyStyle) -> str:
    """The key as the destination wants it: as it is, or as a structured field string (RFC 8941, section 3.3.3)."""
    if style is KeyStyle.PLAIN:
        return key
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def build(
    claimed: Claimed,
    destination: Destination,
    of_topic: Mapping[str, str],
    fill: Fill,
    folder: Path,
    *,
    age_s: int,
    accepted_at: int | None,
) -> WireRequest:
    """The request of one attempt. `accepted_at`: wall milliseconds, None while the clock is not trusted.

    `of_topic` are the headers that its topic has now; `fill` puts values in place of references to secrets.

    Raises SecretUnusable for a secret that cannot be read, Refused for a target outside of the destination.
    """
    job = claimed.job
    headers = _headers(job, destination, of_topic, fill)
    headers.append((destination.idempotency_header, idempotency_value(job.key, destination.idempotency_style)))
    headers.append(("Kurir-Attempt", str(job.attempts)))
    headers.append(("Kurir-Age", str(max(0, age_s))))
    if accepted_at is not None:
        headers.append(("Kurir-Accepted-At", instant(accepted_at)))
    return WireRequest(
        method=job.method,
        url=wire_url(destination.url, job.target),
        headers=tuple(headers),
        body=_body(claimed, folder),
    )


def build_look(job: Job, destination: Destination, of_topic: Mapping[str, str], fill: Fill) -> WireRequest:
    """A GET for what the destination holds now, to judge a failed precondition by. Without conditions of its own.

    Identity encoding, because a compressed answer may carry another validator (RFC 9110, section 8.8.3.3).
    """
    conditional = {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "content-type"}
    headers = [(n, v) for n, v in _headers(job, destination, of_topic, fill) if n.lower() not in conditional]
    headers.append(("Accept-Encoding", "identity"))
    return WireRequest(method="GET", url=wire_url(destination.url, job.target), headers=tuple(headers))


def without_job(destination: Destination, origin: str, fill: Fill) -> WireRequest:
    """What each request to a destination has of it: where this cannot be sent, no job is to blame."""
    headers = [(name, fill(value)) for name, value in destination.headers.items()]
    headers.append((destination.idempotency_header, "x"))
    return WireRequest(method="GET", url=origin, headers=tuple(headers))


def _headers(job: Job, destination: Destination, of_topic: Mapping[str, str], fill: Fill) -> list[tuple[str, str]]:
    present = _lower(tuple(destination.headers))
    headers: list[tuple[str, str]] = []
    if job.headers:
        headers += [
            # In what a client wrote a reference is literal text; with a URL of its own it is the secret of its owner.
            (name, fill(value) if "{secret:" in value and (destination.adhoc or of_topic.get(name) == value) else value)
            for name, value in job.headers
            if name.lower() not in present
        ]
        present = present.union(name.lower() for name, _ in headers)
    headers += [(name, fill(value) if "{secret:" in value else value) for name, value in destination.headers.items()]
    if job.content_type and "content-type" not in present:
        headers.append(("Content-Type", job.content_type))
    if "user-agent" not in present:
        headers.append(("User-Agent", USER_AGENT))
    if "x-correlation-id" not in present:
        headers.append(("X-Correlation-ID", job.correlation_id or job.public_id))
    if job.correlation_id and "traceparent" not in present and _TRACE_ID.fullmatch(job.correlation_id):
        # The trace goes on (W3C Trace Context); the span is the same in every attempt, as everything of a job is.
        headers.append(("traceparent", f"00-{job.correlation_id}-{job.uid.hex()[16:]}-01"))
    return headers


@lru_cache(maxsize=256)
def _lower(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _body(claimed: Claimed, folder: Path) -> bytes | Path | None:
    job = claimed.job
    match job.body_kind:
        case BodyKind.NONE:
            return None
        case BodyKind.INLINE:
            return claimed.body if claimed.body is not None else b""
        case BodyKind.FILE:
            return folder / FOLDER / name_of(job.uid, job.digest)
