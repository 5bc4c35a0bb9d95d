"""Commands for who runs the daemon: pause, resume, backup, ack."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import click

from kurir.cli import complete, exits, screen
from kurir.cli.human import size
from kurir.cli.printable import printable
from kurir.cli.progress import progress
from kurir.cli.session import Session, pass_session, session_options

_KINDS: Mapping[str, Literal["topics", "destinations"]] = {"topic": "topics", "destination": "destinations"}
_kind = click.argument("kind", type=click.Choice(list(_KINDS)))
_name = click.argument("name", shell_complete=complete.topics_or_destinations)
BACKUP_TIMEOUT = 3600.0


@click.command(short_help="Stop sending for a topic or destination.")
@_kind
@_name
@session_options
@pass_session
def pause(session: Session, /, *, kind: str, name: str) -> int:
    """Stop sending for a topic or destination. Jobs are still accepted; attempts that run are finished."""
    with session.client() as client:
        return _said(session, client.pause(_KINDS[kind], name), f"{kind} {printable(name)} is paused")


@click.command(short_help="Go on sending for a topic or destination.")
@_kind
@_name
@session_options
@pass_session
def resume(session: Session, /, *, kind: str, name: str) -> int:
    """Go on sending for a topic or destination."""
    with session.client() as client:
        return _said(session, client.resume(_KINDS[kind], name), f"{kind} {printable(name)} goes on")


@click.command(short_help="Make a consistent copy of the store.")
@click.argument("name", required=False)
@session_options
@pass_session
def backup(session: Session, /, *, name: str | None) -> int:
    """Make a consistent copy of the store with its bodies, without secrets, in the folder backups/NAME.

    Without NAME it is called after the time.
    """
    name = name or datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    with session.client(BACKUP_TIMEOUT) as client, progress("copying"):
        document = client.backup(name)
    count = document.get("bytes")
    about = f" ({size(count)})" if isinstance(count, int | float) else ""
    return _said(session, document, f"{printable(document.get('path') or name)}{about}")


@click.command(short_help="Say that a degraded reason was seen.")
@click.argument("reason", shell_complete=complete.degraded_reasons)
@session_options
@pass_session
def ack(session: Session, /, *, reason: str) -> int:
    """Say that a degraded reason was seen and dealt with; kurirctl status names them."""
    with session.client() as client:
        return _said(session, client.acknowledge(reason), f"{printable(reason)} is acknowledged")


def _said(session: Session, document: Mapping[str, Any], words: str) -> int:
    if session.json:
        screen.say_document(document)
    else:
        screen.say(words)
    return exits.Exit.OK
