"""Handlers of signals that run soon, whatever the main thread waits for.

Python runs a handler in the main thread once that gets to run. A signal that comes in the moment before the thread goes
to sleep (in a lock, in a read of a socket) is noted and wakes nobody: it would be heard with the next event only. So
each signal also wakes a thread of its own, which nudges the main thread until the handler has run.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType

NUDGE = signal.SIGURG
"""Sent to the main thread alone. Without meaning: whoever does not listen to it ignores it."""

AGAIN = 0.05
"""Seconds between two nudges."""

MOST_NUDGES = 20


def listen(numbers: Iterable[int], handler: Callable[[int], None]) -> None:
    """Call `handler` in the main thread for each of these signals. To be called once, in the main thread."""
    wanted = frozenset(numbers)
    heard, said = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(said, False)
    settled = threading.Semaphore(0)

    def handle(number: int, _: FrameType | None) -> None:
        settled.release()
        handler(number)

    for number in wanted:
        signal.signal(number, handle)
    signal.signal(NUDGE, lambda *_: None)
    signal.set_wakeup_fd(said, warn_on_full_buffer=False)
    main = threading.get_ident()

    def nudge() -> None:
        while True:
            for number in os.read(heard, 64):
                # Bounded: signals of one number that come close together are handled once.
                for _ in range(MOST_NUDGES if number in wanted else 0):
                    if settled.acquire(timeout=AGAIN):
                        break
                    signal.pthread_kill(main, NUDGE)

    threading.Thread(target=nudge, name="signals", daemon=True).start()
