"""`kurirctl submit --lines`: a file with a job per line, in batches, each of which costs the daemon one sync."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import click

from kurir.cli import exits, screen
from kurir.cli.commands.payload import payload_of
from kurir.cli.exits import Exit
from kurir.cli.printable import printable
from kurir.cli.progress import progress
from kurir.cli.session import Session
from kurir.client import BrokenAnswer, Client, Invalid, KurirProblem, LineResult, NewJob, SubmitOptions, calls

BATCH_LINES = 500
BATCH_BYTES = 4 * 1024 * 1024
ATOMIC_LINES = 10_000  # the most that the daemon takes in one request
SHOWN_REFUSALS = 20


@dataclass(slots=True)
class Tally:
    """What became of the lines so far."""

    accepted: int = 0
    known: int = 0
    refused: int = 0
    code: Exit = Exit.OK

    def refuse(self, number: int, error: KurirProblem) -> None:
        self.refused += 1
        # Full beats refused data: it says that the rest may go through later.
        self.code = max(self.code, exits.of_problem(error))
        if self.refused <= SHOWN_REFUSALS:
            screen.note(f"kurirctl: line {number}: {printable(error.detail)}")
        elif self.refused == SHOWN_REFUSALS + 1:
            screen.note("kurirctl: more lines are refused; only their number is shown")

    def summary(self) -> str:
        parts = [f"{self.accepted} accepted"]
        parts += [f"{self.known} known already"] if self.known else []
        parts += [f"{self.refused} refused"] if self.refused else []
        return ", ".join(parts)


@dataclass(slots=True)
class Batch:
    """Lines that go together: each with its number in the input, and its result if it was refused before it went."""

    lines: list[tuple[int, LineResult | None]] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)

    def full(self) -> bool:
        return len(self.lines) >= BATCH_LINES or len(self.content) >= BATCH_BYTES

    def sent(self) -> list[int]:
        """The numbers of the lines that are in `content`, in its order."""
        return [number for number, refused in self.lines if refused is None]


@dataclass(frozen=True, slots=True)
class LineJobs:
    """Makes the job of a line. Line n's key is derived from one base, so that a repeated file makes no new jobs."""

    topic: str
    text: bool
    options: SubmitOptions
    base: str

    def job(self, number: int, line: bytes) -> NewJob:
        payload = payload_of(line, content_type=self.options.get("content_type"), text=self.text)
        options = self.options.copy()
        options["idempotency_key"] = f"{self.base}:{number}"
        return NewJob.for_topic(self.topic, payload, **options)


def submit_lines(
    session: Session, topic: str, data: str | None, text: bool, atomic: bool, options: SubmitOptions
) -> int:
    """Submit every line that is not empty; refused ones are named with their line, the others are accepted."""
    if data is None:
        raise click.UsageError("--lines needs @FILE or - (standard input)")
    jobs = LineJobs(topic, text, options, options.get("idempotency_key") or str(uuid.uuid4()))
    with _source(data) as (source, size), session.client() as client, progress("submitting") as bar:
        intake = Intake(client, session, Tally())
        if atomic:
            intake.all_or_none(_one_batch(source, jobs))
        else:
            for batch, read in _batches(source, jobs):
                going_on = intake.each(batch)
                bar.to(read, size)
                if not going_on:
                    break
    if not session.json:
        screen.say(intake.tally.summary())
    return intake.tally.code


@dataclass(frozen=True, slots=True)
class Intake:
    """Sends batches and tells what became of each line."""

    client: Client
    session: Session
    tally: Tally

    def each(self, batch: Batch) -> bool:
        """Submit the lines on their own; false if all further ones would be refused too (full, stopping)."""
        try:
            answered = self.client.run(calls.submit_lines(bytes(batch.content))) if batch.content else []
        except KurirProblem:
            screen.note(f"kurirctl: stopped before line {batch.lines[0][0]}: {self.tally.summary()}")
            raise
        results = iter(answered)
        for number, refused in batch.lines:
            result = refused or next(results, None)
            if result is None:
                raise BrokenAnswer(f"cannot read the answer: it has no result for line {number}")
            if not self._take(number, result):
                return False
        return True

    def all_or_none(self, batch: Batch) -> None:
        """Submit all lines as one. Raises the problem of the first bad one, with its line in the input."""
        numbers = batch.sent()
        try:
            results = self.client.run(calls.submit_lines(bytes(batch.content), atomic=True)) if numbers else []
        except KurirProblem as error:
            line = error.document.get("line")
            if isinstance(line, int) and 0 < line <= len(numbers):  # what we sent had no empty lines
                error.document["line"] = numbers[line - 1]
            raise
        for number, result in zip(numbers, results, strict=False):
            self._take(number, result)

    def _take(self, number: int, result: LineResult) -> bool:
        if self.session.json:
            screen.say_document_line(result.document)
        error = result.error
        if error is None:
            known = result.job is not None and result.job.duplicate
            self.tally.known += known
            self.tally.accepted += not known
            return True
        self.tally.refuse(number, error)
        if error.status in (503, 507):
            screen.note(f"kurirctl: stopped at line {number}; submit the same file with the same --key to go on")
            return False
        return True


@contextmanager
def _source(data: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The open input and its size in bytes, if it has one."""
    if data == "-":
        yield sys.stdin.buffer, None
    elif data.startswith("@"):
        with ExitStack() as opened:
            try:
                source = opened.enter_context(Path(data[1:]).open("rb"))
            except OSError as error:
                raise click.UsageError(f"cannot read {data[1:]!r}: {error.strerror}") from None
            yield source, os.fstat(source.fileno()).st_size or None
    else:
        raise click.UsageError("--lines needs @FILE or - (standard input), not the data itself")


def _batches(source: BinaryIO, jobs: LineJobs) -> Iterator[tuple[Batch, int]]:
    """Batches with the number of bytes that were read up to their end."""
    batch, read = Batch(), 0
    for number, line in enumerate(source, start=1):
        read += len(line)
        if not line.strip():
            continue
        try:
            batch.content += jobs.job(number, line.rstrip(b"\r\n")).encode_line() + b"\n"
            batch.lines.append((number, None))
        except Invalid as error:
            document = {"status": error.status, "error": error.document}
            batch.lines.append((number, LineResult(error.status, None, error, document)))
        if batch.full():
            yield batch, read
            batch = Batch()
    if batch.lines:
        yield batch, read


def _one_batch(source: BinaryIO, jobs: LineJobs) -> Batch:
    whole = Batch()
    for batch, _ in _batches(source, jobs):
        for number, refused in batch.lines:
            if refused is not None and refused.error is not None:
                raise Invalid(refused.status, {**refused.error.document, "line": number})
        whole.lines += batch.lines
        whole.content += batch.content
        if len(whole.lines) > ATOMIC_LINES:
            raise click.UsageError(f"--atomic takes at most {ATOMIC_LINES} lines")
    return whole
