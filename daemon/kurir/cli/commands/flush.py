"""`kurirctl flush`: try now what waits for a backoff or a breaker, and watch the queue empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from kurir.cli import exits, screen
from kurir.cli.commands.events import event_words
from kurir.cli.complaints import complaint
from kurir.cli.human import span
from kurir.cli.progress import Progress, progress
from kurir.cli.session import DURATION, Session, pass_session, session_options
from kurir.client import Client, Event, Refused
from kurir.client.documents import ENDED


@click.command(short_help="Try now what waits for a backoff or a breaker.")
@click.option("--watch", is_flag=True, help="Stay until nothing waits any more.")
@click.option("--timeout", type=DURATION, metavar="DURATION", help="With --watch: at most this long.")
@session_options
@pass_session
def flush(session: Session, /, *, watch: bool, timeout: float | None) -> int:
    """Try now what waits for a backoff or a breaker.

    Never what the server asked to wait for (Retry-After), nor rates, budgets, pauses, needs or the clock.
    """
    if timeout is not None and not watch:
        raise click.UsageError("--timeout needs --watch")
    with session.client() as client:
        if watch:
            return _watch(session, client, timeout)
        try:
            document = client.flush()
        except Refused as error:
            if error.code != "busy":
                raise
            screen.note(f"kurirctl: {complaint(error)}")
            return exits.Exit.WAITING  # asked too often; the daemon is there
    if session.json:
        screen.say_document(document)
    else:
        screen.say("flushed")
    return exits.Exit.OK


@dataclass(slots=True)
class Backlog:
    """How many jobs there are to go, followed by events."""

    left: int
    total: int = 0
    ended: int = 0
    badly: int = 0
    seen: set[str] = field(default_factory=set)  # of jobs that ended: an event may come twice after a reconnect

    def take(self, event: Event) -> bool:
        """Count an event; whether a job ended."""
        if event.kind == "job.accepted":
            self.left += 1
            self.total += 1
            return False
        name = event.kind.removeprefix("job.")
        if name not in ENDED or event.id in self.seen:
            return False
        self.seen.add(event.id)
        self.left -= 1
        self.ended += 1
        self.badly += name in ("dead", "conflict")
        return True


def _watch(session: Session, client: Client, timeout: float | None) -> int:
    # The stream is open before the flush: what ends in between must not be missed.
    with client.events(timeout=timeout) as stream, progress("delivering") as bar:
        waiting = waiting_jobs(client.status())
        backlog = Backlog(left=waiting, total=waiting)
        client.flush()
        bar.to(0, backlog.total)
        for event in _until_empty(stream, client, backlog):
            _tell(session, event, backlog, bar)
    return _verdict(backlog, timeout)


def _until_empty(stream: Any, client: Client, backlog: Backlog) -> Any:
    """The events of jobs that end, until none is left to go."""
    while backlog.left > 0:
        event = next(stream, None)
        if event is None:
            return
        if event.kind in ("reset", "dropped"):  # events were missed: count anew
            backlog.left = waiting_jobs(client.status())
            backlog.total = backlog.ended + backlog.left
        elif backlog.take(event):
            yield event


def _tell(session: Session, event: Event, backlog: Backlog, bar: Progress) -> None:
    bar.to(backlog.ended, backlog.total)
    if session.json:
        screen.say_document_line({"id": event.id, "event": event.kind, "data": event.data})
    elif not screen.on_terminal() or event.kind.removeprefix("job.") != "done":
        screen.say(event_words(event))
        screen.flush()


def _verdict(backlog: Backlog, timeout: float | None) -> int:
    words = f"{backlog.ended} ended" + (f", {backlog.badly} of them dead or in conflict" if backlog.badly else "")
    if backlog.left > 0:
        after = f" after {span(timeout)}" if timeout is not None else ""
        screen.note(f"{words}; {backlog.left} still wait{after}: kurirctl list --state pending, kurirctl why ID")
        return exits.Exit.WAITING
    screen.note(words)
    return exits.Exit.ENDED_BADLY if backlog.badly else exits.Exit.OK


def waiting_jobs(status: Mapping[str, Any]) -> int:
    """Pending and leased jobs, from the counts by state of a status document."""
    counts = _counts(status, depth=3)
    return sum(counts.get(state, 0) for state in ("pending", "leased")) if counts else 0


def _counts(document: Mapping[str, Any], depth: int) -> Mapping[str, int] | None:
    if isinstance(document.get("pending"), int):
        return {name: value for name, value in document.items() if isinstance(value, int)}
    for value in document.values() if depth else ():
        if isinstance(value, Mapping):
            found = _counts(value, depth - 1)
            if found is not None:
                return found
    return None
