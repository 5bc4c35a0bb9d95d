"""`kurirctl list`: the table of jobs, and its pages."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import complete, exits, screen
from kurir.cli.human import job_note, relative, shorten
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Column, state_cell
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Job, Page

ROOM_FOR_NOTES = 110  # columns; on a narrower terminal the note stands under the id
ROOM_FOR_COLUMNS = 70  # columns; on a still narrower one each job is a block of lines
NOTE_WIDTH = 34  # an id's width without the indentation
NOTE_UNDER_ID = 3 * NOTE_WIDTH

STATES = ("pending", "leased", "done", "dead", "conflict", "cancelled")


@click.command("list", short_help="List jobs, newest first.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--topic", shell_complete=complete.topics, help="Only jobs of this topic.")
@click.option("--destination", shell_complete=complete.destinations, help="Only jobs for this destination.")
@click.option(
    "--error-kind",
    metavar="KIND",
    shell_complete=complete.error_kinds,
    help="Only jobs whose last error is of this kind.",
)
@click.option("--owner", metavar="UID", help="Only jobs of this user (admins).")
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", help="Jobs of one page [default: 100].")
@click.option("--cursor", help="Where the last page ended.")
@click.option("--all", "everything", is_flag=True, help="All pages.")
@session_options
@pass_session
def list_jobs(session: Session, /, *, everything: bool, **filters: Any) -> int:
    """List jobs, newest first. With --all and --json: one page's document per line."""
    return say_pages(session, filters, everything=everything)


def say_pages(session: Session, filters: dict[str, Any], *, everything: bool) -> int:
    """One page of jobs, or all of them."""
    with session.client() as client:
        while True:
            page = client.page(**filters)
            if not everything:
                _say_page(session, page)
                return exits.Exit.OK
            if session.json:
                screen.say_document_line(page.document)
            elif page.jobs or not filters.get("cursor"):
                print_jobs(page.jobs)
            if page.next_cursor is None:
                return exits.Exit.OK
            filters["cursor"] = page.next_cursor


def _say_page(session: Session, page: Page) -> None:
    if session.json:
        screen.say_document(page.document)
        return
    print_jobs(page.jobs)
    if page.next_cursor is not None:
        screen.note(f"there are more: --cursor {printable(page.next_cursor)}, or --all")


def print_jobs(jobs: Sequence[Job]) -> None:
    """The table of jobs: ids always whole, because people copy them into the next command."""
    if not jobs:
        screen.note("no jobs")
        return
    now = datetime.now(UTC)
    under_id = screen.on_terminal() and ROOM_FOR_COLUMNS <= screen.width() < ROOM_FOR_NOTES
    columns = [Column("ID", True), Column("STATE", whole=True), Column("TOPIC"), Column("CREATED", True)]
    rows: list[list[Cell]] = []
    for job in jobs:
        identity, about = printable(job.id), job_note(job, now)
        if under_id and about:
            identity = "\n".join([identity, *_under_id(about)])
        row: list[Cell] = [
            identity,
            state_cell(job.state),
            printable(job.get("topic") or "-"),
            relative(job.get("created_at"), now),
        ]
        rows.append(row if under_id else [*row, about])
    screen.table(columns if under_id else [*columns, Column("NOTE")], rows)


def _under_id(about: str) -> list[str]:
    lines = textwrap.wrap(shorten(about, NOTE_UNDER_ID), NOTE_WIDTH, break_on_hyphens=False)
    return [f"  {line}" for line in lines]
