"""Commands that look at jobs: list, show, why, wait."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import exits, screen
from kurir.cli.commands.ended import how_it_stands
from kurir.cli.human import both, error_words, job_note, relative, shorten, size, span
from kurir.cli.printable import printable, printable_lines
from kurir.cli.screen import Cell, Column, state_cell
from kurir.cli.session import DURATION, Session, pass_session, session_options
from kurir.client import Client, Job, Page

ROOM_FOR_NOTES = 110  # columns; on a narrower terminal the note stands under the id
NOTE_WIDTH = 34  # an id's width without the indentation
NOTE_UNDER_ID = 3 * NOTE_WIDTH

STATES = ("pending", "leased", "done", "dead", "conflict", "cancelled")


@click.command("list", short_help="List jobs, newest first.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--topic", help="Only jobs of this topic.")
@click.option("--destination", help="Only jobs for this destination.")
@click.option("--error-kind", metavar="KIND", help="Only jobs whose last error is of this kind.")
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
    under_id = screen.on_terminal() and screen.width() < ROOM_FOR_NOTES
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


@click.command(short_help="Show all about a job.")
@click.argument("job_id", metavar="ID")
@click.option("--attempts", "only_attempts", is_flag=True, help="Only the attempts.")
@click.option("--body", "only_body", is_flag=True, help="Only the body, byte for byte.")
@session_options
@pass_session
def show(session: Session, /, *, job_id: str, only_attempts: bool, only_body: bool) -> int:
    """Show all about a job: its state, its attempts, the last error."""
    if only_body and only_attempts:
        raise click.UsageError("--body and --attempts exclude each other")
    with session.client() as client:
        if only_body:
            _say_body(client.body(job_id).content)
        elif only_attempts:
            _say_attempts(session, client.attempts(job_id))
        elif session.json:
            screen.say_document(client.get(job_id))
        else:
            _say_job(client, client.get(job_id))
    return exits.Exit.OK


def _say_job(client: Client, job: Job) -> None:
    now = datetime.now(UTC)
    screen.details(_job_rows(job, now))
    attempts = client.attempts(job.id).get("attempts")
    if isinstance(attempts, list) and attempts:
        screen.say()
        _attempts_table(attempts, now)


def _job_rows(job: Job, now: datetime) -> list[tuple[str, Cell]]:
    def instant(value: Any) -> str:
        return both(value, now)

    return screen.view(
        job,
        [
            ("id", "id", printable),
            ("state", "state", lambda _: state_cell(job.state)),
            ("reason", "reason", printable),
            ("topic", "topic", printable),
            ("destination", "destination", printable),
            ("owner", "owner", printable),
            ("priority", "priority", printable),
            ("ordering key", "ordering_key", printable),
            ("unique key", "unique_key", printable),
            ("idempotency key", "idempotency_key", printable),
            ("correlation id", "correlation_id", printable),
            ("content type", "content_type", printable),
            ("size", "size", lambda value: size(value) if isinstance(value, int) else printable(value)),
            ("attempts", "attempts", lambda _: _attempt_words(job)),
            ("created", "created_at", instant),
            ("due", "due_at", instant if not job.ended else lambda _: "-"),
            ("expires", "expires_at", instant),
            ("finished", "finished_at", instant),
            ("last error", "last_error", error_words),
            ("result", "result", _result_words),
        ],
    )


def _attempt_words(job: Job) -> str:
    words = f"{printable(job.get('attempts'))} sent, {printable(job.get('charged', '-'))} counted"
    words += f" of {printable(job.get('max_attempts', '-'))}"
    return f"{words}, {printable(job['unreachable'])} did not reach the server" if job.get("unreachable") else words


def _result_words(result: Any) -> str:
    if not isinstance(result, Mapping):
        return printable(result)
    return ", ".join(f"{printable(name)} {printable(value)}" for name, value in result.items() if value)


def _say_attempts(session: Session, document: Mapping[str, Any]) -> None:
    if session.json:
        screen.say_document(document)
        return
    attempts = document.get("attempts")
    if isinstance(attempts, list) and attempts:
        _attempts_table(attempts, datetime.now(UTC))
    else:
        screen.note("no attempts")


def _attempts_table(attempts: Sequence[Any], now: datetime) -> None:
    columns = [
        Column("N", True, True),
        Column("WHEN", True),
        Column("TOOK", True, True),
        Column("VERDICT"),
        Column("WHAT"),
    ]
    rows: list[list[Cell]] = []
    for attempt in attempts:
        if isinstance(attempt, Mapping):
            status, seconds = attempt.get("status"), attempt.get("seconds")
            error = error_words(attempt.get("error"))
            what = error or (f"HTTP {printable(status)}" if status is not None else "")
            took = f"{seconds:.1f} s" if isinstance(seconds, int | float) else "-"
            rows.append(
                [
                    printable(attempt.get("n", "-")),
                    relative(attempt.get("at"), now),
                    took,
                    printable(attempt.get("verdict") or "-"),
                    what,
                ]
            )
    screen.table(columns, rows)


def _say_body(content: bytes) -> None:
    """The bytes as they are in a pipe; on a terminal without what it would obey."""
    if screen.on_terminal():
        text = printable_lines(content.decode("utf-8", "backslashreplace"))
        screen.say(text.removesuffix("\n"))
    else:
        sys.stdout.buffer.write(content)


@click.command(short_help="Say what keeps a job from going now.")
@click.argument("job_id", metavar="ID")
@session_options
@pass_session
def why(session: Session, /, *, job_id: str) -> int:
    """Say what keeps a job from going now, and when it is looked at again."""
    with session.client() as client:
        document = client.why(job_id)
    if session.json:
        screen.say_document(document)
        return exits.Exit.OK
    now = datetime.now(UTC)
    rows: list[tuple[str, Cell]] = [("state", state_cell(document.get("state", "-")))]
    blocked = document.get("blocked_by")
    for one in blocked if isinstance(blocked, list) else []:
        if isinstance(one, Mapping):
            rows.append((printable(one.get("kind") or "-").replace("_", " "), _block_words(one, now)))
        else:
            rows.append(("blocked by", printable(one)))
    if document.get("next_attempt_at") is not None:
        rows.append(("next attempt", both(document["next_attempt_at"], now)))
    elif blocked:
        rows.append(("next attempt", "when that changes"))
    screen.details(rows)
    return exits.Exit.OK


def _block_words(block: Mapping[str, Any], now: datetime) -> str:
    words = printable(block.get("detail") or "")
    if block.get("until") is not None:
        words += f"; until {both(block['until'], now)}"
    job = printable(block.get("job") or "")
    return f"{words} (job {job})" if job and job not in words else words


@click.command(short_help="Wait until jobs have ended.")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--timeout", type=DURATION, metavar="DURATION", help="At most this long [default: as long as it takes].")
@session_options
@pass_session
def wait(session: Session, /, *, job_ids: tuple[str, ...], timeout: float | None) -> int:
    """Wait until all the jobs have ended. Ends with 0 if all are done, 1 if one is not, 75 if one still waits."""
    deadline = None if timeout is None else time.monotonic() + timeout
    worst = exits.Exit.OK
    with session.client() as client:
        for job_id in job_ids:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            job = client.wait(job_id, left)
            if session.json:
                screen.say_document_line(job)
            else:
                screen.say(f"{printable(job.id)}  {how_it_stands(job)}")
                screen.flush()
            worst = max(worst, exits.of_job(job))
    if worst is exits.Exit.WAITING and timeout is not None and not session.json:
        screen.note(f"not ended after {span(timeout)}; kurirctl why ID says what it waits for")
    return worst
