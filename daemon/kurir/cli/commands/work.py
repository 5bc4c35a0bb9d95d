"""`kurirctl work`: any command is a worker for the jobs of a topic, under its own user."""

from __future__ import annotations

import shutil
import signal
import sys
import threading

import click

from kurir.cli import complete, exits, prompt_signals, screen
from kurir.cli.crew import Crew, Shift
from kurir.cli.human import span
from kurir.cli.printable import printable
from kurir.cli.session import DURATION, Session, pass_session, session_options
from kurir.cli.worker import Order, Outcome, Ran

MOST_AT_ONCE = 100
_TIMEOUT = 10.0  # of what is said about a lease, which does not last for ever


@click.command(short_help="Run a command for each job of a topic.")
@click.argument("topic", shell_complete=complete.topics)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1, MOST_AT_ONCE),
    default=1,
    show_default=True,
    metavar="N",
    help="How many jobs at a time.",
)
@click.option("--lease", type=DURATION, metavar="DURATION", help="How long to hold a job at a time [the topic's].")
@click.option(
    "--grace", type=DURATION, default="10s", show_default=True, metavar="DURATION", help="From SIGTERM to SIGKILL."
)
@click.option("--once", is_flag=True, help="End when nothing is ready any more.")
@click.option("--max", "most", type=click.IntRange(1), metavar="N", help="End after so many jobs.")
@session_options
@pass_session
def work(
    session: Session,
    /,
    *,
    topic: str,
    command: tuple[str, ...],
    concurrency: int,
    lease: float | None,
    grace: float,
    once: bool,
    most: int | None,
) -> int:
    """Lease jobs of TOPIC (one with consumer = "local") and run COMMAND for each. Write -- before COMMAND.

    The payload is its standard input; KURIR_JOB_ID, KURIR_TOPIC, KURIR_ATTEMPT, KURIR_IDEMPOTENCY_KEY,
    KURIR_CONTENT_TYPE and more are in its environment. Exit code 0: the job is done. 75: it is tried again later.
    Any other: it is dead, with the last lines of standard error as the reason.

    The lease is extended while COMMAND runs. If it is lost all the same, or kurirctl is told to end (SIGTERM, SIGINT),
    COMMAND and all that it has started get SIGTERM and, after the grace, SIGKILL. A job whose COMMAND was ended with
    kurirctl goes again, and is not charged for it.
    """
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r} that could be run")
    order = Order(command=command, grace=grace, stdout=sys.stderr.fileno() if session.json else None)
    shift = Shift(topic=topic, concurrency=concurrency, lease=lease, once=once, most=most)
    with session.client(_TIMEOUT) as client:
        crew = Crew(client, shift, order, _Reports(session), lambda text: screen.note(f"kurirctl: {printable(text)}"))
        caught = _stop_on_signals(crew)
        crew.work()
    if crew.broken:
        raise click.UsageError(f"{command[0]}: {crew.broken}")
    if signal.SIGINT in caught:
        return exits.Exit.INTERRUPTED
    badly = (once or most is not None) and Outcome.DEAD in crew.outcomes
    return exits.Exit.ENDED_BADLY if badly else exits.Exit.OK


class _Reports:
    """Tells how runs ended: each as a document, or those that did not go well in words."""

    def __init__(self, session: Session) -> None:
        self._json = session.json
        self._lock = threading.Lock()

    def __call__(self, ran: Ran) -> None:
        with self._lock:
            if self._json:
                screen.say_document_line(
                    {
                        "job": ran.job.id,
                        "outcome": ran.outcome.value,
                        "code": ran.code,
                        "seconds": round(ran.seconds, 3),
                        "error": ran.error or None,
                    }
                )
            elif ran.outcome is not Outcome.DONE or sys.stderr.isatty():
                error = f": {printable(ran.error)}" if ran.error else ""
                words = f"{ran.outcome.value} after {span(ran.seconds)}{error}"
                screen.note(f"kurirctl: {printable(ran.job.id)} {words}")


def _stop_on_signals(crew: Crew) -> set[int]:
    """SIGTERM and SIGINT end the work. Returns which of them came."""
    caught: set[int] = set()

    def stop(number: int) -> None:
        caught.add(number)
        crew.stop()

    prompt_signals.listen((signal.SIGTERM, signal.SIGINT), stop)
    return caught
