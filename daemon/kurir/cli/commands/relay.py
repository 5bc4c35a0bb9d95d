"""`kurirctl relay`: moves the rows of an application's outbox table into the daemon, as they are committed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from kurir.cli import exits, screen
from kurir.cli.complaints import complaint
from kurir.cli.exits import Exit
from kurir.cli.printable import printable
from kurir.cli.progress import progress
from kurir.cli.relay.carrier import BATCH_ROWS, Carried, Carrier
from kurir.cli.relay.table import Locked, Outbox, Row, Unusable
from kurir.cli.relay.watch import Watch, socket_appears
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import KurirError, KurirProblem

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0  # seconds between two tries while the daemon or the database cannot be used


@click.command(short_help="Move an application's own outbox table into the daemon.")
@click.argument("database", type=click.Path(path_type=Path), metavar="DB")
@click.option("--once", is_flag=True, help="End when the table is empty, and do not wait for anything.")
@session_options
@pass_session
def relay(session: Session, /, *, database: Path, once: bool) -> int:
    """Move the rows of the table kurir_outbox of the SQLite database DB into the daemon, in the order of their ids.

    A row is deleted once the daemon has it on disk. One that is refused for good goes to the table
    kurir_outbox_refused with the reason. Runs until it is interrupted, and may be killed at any moment: no row is lost,
    none becomes two jobs.
    """
    path = database.resolve()
    with session.client() as client, closing(_Relay(session, path, Path(client.path))) as work:
        carrier = Carrier(client, work.outbox, _say_refused)
        if once:
            return work.once(carrier)
        return work.follow(carrier)


class _Relay:
    """One run."""

    def __init__(self, session: Session, path: Path, socket: Path) -> None:
        self._session = session
        self._socket = socket
        self.outbox = Outbox(path)
        self._path = path
        self._pause = FIRST_PAUSE
        self._said = ""

    def close(self) -> None:
        self.outbox.close()

    def once(self, carrier: Carrier) -> int:
        carried = Carried()
        try:
            while self._carry(carrier, carried) and not self.outbox.empty():
                pass
        except Locked as fault:
            screen.note(f"kurirctl: cannot go on: {printable(fault)}; try again later")
            self._summary(carried)
            return Exit.WAITING
        except KurirError:
            self._summary(carried)
            raise
        self._summary(carried)
        return Exit.DATA if carried.refused else Exit.OK

    def follow(self, carrier: Carrier) -> int:
        """Carry what is there, then wait for more, for ever."""
        try:
            watch = Watch(self._path)
        except OSError as fault:
            raise Unusable(f"cannot watch {self._path}: {fault.strerror}; --once needs no watch") from fault
        with closing(watch):
            while True:
                watch.forget()
                carried = Carried()
                try:
                    self._carry(carrier, carried)
                    if not self.outbox.empty():
                        continue
                    self._goes_on()
                    wait: float | None = None
                except Locked as fault:
                    watch.wait(self._trouble(f"cannot use the database now: {printable(fault)}"))
                    continue
                except KurirError as error:
                    if isinstance(error, KurirProblem) and exits.of_problem(error) is Exit.NOT_ALLOWED:
                        raise
                    wait = self._trouble(complaint(error))
                finally:
                    if carried and self._session.json:
                        screen.say_document_line(carried.document())
                if wait is None:
                    watch.wait()
                elif socket_appears(self._socket, wait):
                    self._pause = FIRST_PAUSE

    def _carry(self, carrier: Carrier, carried: Carried) -> bool:
        """Move what is there; whether there was anything."""
        total = self.outbox.count()
        if total <= BATCH_ROWS:
            return carrier.carry(carried, lambda moved: None)
        with progress("relaying") as bar:
            return carrier.carry(carried, lambda moved: bar.to(moved, max(total, moved)))

    def _trouble(self, what: str) -> float:
        """Say it, once for each kind of trouble; seconds until the next try."""
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        if what != self._said:
            self._said = what
            screen.note(f"kurirctl: {what}\n  it is tried again, at least once a minute")
        return pause

    def _goes_on(self) -> None:
        if self._said:
            screen.note("kurirctl: it goes on")
        self._said, self._pause = "", FIRST_PAUSE

    def _summary(self, carried: Carried) -> None:
        if self._session.json:
            screen.say_document(carried.document())
            return
        parts = [f"{carried.relayed} relayed"]
        parts += [f"{carried.known} known already"] if carried.known else []
        parts += [f"{carried.refused} refused (see the table kurir_outbox_refused)"] if carried.refused else []
        screen.say(", ".join(parts))


def _say_refused(row: Row, reason: str) -> None:
    screen.note(f"kurirctl: row {row.id} is put aside: {printable(reason)}")
