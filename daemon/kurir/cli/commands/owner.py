"""`kurirctl owner`: users who are gone, and what they left."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import click

from kurir.cli import exits, screen
from kurir.cli.human import size
from kurir.cli.printable import printable
from kurir.cli.progress import progress
from kurir.cli.screen import Cell, Column
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Client

LONG = 3600.0
LOOK_EVERY = 0.5  # seconds between two looks at how much is left, while a person watches

Verb = Literal["forget", "move"]

_uid = click.argument("uid", type=click.IntRange(0, 2**32 - 1))
_dry_run = click.option("--dry-run", is_flag=True, help="Only say what there is.")
_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


@click.group(invoke_without_command=True, short_help="See, remove or move what users have who are gone.")
@session_options
@click.pass_context
def owner(context: click.Context) -> int:
    """See, remove or move what users have who are gone (admins). Without a command it lists everybody."""
    return exits.Exit.OK if context.invoked_subcommand is not None else _list(context.ensure_object(Session))


@owner.command("list", short_help="List everybody who has something.")
@session_options
@pass_session
def list_owners(session: Session, /) -> int:
    """List everybody who has something; a user whom the system does not know any more has no name."""
    return _list(session)


@owner.command("forget", short_help="Give up and remove all that a user has.")
@_uid
@_dry_run
@_yes
@session_options
@pass_session
def forget(session: Session, /, *, uid: int, dry_run: bool, yes: bool) -> int:
    """Give up all that a user has, and remove it with its payloads, keys and secrets. The ledger says so."""
    return _change(session, uid, f"remove all of user {uid}?", "removed", {"dry_run": dry_run}, yes=yes)


@owner.command("move", short_help="Give all that a user has to another one.")
@_uid
@click.argument("to", metavar="UID2", type=click.IntRange(0, 2**32 - 1))
@_dry_run
@_yes
@session_options
@pass_session
def move(session: Session, /, *, uid: int, to: int, dry_run: bool, yes: bool) -> int:
    """Give all that a user has to another one. Order, idempotency keys and payloads stay as they are.

    A job stays where it is if the other user has a job with the same unique key, or a local consumer works on it; so do
    those behind it in its line.
    """
    said = {"to": to, "dry_run": dry_run}
    return _change(session, uid, f"give all of user {uid} to user {to}?", f"moved to user {to}", said, yes=yes)


def _list(session: Session) -> int:
    with session.client() as client:
        document = client.owners()
    if session.json:
        screen.say_document(document)
        return exits.Exit.OK
    owners = [each for each in document.get("owners") or () if isinstance(each, Mapping)]
    if not owners:
        screen.note("nobody has anything")
        return exits.Exit.OK
    columns = [Column("UID", whole=True, right=True), Column("NAME"), Column("JOBS"), Column("SIZE", right=True)]
    screen.table([*columns, Column("ALSO")], [_row(each) for each in owners])
    return exits.Exit.OK


def _row(each: Mapping[str, Any]) -> list[Cell]:
    count = each.get("bytes")
    return [
        printable(each.get("uid", "-")),
        printable(each.get("name") or "(gone)"),
        _counts(each.get("jobs")),
        size(count) if isinstance(count, int) else "-",
        _counts(each.get("also")),
    ]


def _counts(found: object) -> str:
    if not isinstance(found, Mapping):
        return ""
    return ", ".join(f"{printable(count)} {printable(kind)}" for kind, count in found.items() if count)


def _change(session: Session, uid: int, question: str, done: str, said: dict[str, Any], *, yes: bool) -> int:
    verb: Verb = "move" if "to" in said else "forget"
    with session.client(LONG) as client:
        if not said["dry_run"] and not yes:
            _ask(client.owner_change(uid, verb, {**said, "dry_run": True}), question)
        document = _watched(client, uid, verb, said)
    if session.json:
        screen.say_document(document)
        return exits.Exit.OK
    if said["dry_run"]:
        screen.say(_what(document) or "nothing")
        return exits.Exit.OK
    screen.say(f"{printable(document.get('count', 0))} jobs {done}")
    if _counts(document.get("also")):
        screen.say(f"{_counts(document['also'])} {done}")
    if document.get("kept"):
        ids = ", ".join(printable(id_) for id_ in document.get("kept_jobs") or ())
        screen.note(f"{printable(document['kept'])} jobs stay with user {uid}: {ids}")
    return exits.Exit.OK


def _ask(document: Mapping[str, Any], question: str) -> None:
    """Show what there is, and ask. Raises UsageError without a terminal."""
    screen.note(_what(document) or "there is nothing")
    if not sys.stdin.isatty():
        raise click.UsageError("nothing was done: without a terminal it needs --yes (or --dry-run)")
    click.confirm(question, abort=True, err=True)


def _what(document: Mapping[str, Any]) -> str:
    found = [_counts(document.get("jobs")), _counts(document.get("also"))]
    return ", ".join(words for words in found if words)


def _watched(client: Client, uid: int, verb: Verb, said: dict[str, Any]) -> dict[str, Any]:
    """Carry it out; on a terminal with a bar of how much the user has left."""
    if said["dry_run"] or not sys.stderr.isatty():
        return client.owner_change(uid, verb, said)
    over = threading.Event()
    with progress(f"{verb} user {uid}") as bar:
        total = _left(client, uid)
        watcher = threading.Thread(target=_watch, args=(client, uid, total, over, bar.to), daemon=True)
        watcher.start()
        try:
            return client.owner_change(uid, verb, said)
        finally:
            over.set()
            watcher.join()
            bar.to(total, total)


def _watch(client: Client, uid: int, total: int, over: threading.Event, to: Callable[[int, int | None], None]) -> None:
    while not over.wait(LOOK_EVERY):
        to(max(0, total - _left(client, uid)), total)


def _left(client: Client, uid: int) -> int:
    for each in client.owners().get("owners") or ():
        if isinstance(each, Mapping) and each.get("uid") == uid and isinstance(each.get("jobs"), Mapping):
            return sum(count for count in each["jobs"].values() if isinstance(count, int))
    return 0
