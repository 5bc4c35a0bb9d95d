"""One sentence about how a job stands: for the person who waited for it."""

from __future__ import annotations

from datetime import UTC, datetime

from kurir.cli import screen
from kurir.cli.human import error_words, job_note
from kurir.cli.printable import printable
from kurir.client import Job


def say_how_it_stands(job: Job) -> None:
    """On standard error: standard output has the id."""
    screen.note(f"{printable(job.id)}: {how_it_stands(job)}")


def how_it_stands(job: Job) -> str:
    """The state, with the reason where it is not simply done."""
    attempts = job.get("attempts")
    if job.delivered:
        return f"done after {attempts} attempts" if isinstance(attempts, int) and attempts > 1 else "done"
    if job.ended:
        reason = error_words(job.get("last_error"))
        return f"{printable(job.state)}: {reason}" if reason else printable(job.state)
    note = job_note(job, datetime.now(UTC))
    waits = f"still {printable(job.state)}"
    return f"{waits} ({note})" if note else waits
