"""`kurirctl submit` and `kurirctl post`: hand over a job, or a file of them."""

from __future__ import annotations

from typing import Any

import click

from kurir.cli import complete, exits, screen
from kurir.cli.commands.ended import say_how_it_stands
from kurir.cli.commands.job_options import job_options, submit_options
from kurir.cli.commands.lines import submit_lines
from kurir.cli.commands.payload import payload_of, read_data
from kurir.cli.printable import printable
from kurir.cli.session import DURATION, Session, pass_session, session_options
from kurir.client import Job, NewJob, calls

_wait_option = click.option(
    "--wait", type=DURATION, metavar="DURATION", help="Wait until the job has ended, at most this long."
)


@click.command(short_help="Hand over a job of a topic.")
@click.argument("topic", shell_complete=complete.topics)
@click.argument("data", required=False)
@job_options()
@_wait_option
@click.option("--lines", is_flag=True, help="DATA holds a job per line: each line is a payload.")
@click.option("--atomic", is_flag=True, help="With --lines: all of them or none.")
@session_options
@pass_session
def submit(
    session: Session,
    /,
    *,
    topic: str,
    data: str | None,
    text: bool,
    wait: float | None,
    lines: bool,
    atomic: bool,
    **given: Any,
) -> int:
    """Hand over a job of TOPIC; when this ends it is on disk.

    DATA is the payload itself, @FILE or - (standard input); without it the body is empty. It is delivered byte for
    byte. Prints the job's id.
    """
    options = submit_options(given)
    if lines:
        if wait is not None:
            raise click.UsageError("--lines and --wait exclude each other")
        return submit_lines(session, topic, data, text, atomic, options)
    if atomic:
        raise click.UsageError("--atomic needs --lines")
    payload = payload_of(read_data(data), content_type=given["content_type"], text=text)
    return _hand_over(session, NewJob.for_topic(topic, payload, **options), wait)


@click.command(short_help="Hand over a job that carries its own URL.")
@click.argument("url")
@click.argument("data", required=False)
@click.option("--method", "-X", default="POST", show_default=True, help="The request's method.")
@job_options()
@_wait_option
@session_options
@pass_session
def post(
    session: Session, /, *, url: str, data: str | None, method: str, text: bool, wait: float | None, **given: Any
) -> int:
    """Hand over a job that carries its own URL, and needs no topic.

    DATA is the payload itself, @FILE or - (standard input). No configured credential is ever sent along. Prints the
    job's id.
    """
    payload = payload_of(read_data(data), content_type=given["content_type"], text=text)
    return _hand_over(session, NewJob.for_url(url, payload, method=method, **submit_options(given)), wait)


def _hand_over(session: Session, new: NewJob, wait: float | None) -> int:
    with session.client() as client:
        job = client.run(calls.submit(new))
        # The id is out before the wait begins: who interrupts it must still know what was accepted.
        if not session.json:
            _say_accepted(job)
        if wait is None:
            if session.json:
                screen.say_document(job)
            return exits.Exit.OK
        job = client.wait(job.id, wait)
    if session.json:
        screen.say_document(job)
    else:
        say_how_it_stands(job)
    return exits.of_job(job)


def _say_accepted(job: Job) -> None:
    screen.say(printable(job.id))
    screen.flush()
    if job.duplicate:
        screen.note("this key was known already: it is the earlier job, nothing new was stored")
    elif job.kept:
        screen.note("a job of this unique key is there already: it is that one, nothing new was stored")
