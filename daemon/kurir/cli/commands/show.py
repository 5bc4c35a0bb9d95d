"""`kurirctl show`: all about one job, with what is sent, what came back and its attempts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import complete, exits, screen
from kurir.cli.human import both, error_words, relative, size
from kurir.cli.printable import printable, printable_lines
from kurir.cli.screen import Cell, Column, state_cell
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Client, Job, KurirProblem

PREVIEW_FETCHED = 64 * 1024  # bytes; a larger payload is not fetched to show its beginning
PREVIEW_LINES = 20
PREVIEW_CHARACTERS = 2_000
_FOR_A_PERSON = ("dead", "conflict")


@click.command(short_help="Show all about a job.")
@click.argument("job_id", metavar="ID", shell_complete=complete.jobs())
@click.option("--attempts", "only_attempts", is_flag=True, help="Only the attempts.")
@click.option("--body", "only_body", is_flag=True, help="Only the payload, byte for byte.")
@session_options
@pass_session
def show(session: Session, /, *, job_id: str, only_attempts: bool, only_body: bool) -> int:
    """Show all about a job: its state, its payload, its attempts, the last error and the server's answer.

    With --json: the job, or with --attempts the attempts.
    """
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
    if job.state in _FOR_A_PERSON:
        _section("request", _request_lines(client, job, now))
    if job.get("size"):
        _section("payload", _payload_lines(client, job))
    if isinstance(job.get("result"), Mapping):
        _section("answer", _answer_lines(job["result"]))


def _section(title: str, lines: Iterator[str]) -> None:
    screen.say()
    screen.say(screen.colour(title, "bold"))
    for line in lines:
        screen.say(f"  {line}".rstrip())


def _request_lines(client: Client, job: Job, now: datetime) -> Iterator[str]:
    """What is sent besides the payload, and the keys that edits have replaced."""
    try:
        request = client.request(job.id)
    except KurirProblem as error:
        yield printable(error.detail)
        return
    yield f"{printable(request.get('method', '-'))} {printable(request.get('target') or '(as configured)')}"
    headers = request.get("headers")
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        yield f"{printable(name)}: {printable(value)}"
    for edit in request.get("edits") or ():
        if isinstance(edit, Mapping):
            yield f"edited {relative(edit.get('at'), now)}; its key was {printable(edit.get('idempotency_key', '-'))}"


def _payload_lines(client: Client, job: Job) -> Iterator[str]:
    whole = f"kurirctl show {printable(job.id)} --body"
    if not isinstance(job["size"], int) or job["size"] > PREVIEW_FETCHED:
        yield f"too large to be shown here: {whole}"
        return
    try:
        content = client.body(job.id).content
    except KurirProblem as error:  # a payload may be lost or pruned; the rest of the page is not
        yield printable(error.detail)
        return
    try:
        yield from _preview(content.decode(), whole)
    except UnicodeDecodeError:
        yield f"not text: {whole} > FILE"


def _answer_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"HTTP {printable(result.get('status', '-'))}"
    headers = result.get("headers")
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        yield f"{printable(name)}: {printable(value)}"
    body = result.get("body")
    if isinstance(body, str) and body:
        yield ""
        yield from _preview(body, "kurirctl show ID --json")
    elif result.get("body_base64"):
        yield "a body that is not text: kurirctl show ID --json"
    if result.get("truncated") is True:
        yield "(only the beginning was kept: retention.result_bytes)"


def _preview(text: str, whole: str) -> Iterator[str]:
    lines = text[:PREVIEW_CHARACTERS].splitlines()
    yield from (printable_lines(line) for line in lines[:PREVIEW_LINES])
    if len(text) > PREVIEW_CHARACTERS or len(lines) > PREVIEW_LINES:
        yield f"(only the beginning; all of it: {whole})"


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
            ("leased until", "lease", lambda lease: _lease_words(lease, now)),
            ("expires", "expires_at", instant),
            ("finished", "finished_at", instant),
            ("last error", "last_error", error_words),
        ],
    )


def _lease_words(lease: object, now: datetime) -> str:
    """When a consumer has to be done. An attempt of the daemon itself has no such instant."""
    until = lease.get("until") if isinstance(lease, Mapping) else None
    return both(until, now) if until is not None else "its attempt is over"


def _attempt_words(job: Job) -> str:
    words = f"{printable(job.get('attempts'))} sent, {printable(job.get('charged', '-'))} counted"
    words += f" of {printable(job.get('max_attempts', '-'))}"
    return f"{words}, {printable(job['unreachable'])} did not reach the server" if job.get("unreachable") else words


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
