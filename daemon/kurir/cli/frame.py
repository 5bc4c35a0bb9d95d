"""What `kurirctl top` draws: one screen of lines from what the daemon said last. Pure.

Each part of the screen gets a fair share of the lines; what a part does not need goes to those that do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kurir.cli import overview
from kurir.cli.human import relative, span
from kurir.cli.layout import Line, aligned, fit, shared
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Column, Styled

_JOB_COLUMNS = (
    Column("JOB IN FLIGHT", whole=True),
    Column("TOPIC"),
    Column("ATTEMPT", whole=True, right=True),
    Column("SINCE", whole=True, right=True),
)


KEYS = "   q quits"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the daemon said last, as documents of the API."""

    status: Mapping[str, Any] = field(default_factory=dict)
    topics: Sequence[Mapping[str, Any]] = ()
    destinations: Sequence[Mapping[str, Any]] = ()
    leased: Sequence[Mapping[str, Any]] = ()

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "status": dict(self.status),
            "topics": list(self.topics),
            "destinations": list(self.destinations),
            "leased": list(self.leased),
        }


def frame(
    seen: Seen, news: Sequence[str], trouble: str, now: datetime, *, columns: int, rows: int | None
) -> list[Line]:
    """The screen: `rows` lines of at most `columns` cells. Without `rows`: all of it, as it stands.

    `news` are the latest events, `trouble` why what is shown is old.
    """
    head = [fit(line, columns) for line in _head(seen, trouble, now, "" if rows is None else KEYS)]
    parts: list[list[Line]] = [
        aligned(overview.DESTINATION_COLUMNS, overview.destination_rows(seen.destinations, now), columns),
        aligned(
            overview.TOPIC_COLUMNS,
            overview.topic_rows(overview.mapping(seen.status.get("topics")), seen.topics),
            columns,
        ),
        aligned(_JOB_COLUMNS, [_job_row(job, now) for job in seen.leased], columns),
    ]
    if news:
        latest: list[Line] = [[line] for line in reversed(news)]
        parts.append([[Styled("LATEST", "bold")], *latest])
    parts = [part for part in parts if len(part) > 1]
    room = None if rows is None else rows - len(head)
    lines = list(head)
    for part in shared(parts, room):
        lines += [[], *(fit(line, columns) for line in part)]
    return lines if rows is None else lines[:rows]


def _head(seen: Seen, trouble: str, now: datetime, keys: str) -> Iterator[Line]:
    status = seen.status
    uptime = overview.number(status.get("uptime"))
    up = f", up {span(uptime)}" if uptime is not None else ""
    yield [
        Styled(f"kurird {printable(status.get('version', ''))}{up}", "bold"),
        f"   {now.astimezone():%H:%M:%S}{keys}",
    ]
    yield [f"jobs     {overview.jobs(status)}"]
    yield [f"network  {overview.network(overview.mapping(status.get('network')))}"]
    if trouble:
        yield [Styled(trouble, "red")]
    for reason in overview.degraded(status, now):
        yield [reason]


def _job_row(job: Mapping[str, Any], now: datetime) -> list[Cell]:
    return [
        printable(job.get("id", "-")),
        printable(job.get("topic") or "-"),
        printable(job.get("attempts", "-")),
        relative(job.get("updated_at"), now).removesuffix(" ago"),
    ]
