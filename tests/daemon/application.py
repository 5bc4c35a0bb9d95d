"""An application with an outbox of its own, and the kurirctl relay that moves it: both as their users run them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cli.command import KURIRCTL, environment
from kurir import outbox
from kurir.cli.relay.watch import Watch
from support.process import ends_within, readable

PATIENCE = 20.0


class Application:
    """Its database; every method is a transaction of its own."""

    def __init__(self, path: Path, journal: str = "WAL", encoding: str = "UTF-8") -> None:
        self.path = path
        with closing(self.connect()) as conn:
            conn.execute(f"PRAGMA encoding = '{encoding}'")
            conn.execute(f"PRAGMA journal_mode = {journal}")
            outbox.create(conn)
            conn.commit()
        self._kept = self.connect()  # as an application does: so the WAL stays

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=PATIENCE)

    def close(self) -> None:
        self._kept.close()

    def enqueue(self, *payloads: object, topic: str = "orders", **options: Any) -> list[str]:
        """All of them, or none."""
        with self._kept as conn:
            return [outbox.enqueue(conn, topic, payload, **options) for payload in payloads]

    def write(self, **columns: object) -> None:
        """A row as a program in another language may write it."""
        given = {
            "topic": "orders",
            "body": b"{}",
            "idempotency_key": os.urandom(8).hex(),
            "created_at": "now",
            **columns,
        }
        names, marks = ", ".join(given), ", ".join("?" * len(given))
        with self._kept as conn:
            conn.execute(f"INSERT INTO kurir_outbox ({names}) VALUES ({marks})", tuple(given.values()))

    def rows(self, table: str = "kurir_outbox") -> list[dict[str, Any]]:
        with closing(self.connect()) as conn:
            conn.row_factory = sqlite3.Row
            conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
            try:
                return [dict(row) for row in conn.execute(f"SELECT * FROM {table} ORDER BY id")]
            except sqlite3.OperationalError:
                if table == "kurir_outbox":
                    raise
                return []

    def refused(self) -> list[dict[str, Any]]:
        return self.rows("kurir_outbox_refused")

    def wait(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Until a condition on the database holds; it is looked at after each change."""
        end = time.monotonic() + timeout
        with closing(Watch(self.path)) as watch:
            while True:
                watch.forget()
                if condition():
                    return
                left = end - time.monotonic()
                assert left > 0, f"not within {timeout} s: {self.rows()}"
                # A change is announced a moment before it can be read.
                watch.wait(min(left, 0.2))

    def emptied(self) -> None:
        """Wait until the relay has settled every row."""
        self.wait(lambda: not self.rows())


class Relay:
    """`kurirctl relay` in a process."""

    def __init__(self, database: Path, socket: Path, *options: str) -> None:
        self._process = subprocess.Popen(
            [*KURIRCTL, "relay", str(database), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(KURIR_SOCKET=str(socket)),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ends_within(self, seconds: float) -> bool:
        return ends_within(self.pid, seconds)

    def kill9(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)

    def ended(self) -> tuple[int, str, str]:
        """Its exit code and what it said."""
        out, err = self._process.communicate(timeout=60)
        return self._process.returncode, out.decode(), err.decode()

    def said(self, text: str) -> None:
        """Wait until it has said that on standard error."""
        assert self._process.stderr is not None
        seen = b""
        while text.encode() not in seen:
            assert readable([self._process.stderr.fileno()], PATIENCE), f"never said {text!r}: {seen!r}"
            piece = os.read(self._process.stderr.fileno(), 4096)
            assert piece, f"it ended: {seen!r}"
            seen += piece

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill9()
                raise
        else:
            self._process.communicate()


@contextmanager
def relaying(database: Path, socket: Path, *options: str) -> Iterator[Relay]:
    """A relay that runs while the block does."""
    relay = Relay(database, socket, *options)
    try:
        yield relay
    finally:
        relay.stop()


def once(database: Path, socket: Path, *options: str) -> tuple[int, str, str]:
    """`kurirctl relay --once`, to its end."""
    return Relay(database, socket, "--once", *options).ended()


def document(text: str) -> dict[str, Any]:
    return dict(json.loads(text))
