"""`kurirctl events`: what happens, as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kurir.cli import complete, exits, screen
from kurir.cli.human import error_words, parse_instant
from kurir.cli.printable import printable
from kurir.cli.session import DURATION, Session, pass_session, session_options
from kurir.client import Event

_STYLES = {"done": "green", "dead": "red", "conflict": "red", "retry": "yellow", "dropped": "red", "reset": "yellow"}


@click.command(short_help="Follow what happens.")
@click.option("--topic", shell_complete=complete.topics, help="Only events of this topic.")
@click.option("--job", metavar="ID", shell_complete=complete.jobs("pending", "leased"), help="Only events of this job.")
@click.option("--since", "last_event_id", metavar="EVENT", default="", help="Begin after this event's id.")
@click.option("--for", "seconds", type=DURATION, metavar="DURATION", help="End after this time.")
@session_options
@pass_session
def events(
    session: Session, /, *, topic: str | None, job: str | None, last_event_id: str, seconds: float | None
) -> int:
    """Follow what happens, until interrupted. Goes on by itself when the daemon is restarted.

    A line `reset` says that something may have been missed. A daemon that stays away for a minute ends it with 69.

    With --json: one object per line, with the event's id, its name and its data.
    """
    with (
        session.client() as client,
        client.events(topic=topic, job=job, last_event_id=last_event_id, timeout=seconds) as stream,
    ):
        for event in stream:
            if session.json:
                screen.say_document_line({"id": event.id, "event": event.kind, "data": event.data})
            else:
                screen.say(event_words(event))
                screen.flush()
    return exits.Exit.OK


def event_words(event: Event, *, colours: bool = True) -> str:
    """An event in one line: when, what, which job, and why if it went badly."""
    at = parse_instant(event.data.get("at"))
    time = at.astimezone().strftime("%H:%M:%S") if at is not None else "--:--:--"
    kind = f"{printable(event.kind):<20}"
    style = _STYLES.get(event.kind.removeprefix("job."))
    shown = screen.colour(kind, style) if style and colours else kind
    about = "what happened before this may have been missed" if event.kind == "reset" else _about(event.data)
    return f"{time}  {shown}  {about}".rstrip()


def _about(data: Mapping[str, Any]) -> str:
    job = data.get("job")
    if isinstance(job, Mapping):
        error = error_words(job.get("last_error")) if job.get("state") != "done" else ""
        percent = f"{data['percent']:g} %" if isinstance(data.get("percent"), int | float) else ""
        progress = " ".join(part for part in (percent, printable(data.get("text") or "")) if part)
        parts = [printable(job.get("id", "")), printable(job.get("topic") or ""), error, progress]
    else:
        others = ((name, value) for name, value in data.items() if name not in ("at", "owner") and value is not None)
        parts = [f"{printable(name)}={printable(value)}" for name, value in others]
    return "  ".join(part for part in parts if part)
