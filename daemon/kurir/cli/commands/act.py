"""Commands that act on jobs: cancel, retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from kurir.cli import complete, exits, screen
from kurir.cli.complaints import complaint
from kurir.cli.printable import json_text, printable
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Job, KurirProblem


@click.command(short_help="Give jobs up.")
@click.argument(
    "job_ids",
    metavar="ID...",
    nargs=-1,
    required=True,
    shell_complete=complete.jobs("pending", "leased", "dead", "conflict"),
)
@session_options
@pass_session
def cancel(session: Session, /, *, job_ids: tuple[str, ...]) -> int:
    """Give jobs up that wait, are being sent, are dead or in conflict."""
    with session.client() as client:
        return _each(session, job_ids, client.cancel)


@click.command(short_help="Send dead jobs again.")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete.jobs("dead"))
@session_options
@pass_session
def retry(session: Session, /, *, job_ids: tuple[str, ...]) -> int:
    """Send dead jobs again: their counts start anew, their idempotency keys stay."""
    with session.client() as client:
        return _each(session, job_ids, client.retry)


def _each(session: Session, job_ids: Sequence[str], act: Callable[[str], Job]) -> int:
    """Act on each; one that is refused does not keep the others from it, but decides the exit code."""
    worst = exits.Exit.OK
    for job_id in job_ids:
        try:
            job = act(job_id)
        except KurirProblem as error:
            worst = max(worst, exits.of_problem(error))
            if session.json:
                screen.say(json_text(error.document))
            screen.note(f"kurirctl: {complaint(error)}")
            continue
        if session.json:
            screen.say_document_line(job)
        else:
            screen.say(f"{printable(job.id)}  {printable(job.state)}")
    return worst
