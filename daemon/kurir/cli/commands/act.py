"""Commands that act on jobs: cancel, retry, resolve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import click

from kurir.cli import complete, exits, screen
from kurir.cli.commands.payload import read_data
from kurir.cli.complaints import complaint
from kurir.cli.printable import json_text, printable
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import NOTHING, Job, KurirProblem, RawJson


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


@click.command(short_help="Settle a conflict.")
@click.argument("job_id", metavar="ID", shell_complete=complete.jobs("conflict"))
@click.argument("take", type=click.Choice(["device", "server", "merged"]))
@click.argument("data", required=False)
@session_options
@pass_session
def resolve(session: Session, /, *, job_id: str, take: Literal["device", "server", "merged"], data: str | None) -> int:
    """Settle a conflict, where the server and this device both changed the same thing.

    device sends our version against the server's present one, server gives ours up, merged sends DATA (JSON, @FILE or
    -) in its place. kurirctl list --state conflict shows what there is to settle.
    """
    value = read_data(data)
    if (take == "merged") != (value is not None):
        raise click.UsageError("merged needs DATA, the value to be sent; device and server take none")
    with session.client() as client:
        job = client.resolve(job_id, take, NOTHING if value is None else RawJson(value))
    if session.json:
        screen.say_document(job)
    else:
        screen.say(f"{printable(job.id)}  {printable(job.state)}")
    return exits.Exit.OK


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
