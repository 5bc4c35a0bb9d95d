"""Commands about jobs that have not gone yet: why, wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import complete, exits, screen
from kurir.cli.commands.ended import how_it_stands
from kurir.cli.complaints import complaint
from kurir.cli.human import both, span
from kurir.cli.overview import objects
from kurir.cli.printable import json_text, printable
from kurir.cli.progress import progress
from kurir.cli.screen import Cell, state_cell
from kurir.cli.session import DURATION, Session, pass_session, session_options
from kurir.client import Client, Job, KurirProblem

# What a person can do about it, by the kind of what holds the job.
_CURES: Mapping[str, str] = {
    "breaker": "kurirctl flush tries at once",
    "consumer": "kurirctl work TOPIC -- COMMAND takes such jobs",
    "clock_untrusted": "kurirctl doctor says what the clock lacks",
    "parked": "configure it again, or give the job up with kurirctl cancel",
    "paused": "kurirctl resume lets it go",
}
_OF_STATE: Mapping[str, str] = {
    "leased": "it is being sent, or a consumer works on it",
    "done": "it is delivered",
    "cancelled": "it was given up",
}


@click.command(short_help="Say what keeps a job from going now.")
@click.argument("job_id", metavar="ID", shell_complete=complete.jobs())
@session_options
@pass_session
def why(session: Session, /, *, job_id: str) -> int:
    """Say what keeps a job from going now, when it is looked at again, and what can be done about it."""
    with session.client() as client:
        document = client.why(job_id)
    if session.json:
        screen.say_document(document)
    else:
        screen.details(_why_rows(document, job_id, datetime.now(UTC)))
    return exits.Exit.OK


def _why_rows(document: Mapping[str, Any], job_id: str, now: datetime) -> Iterator[tuple[str, Cell]]:
    state = printable(document.get("state", "-"))
    blocked = objects(document.get("blocked_by"))
    yield "state", state_cell(state)
    if state in _OF_STATE:
        yield "", _OF_STATE[state]
    for block in blocked:
        kind = printable(block.get("kind") or "-")
        yield kind.replace("_", " "), _block_words(block, now)
        if kind in _CURES:
            yield "", _CURES[kind]
        elif block.get("job"):
            yield "", f"kurirctl why {printable(block['job'])} says what holds that one"
    if state in ("dead", "conflict"):
        yield "", f"kurirctl show {printable(job_id)} tells its attempts and what the server said"
    elif document.get("next_attempt_at") is not None:
        yield "next attempt", both(document["next_attempt_at"], now)
    elif blocked:
        yield "next attempt", "when that changes"


def _block_words(block: Mapping[str, Any], now: datetime) -> str:
    words = printable(block.get("detail") or "")
    if block.get("until") is not None:
        words += f"; until {both(block['until'], now)}"
    job = printable(block.get("job") or "")
    return f"{words} (job {job})" if job and job not in words else words


@click.command(short_help="Wait until jobs have ended.")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete.jobs("pending", "leased"))
@click.option("--timeout", type=DURATION, metavar="DURATION", help="At most this long [default: as long as it takes].")
@session_options
@pass_session
def wait(session: Session, /, *, job_ids: tuple[str, ...], timeout: float | None) -> int:
    """Wait until all the jobs have ended; each is told when its turn in the list has come.

    Ends with 0 if all are done, 1 if one is not, 75 if one still waits. One that cannot be found does not keep the
    others from being waited for.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    worst = exits.Exit.OK
    with session.client() as client, progress("waiting", over=len(job_ids)) as bar:
        for number, job_id in enumerate(job_ids, start=1):
            worst = max(worst, _wait_for(session, client, job_id, deadline))
            bar.to(number, len(job_ids))
    if worst is exits.Exit.WAITING and timeout is not None and not session.json:
        screen.note(f"not ended after {span(timeout)}; kurirctl why ID says what it waits for")
    return worst


def _wait_for(session: Session, client: Client, job_id: str, deadline: float | None) -> exits.Exit:
    try:
        job: Job = client.wait(job_id, None if deadline is None else max(0.0, deadline - time.monotonic()))
    except KurirProblem as error:
        if session.json:
            screen.say(json_text(error.document))
        screen.note(f"kurirctl: {complaint(error)}")
        return exits.of_problem(error)
    if session.json:
        screen.say_document_line(job)
    else:
        screen.say(f"{printable(job.id)}  {how_it_stands(job)}")
        screen.flush()
    return exits.of_job(job)
