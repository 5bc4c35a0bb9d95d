"""When a call whose answer was lost is sent again: the rule alone, shared by the blocking and the asyncio client.

Only a *lost* answer is repeated, and only where repeating is safe. A daemon that is not there at the first try is
reported at once: the caller can tell the user, or keep the data, better than a client that hangs.
"""

from __future__ import annotations

from typing import Any

from kurir.client.call import Call, Repeat
from kurir.client.errors import Cause, DaemonUnreachable, KurirError, Refused

FIRST_DELAY = 0.05  # seconds; a restart takes a few of these
LONGEST_DELAY = 1.0

_PASSING = frozenset({"stopping", "busy"})


class NeverSent(DaemonUnreachable):
    """Not even connected: the request cannot have had an effect."""


class Persistence:
    """Decides after each failure of one call: how long to pause before the next try, or what to raise.

    `patience` is the sum of pauses, in seconds. `sent` says that the exchange began earlier (a wait in slices), so that
    a daemon which is away at the moment counts as lost, not as absent.
    """

    def __init__(self, patience: float, *, sent: bool = False) -> None:
        self._left = patience
        self._delay = FIRST_DELAY
        self._sent = sent
        self._lost: DaemonUnreachable | None = None

    def pause_after(self, error: KurirError, call: Call[Any]) -> float:
        """Seconds until the next try. Raises what the caller shall see if there is none."""
        if not self._may_repeat(error, call):
            raise self._final(error, call)
        if isinstance(error, DaemonUnreachable) and not isinstance(error, NeverSent):
            self._lost = error
            self._sent = True
        return self.pause(self._final(error, call))

    def pause(self, error: KurirError) -> float:
        """The next pause; raises the error once patience is over."""
        if self._left <= 0:
            raise error
        delay = min(self._delay, self._left)
        self._left -= delay
        self._delay = min(2 * self._delay, LONGEST_DELAY)
        return delay

    def _may_repeat(self, error: KurirError, call: Call[Any]) -> bool:
        if call.repeat is Repeat.NEVER:
            return False
        if isinstance(error, Refused):
            return self._sent and error.code in _PASSING
        if isinstance(error, NeverSent):
            return self._sent
        return isinstance(error, DaemonUnreachable) and error.cause is Cause.LOST

    def _final(self, error: KurirError, call: Call[Any]) -> KurirError:
        """The error, naming the idempotency key if the daemon may have the job."""
        if isinstance(error, NeverSent) and self._lost is None:
            return error
        unanswered = error if isinstance(error, DaemonUnreachable) else self._lost
        if call.key is None or unanswered is None:
            return error
        return DaemonUnreachable(unanswered.path, unanswered.cause, unanswered.reason, idempotency_key=call.key)
