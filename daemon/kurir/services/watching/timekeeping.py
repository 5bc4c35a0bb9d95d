"""What follows from changes of the clocks: instants are found anew, the network is given time after a suspend."""

from __future__ import annotations

from collections.abc import Callable

from kurir.domain.devicetime import ClockChange, ClockEvent
from kurir.domain.events import ClockChanged, Emit
from kurir.domain.instant import Now
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.patience import Patience
from kurir.services.keeping.storage import Storage
from kurir.store import amend
from kurir.store.tx import Tx
from kurir.system.clock import Clock


class Timekeeping:
    """Subscriber of the clock."""

    def __init__(self, clock: Clock, storage: Storage, dispatcher: Dispatcher, emit: Emit, patience: Patience) -> None:
        self._clock = clock
        self._storage = storage
        self._dispatcher = dispatcher
        self._emit = emit
        self._patience = patience
        self.resumed: Callable[[], None] = lambda: None
        self.told: Callable[[], None] = lambda: None
        """The time of day is another, or is believed otherwise."""
        self.changed: Callable[[], None] = lambda: None
        self._closed = False
        self._trusted = False
        clock.subscribe(self._on_change)

    def begin(self) -> None:
        """What the clock told before anybody listened: at a start it may be trusted from the first moment.

        While it is not, what was found when it was still holds: device time may lag then, so nothing is early.
        """
        if self._clock.trusted():
            self._find_anew()

    def close(self) -> None:
        """Hear no more: the store that this wrote to is gone, the clock goes on."""
        self._closed = True

    def _on_change(self, change: ClockChange) -> None:
        if self._closed:
            return
        trusted = self._clock.trusted()
        match change.event:
            case ClockEvent.RESUMED:
                self._emit(ClockChanged(f"the device was suspended for {change.delta_ms / 1000:.0f} s", trusted))
                self._patience.skip(change.delta_ms)
                self.resumed()
            case ClockEvent.STEPPED:
                self._emit(ClockChanged(f"the wall clock was set by {change.delta_ms / 1000:+.1f} s", trusted))
                self._find_anew()
            case ClockEvent.TRUSTED:
                self._patience.skip(change.delta_ms)
                self._emit(ClockChanged("the wall clock is trusted", trusted))
                self._find_anew()
            case ClockEvent.DISTRUSTED:
                self._emit(ClockChanged("the wall clock is not trusted any more", trusted))
                self._find_anew()
        self.changed()

    def _find_anew(self) -> None:
        """Jobs that wait for a wall-clock instant wait for another device instant now."""
        self._trusted = self._clock.trusted()
        self.told()
        self._storage.outcome_then(self._reanchor, lambda _: self._dispatcher.look_again())

    def _reanchor(self, tx: Tx) -> None:
        # The clocks as they are when it is written: a store that fails may take it an hour after the change.
        amend.reanchor(tx, now=Now(self._clock.now(), self._clock.wall()), trusted=self._trusted)
