"""Leases jobs of a topic and gives each to a run of the command, so many at a time, until told to stop.

The thread that calls `work` leases and waits; each run has a thread of its own. Nothing polls: a call to the daemon
waits for jobs, and a full crew waits for one of its runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from kurir.cli.worker import Order, Outcome, Ran, Run
from kurir.client import Client, DaemonUnreachable, LeasedJob, Refused

WAIT = 24 * 3600.0
"""Seconds for which one call waits for jobs: the end of the daemon ends it, and nobody needs to be woken before."""

LONGEST_PAUSE = 5.0
"""Seconds between two tries to reach a daemon that has gone."""


class Stopped(Exception):
    """Raised by the handler of a signal, to end a wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What to work on, how much at a time, and until when: `once`, until nothing is left; `most`, so many jobs."""

    topic: str
    concurrency: int
    lease: float | None
    once: bool
    most: int | None


class Crew:
    """The runs under way. `report` hears of each end, `note` of what a person may want to know."""

    def __init__(
        self, client: Client, shift: Shift, order: Order, report: Callable[[Ran], None], note: Callable[[str], None]
    ) -> None:
        self._client = client
        self._shift = shift
        self._order = order
        self._report = report
        self._note = note
        self._changed = threading.Condition()
        self._runs: dict[Run, threading.Thread] = {}
        self._begun = 0
        self._waits = False  # the leasing thread may be interrupted
        self.stopping = False
        self.outcomes: set[Outcome] = set()
        self.broken = ""  # why the command cannot be run at all

    def stop(self) -> None:
        """End everything, the second time at once; from a handler of signals, in the thread that works."""
        for run in list(self._runs):
            (run.kill if self.stopping else run.stop)()
        self.stopping = True
        if self._waits:
            raise Stopped

    def work(self) -> None:
        """Work until there is nothing more to do, and all runs have ended. Raises what the client raises."""
        try:
            self._lease_and_run()
        except Stopped:
            pass
        finally:
            self._all_ended()

    def _lease_and_run(self) -> None:
        met, pause = False, 0.1
        while (room := self._room()) > 0:
            try:
                jobs = self._lease(room)
            except (DaemonUnreachable, Refused) as error:
                if not met:
                    raise  # it never was there
                if pause == 0.1:
                    self._note(f"{error}; it is tried again")
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            met, pause = True, 0.1
            for job in jobs:
                self._start(job)
            if not jobs and self._shift.once and not self._another_ends():
                return

    def _room(self) -> int:
        """How many jobs to ask for, as soon as there is room for one; 0: no more."""
        left = None if self._shift.most is None else self._shift.most - self._begun
        if left == 0:
            return 0
        self._until(lambda: len(self._runs) < self._shift.concurrency or bool(self.broken))
        if self.stopping or self.broken:
            return 0
        room = self._shift.concurrency - len(self._runs)
        return room if left is None else min(room, left)

    def _lease(self, room: int) -> list[LeasedJob]:
        wait = None if self._shift.once else WAIT
        self._waits = True
        try:
            self._check()
            return self._client.lease(self._shift.topic, maximum=min(room, 100), lease=self._shift.lease, wait=wait)
        finally:
            self._waits = False

    def _start(self, job: LeasedJob) -> None:
        run = Run(self._client, job, self._order)
        thread = threading.Thread(target=self._carry_out, args=(run,), name=f"job {job.id}")
        with self._changed:
            self._runs[run] = thread
            self._begun += 1
        thread.start()
        if self.stopping:
            run.stop()

    def _carry_out(self, run: Run) -> None:
        try:
            ran = run.carry_out()
            self.outcomes.add(ran.outcome)
            if ran.code is None:
                self.broken = ran.error
            self._report(ran)
        finally:
            with self._changed:
                del self._runs[run]
                self._changed.notify_all()

    def _another_ends(self) -> bool:
        """Wait for the end of a run: it may make room in the topic, or for a successor. False: there is none."""
        before = len(self._runs)
        if before:
            self._until(lambda: len(self._runs) < before)
        return bool(before)

    def _pause(self, seconds: float) -> None:
        self._waits = True
        try:
            self._check()
            threading.Event().wait(seconds)
        finally:
            self._waits = False

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the runs. A signal ends the wait."""
        self._waits = True
        try:
            self._check()
            with self._changed:
                self._changed.wait_for(condition)
        finally:
            self._waits = False

    def _check(self) -> None:
        if self.stopping:
            raise Stopped

    def _all_ended(self) -> None:
        for thread in list(self._runs.values()):
            thread.join()
