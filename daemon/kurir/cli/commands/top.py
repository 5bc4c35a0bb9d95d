"""`kurirctl top`: what is under way, as it changes."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import click

from kurir.cli import exits, screen
from kurir.cli.commands.events import event_words
from kurir.cli.complaints import complaint
from kurir.cli.frame import Seen, frame
from kurir.cli.layout import Line
from kurir.cli.overview import objects
from kurir.cli.screen import Styled
from kurir.cli.session import DURATION, Session, pass_session, session_options
from kurir.client import Client, DaemonUnreachable, KurirError

SHORTEST_PAUSE = 0.2  # seconds between two looks, however much happens
SHOWN_JOBS = 100
KEPT_NEWS = 50
ANSWER_IN = 5.0  # seconds; the screen stands still so long
WIDE = 1_000  # columns: in a pipe nothing is cut
_QUIT = frozenset("qQ\x1b")


@click.command(short_help="Watch what is under way, live.")
@click.option(
    "--every",
    type=DURATION,
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Look at least this often; what happens is shown at once.",
)
@session_options
@pass_session
def top(session: Session, /, *, every: float) -> int:
    """Watch destinations, topics, jobs in flight and the latest events, on the whole screen, until q is typed.

    The daemon's stream of events says when to look again. In a pipe, or with --json, it is printed once.
    """
    with session.client(ANSWER_IN, patience=0.0) as client:
        seen = _look(client)
        if session.json:
            screen.say_document(seen.document())
        elif not screen.on_terminal() or os.environ.get("TERM") == "dumb":
            for line in frame(seen, (), "", datetime.now(UTC), columns=WIDE, rows=None):
                screen.say(_plain(line))
        else:
            _Watch(client, max(every, SHORTEST_PAUSE), seen).run()
    return exits.Exit.OK


def _look(client: Client) -> Seen:
    return Seen(
        client.status(),
        objects(client.topics().get("topics")),
        objects(client.destinations().get("destinations")),
        client.page(state="leased", limit=SHOWN_JOBS).jobs,
    )


class _Watch:
    """The screen, and a thread that follows the events and says when to look again."""

    def __init__(self, client: Client, every: float, seen: Seen) -> None:
        self._client = client
        self._every = every
        self._seen = seen
        self._trouble = ""
        self._news: deque[str] = deque(maxlen=KEPT_NEWS)
        self._changed = threading.Event()
        self._ended = threading.Event()

    def run(self) -> None:
        from kurir.cli.terminal import Terminal  # noqa: PLC0415 - only here is a terminal taken over

        with Terminal() as terminal:
            follower = threading.Thread(target=self._follow, args=(terminal.wake,), daemon=True)
            follower.start()
            looked = time.monotonic()
            try:
                while True:
                    self._draw(terminal.draw)
                    pause = SHORTEST_PAUSE if self._changed.is_set() else self._every
                    key = terminal.key(max(0.0, looked + pause - time.monotonic()))
                    if key and (key in _QUIT or key[0] in "qQ"):
                        return
                    due = SHORTEST_PAUSE if self._changed.is_set() else self._every
                    if key or time.monotonic() >= looked + due:
                        self._changed.clear()
                        self._look_again()
                        looked = time.monotonic()
            except EOFError:
                return  # the terminal is gone
            finally:
                self._ended.set()

    def _look_again(self) -> None:
        try:
            self._seen = _look(self._client)
            self._trouble = ""
        except KurirError as error:
            since = datetime.now().astimezone() if not self._trouble else None
            why = error.cause if isinstance(error, DaemonUnreachable) else complaint(error).splitlines()[0]
            self._trouble = f"kurird does not answer since {since:%H:%M:%S} ({why})" if since else self._trouble

    def _draw(self, draw: Callable[[Sequence[str]], None]) -> None:
        columns, rows = shutil.get_terminal_size((80, 24))
        lines = frame(
            self._seen, tuple(self._news), self._trouble, datetime.now(UTC), columns=columns, rows=max(1, rows)
        )
        draw([_styled(line) for line in lines])

    def _follow(self, wake: Callable[[], None]) -> None:
        """Until the end: a daemon that is away at the moment is waited for."""
        while not self._ended.is_set():
            with suppress(KurirError), self._client.events() as stream:
                for event in stream:
                    self._news.append(event_words(event, colours=False))
                    self._changed.set()
                    wake()
            self._ended.wait(self._every)


def _plain(line: Line) -> str:
    return "".join(cell.text if isinstance(cell, Styled) else cell for cell in line).rstrip()


def _styled(line: Line) -> str:
    encoding = sys.stdout.encoding or "ascii"
    pieces = ((cell.text, cell.style) if isinstance(cell, Styled) else (cell, "") for cell in line)
    known = ((text.encode(encoding, "replace").decode(encoding), style) for text, style in pieces)
    return "".join(screen.colour(text, style) if style else text for text, style in known)
