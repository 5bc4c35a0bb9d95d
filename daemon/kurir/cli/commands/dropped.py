"""`kurirctl dropped`: the ledger of what was removed or given up without having been delivered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import complete, exits, screen
from kurir.cli.commands.piles import cause_words
from kurir.cli.human import relative
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Column
from kurir.cli.session import Session, pass_session, session_options

REASONS = ("queue_full", "dead_too_long", "too_many_dead", "discarded", "owner_forgotten")
ROOM_FOR_ALL = 110  # columns; on a narrower terminal what it was dead of stands under the id


@click.command(short_help="List what was dropped without having been delivered.")
@click.option("--topic", shell_complete=complete.topics, help="Only jobs of this topic.")
@click.option("--why", type=click.Choice(REASONS), help="Only jobs dropped for this reason.")
@click.option("--owner", metavar="UID", type=click.IntRange(0), help="Only jobs of this user (admins).")
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", help="Entries of one page [default: 100].")
@click.option("--cursor", help="Where the last page ended.")
@click.option("--all", "everything", is_flag=True, help="All pages.")
@session_options
@pass_session
def dropped(session: Session, /, *, everything: bool, **filters: Any) -> int:
    """List what was dropped without having been delivered, newest first: what, when, whose and why.

    The newest entries are kept one by one; the totals count all that were ever dropped. With --all and --json: one
    page's document per line.
    """
    with session.client() as client:
        while True:
            page = client.dropped(**filters)
            cursor = page.get("next_cursor")
            if session.json:
                (screen.say_document_line if everything else screen.say_document)(page)
            else:
                _say_page(page, first=not filters.get("cursor"))
            if not isinstance(cursor, str):
                return exits.Exit.OK
            if not everything:
                if not session.json:
                    screen.note(f"there are more: --cursor {printable(cursor)}, or --all")
                return exits.Exit.OK
            filters["cursor"] = cursor


def _say_page(page: Mapping[str, Any], *, first: bool) -> None:
    entries = [entry for entry in page.get("dropped") or () if isinstance(entry, Mapping)]
    now = datetime.now(UTC)
    under_id = screen.on_terminal() and screen.width() < ROOM_FOR_ALL
    columns = [Column("JOB", whole=True), Column("WHEN", whole=True), Column("OWNER", right=True), Column("TOPIC")]
    columns.append(Column("WHY"))
    if not under_id:
        columns.append(Column("DEAD OF"))
    if entries:
        screen.table(columns, [_row(entry, now, under_id=under_id) for entry in entries])
    totals = page.get("totals")
    if first and isinstance(totals, Mapping):
        words = ", ".join(f"{printable(count)} {printable(why)}" for why, count in totals.items())
        screen.note(f"{printable(page.get('total', 0))} dropped in all" + (f": {words}" if words else ""))


def _row(entry: Mapping[str, Any], now: datetime, *, under_id: bool) -> list[Cell]:
    error = entry.get("last_error")
    cause = (
        cause_words({"error_kind": error.get("kind"), "status": error.get("status")})
        if isinstance(error, Mapping)
        else ""
    )
    why = printable(entry.get("why") or "-")
    if entry.get("by") is not None:
        why += f" by {printable(entry['by'])}"
    job = printable(entry.get("job") or "-")
    row: list[Cell] = [
        f"{job}\n  {cause}" if under_id and cause else job,
        relative(entry.get("at"), now),
        printable(entry.get("owner", "-")),
        printable(entry.get("topic") or "-"),
        why,
    ]
    return row if under_id else [*row, cause]
