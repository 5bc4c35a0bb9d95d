"""`kurirctl export` and `kurirctl import`: a queue moves to another device, or back after a rollback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from kurir.cli import screen
from kurir.cli.commands.lines import BATCH_BYTES, BATCH_LINES, Tally
from kurir.cli.exits import Exit
from kurir.cli.printable import printable
from kurir.cli.progress import Progress, progress
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import BrokenAnswer, Client, KurirProblem, calls
from kurir.client.export import END

MOST_BYTES = 2 * BATCH_BYTES
"""A line that would make a batch larger goes alone: nobody takes a batch without an end."""


@click.command("export", short_help="Write all jobs that are not delivered to a file.")
@click.argument("file", default="-")
@click.option(
    "--owner", type=click.IntRange(0, 2**32 - 1), metavar="UID", help="Only this user's (for administrators)."
)
@session_options
@pass_session
def export_jobs(session: Session, /, *, file: str, owner: int | None) -> int:
    """Write all jobs that have not ended, the dead letters and the conflicts to FILE, with their payloads: a line each.

    Administrators export everybody's. FILE is there only once the export is whole; - (the default) is standard output.
    The jobs stay in the queue: pause what is sent, or stop the daemon afterwards, before they go on elsewhere.

    Secrets are never exported, and schedules are not: set them where the jobs go, secrets before the import.
    """
    with session.client() as client, _target(file) as target, progress("exporting") as bar:
        count = _export(client, owner, target, bar)
    screen.note(f"{count} jobs exported")
    return Exit.OK


def _export(client: Client, owner: int | None, target: BinaryIO, bar: Progress) -> int:
    count = 0
    for line in client.export(owner=owner):
        target.write(line + b"\n")
        if not line.startswith(END):
            count += 1
            bar.to(count, None)
    target.flush()
    return count


@contextmanager
def _target(file: str) -> Iterator[BinaryIO]:
    """Where the export goes: a file appears whole, synced, and readable by its owner alone, or not at all."""
    if file == "-":
        yield sys.stdout.buffer
        return
    path = Path(file)
    partial = path.with_name(f"{path.name}.part")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    except OSError as fault:
        raise click.ClickException(f"cannot write {file}: {fault.strerror}") from fault
    try:
        with os.fdopen(descriptor, "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@click.command("import", short_help="Take in the jobs of an export.")
@click.argument("file", default="-")
@session_options
@pass_session
def import_jobs(session: Session, /, *, file: str) -> int:
    """Take in the jobs of FILE (the default, -, is standard input), which kurirctl export wrote.

    May be repeated: jobs that are there already, or have been delivered lately, are recognised. A line that cannot be
    taken in is named, and the others go on.
    """
    tally, whole = Tally(), False
    with _source(file) as (source, size), session.client() as client, progress("importing") as bar:
        for batch, read, whole in _batches(source):  # noqa: B007 - whether the last line was seen
            going_on = _send(client, session, batch, tally)
            bar.to(read, size)
            if not going_on:
                return _said(session, tally)
    if not whole:
        screen.note("kurirctl: the export is not whole: its last line is missing; export again, and import that too")
        tally.code = max(tally.code, Exit.DATA)
    return _said(session, tally)


def _said(session: Session, tally: Tally) -> int:
    if not session.json:
        screen.say(tally.summary().replace("accepted", "imported"))
    return tally.code


def _send(client: Client, session: Session, batch: list[tuple[int, bytes]], tally: Tally) -> bool:
    """Take one batch in; false if all further ones would be refused too (full, stopping)."""
    if not batch:
        return True
    try:
        results = client.run(calls.import_lines(b"".join(line for _, line in batch)))
    except KurirProblem:
        screen.note(f"kurirctl: stopped before line {batch[0][0]}: {tally.summary()}")
        raise
    if len(results) != len(batch):
        raise BrokenAnswer(f"cannot read the answer: {len(results)} results for {len(batch)} lines")
    for (number, _), result in zip(batch, results, strict=True):
        if session.json:
            screen.say_document_line(result.document)
        error = result.error
        if error is None:
            tally.known += result.status == 200
            tally.accepted += result.status != 200
            continue
        tally.refuse(number, error)
        if error.status in (503, 507) and error.field is None:
            screen.note(f"kurirctl: stopped at line {number}; import the same file again to go on")
            return False
    return True


def _batches(source: BinaryIO) -> Iterator[tuple[list[tuple[int, bytes]], int, bool]]:
    """Batches of lines with their numbers, the bytes that were read up to their end, and whether the end was seen."""
    batch: list[tuple[int, bytes]] = []
    size = read = 0
    whole = False
    for number, line in enumerate(source, start=1):
        read += len(line)
        if line.lstrip().startswith(END):
            whole = _is_end(line)
            continue
        if not line.strip():
            continue
        if batch and size + len(line) > MOST_BYTES:
            yield batch, read, whole
            batch, size = [], 0
        batch.append((number, line.rstrip(b"\r\n") + b"\n"))
        size += len(line)
        if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
            yield batch, read, whole
            batch, size = [], 0
    yield batch, read, whole


def _is_end(line: bytes) -> bool:
    try:
        return json.loads(line).get("end") is True
    except (ValueError, AttributeError):
        return False


@contextmanager
def _source(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The open input and its size in bytes, if it has one."""
    if file == "-":
        yield sys.stdin.buffer, None
        return
    with ExitStack() as opened:
        try:
            source = opened.enter_context(Path(file).open("rb"))
        except OSError as fault:
            raise click.ClickException(f"cannot read {printable(file)}: {fault.strerror}") from fault
        yield source, os.fstat(source.fileno()).st_size
