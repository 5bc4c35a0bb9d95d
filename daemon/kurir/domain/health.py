"""Whether a destination may be sent to now: breaker, holds and rate. Pure state machines; `now` is device milliseconds.

Each answers one question, *when may the next attempt start, and as what*, with a `Gate`: open, open for one probe,
or shut until an instant (None: until something else happens).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kurir.domain.outcome import Hold
from kurir.domain.policy import MINUTE, BreakerPolicy, Rate
from kurir.domain.retry import Uniform


class Pass(Enum):
    """How much may go through a gate."""

    OPEN = "open"
    PROBE = "probe"  # one attempt, whose failure is not charged to its job
    SHUT = "shut"


@dataclass(frozen=True, slots=True)
class Gate:
    """One reason's answer. `until` is when to look again; `kind` and `detail` say why, for people."""

    passes: Pass
    kind: str = ""
    detail: str = ""
    until: int | None = None


OPEN = Gate(Pass.OPEN)

CAUTION = 3_000
"""How long, in milliseconds, the first attempt after a start or a reconnect goes alone at most: a hanging one must not
hold up the others."""


@dataclass(slots=True)
class Breaker:
    """Leaves a destination alone after so many different jobs in a row failed, and then sends one probe at a time.

    One job's repeated failures count singly only if nothing else is due: a job that alone fails must not shut others
    out.
    """

    policy: BreakerPolicy
    uniform: Uniform
    streak: int = 0
    last_failed: int | None = None
    opened: bool = False
    interval: int = 0  # of the wait that stands; 0: there is none yet
    probe_at: int = 0
    cautious_until: int = 0  # one attempt at a time until the first answer, but not for longer than this

    def gate(self, now: int, in_flight: int) -> Gate:
        if self.opened:
            if in_flight:
                return Gate(Pass.SHUT, "breaker", "a probe is under way")
            if now < self.probe_at:
                return Gate(
                    Pass.SHUT, "breaker", f"{self.streak} failures in a row; one probe at a time", self.probe_at
                )
            return Gate(Pass.PROBE)
        if now < self.cautious_until and in_flight:
            return Gate(Pass.SHUT, "breaker", "the first attempt is under way; the others follow", self.cautious_until)
        return OPEN

    def succeeded(self) -> bool:
        """The destination answered. Returns whether this closed the breaker."""
        closed = self.opened
        self.streak, self.last_failed, self.opened, self.interval, self.cautious_until = 0, None, False, 0, 0
        return closed

    def failed(self, job: int, now: int, *, others_due: bool) -> bool:
        """A job failed on the way or with a server error. Returns whether this opened the breaker."""
        if self.opened:
            self.streak += 1
            if now >= self.probe_at:  # or else an attempt that began before it opened, which was no probe
                self._schedule(now)
            return False
        if job != self.last_failed or not others_due:
            self.streak += 1
        self.last_failed = job
        if self.streak < self.policy.failures:
            return False
        self.opened = True
        self._schedule(now)
        return True

    def be_cautious(self, now: int) -> None:
        """Nobody knows how the destination is: let one attempt find out before a whole burst does."""
        self.cautious_until = now + CAUTION

    def start_anew(self, now: int) -> None:
        """The circumstances changed (another network, a resume, a flush): probe at once, with the first interval."""
        if self.opened:
            self.interval = 0
            self.probe_at = now

    def _schedule(self, now: int) -> None:
        doubled = self.interval * 2 or self.policy.probe_every
        self.interval = min(doubled, self.policy.probe_cap)
        self.probe_at = now + round(self.uniform(self.interval * 0.75, self.interval))


@dataclass(slots=True)
class Standing:
    """One hold that is in force."""

    hold: Hold
    detail: str
    since: int
    until: int
    strikes: int = 0

    @property
    def timed(self) -> bool:
        """Whether it simply ends at `until`; the others are tested with a probe then."""
        return self.hold is Hold.RETRY_AFTER

    def holds(self, now: int) -> bool:
        """Whether anything is held by it: one whose time is over only waits to be forgotten."""
        return not self.timed or now < self.until


PROBE_LADDER = (1 * MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, 60 * MINUTE)
PORTAL_LADDER = (MINUTE // 2, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE)
GONE_LIMIT = 3


@dataclass(slots=True)
class Holds:
    """The pauses that a destination's own answers imposed. At most one of each kind."""

    standing: dict[Hold, Standing] = field(default_factory=dict)
    gone_jobs: list[int] = field(default_factory=list)

    def gate(self, now: int, in_flight: int) -> Gate:
        probe = False
        for held in self.standing.values():
            if now < held.until:
                return Gate(Pass.SHUT, "hold", f"{held.hold}: {held.detail}", held.until)
            probe = probe or not held.timed
        if not probe:
            return OPEN
        if in_flight:
            return Gate(Pass.SHUT, "hold", "a probe is under way")
        return Gate(Pass.PROBE)

    def impose(self, hold: Hold, detail: str, now: int, duration: int | None) -> bool:
        """A hold starts or goes on. Returns whether it is new."""
        before = self.standing.get(hold)
        if before is not None and not before.timed and now < before.until:
            return False  # several attempts were under way when the first met it: that is one strike, not many
        strikes = before.strikes + 1 if before else 0
        if duration is None:
            ladder = PORTAL_LADDER if hold is Hold.PORTAL else PROBE_LADDER
            duration = ladder[min(strikes, len(ladder) - 1)]
        until = max(now + duration, before.until if before and before.timed else 0)
        since = before.since if before else now
        self.standing[hold] = Standing(hold, detail, since, until, strikes)
        return before is None

    def gone(self, job: int) -> bool:
        """A job was answered 410. Returns whether that is the third in a row, so that the destination is to be held."""
        if job not in self.gone_jobs:
            self.gone_jobs.append(job)
        return len(self.gone_jobs) >= GONE_LIMIT or Hold.GONE in self.standing

    def answered(self, now: int) -> list[Hold]:
        """The destination gave an answer that no hold is about: what was tested is over. Returns what ended."""
        self.gone_jobs.clear()
        over = [h for h, s in self.standing.items() if not s.timed or now >= s.until]
        for hold in over:
            del self.standing[hold]
        return over

    def release(self, *holds: Hold) -> list[Hold]:
        """Their cause is gone (a network change, a changed secret, a new url)."""
        if Hold.GONE in holds:
            self.gone_jobs.clear()
        return [h for h in holds if self.standing.pop(h, None) is not None]

    def drop_expired(self, now: int) -> list[Hold]:
        """Timed holds whose time is over."""
        over = [h for h, s in self.standing.items() if s.timed and now >= s.until]
        for hold in over:
            del self.standing[hold]
        return over


@dataclass(slots=True)
class Bucket:
    """A token bucket: `rate.count` requests per `rate.per`, with a burst of at most one second's worth."""

    rate: Rate
    tokens: float | None = None  # none were ever taken: it is full
    at: int = 0

    def gate(self, now: int) -> Gate:
        available = self.available(now)
        if available >= 1:
            return OPEN
        wait = round((1 - self._tokens(now)) * self.rate.per / self.rate.count) + 1
        return Gate(Pass.SHUT, "rate", f"limited to {self.rate.count} per {self.rate.per / 1000:g} s", now + wait)

    def available(self, now: int) -> int:
        """How many requests may start now."""
        return int(self._tokens(now))

    def take(self, now: int) -> None:
        self.tokens = self._tokens(now) - 1
        self.at = now

    def _tokens(self, now: int) -> float:
        full = float(max(1, self._burst()))
        if self.tokens is None:
            return full
        return min(full, self.tokens + (now - self.at) * self.rate.count / self.rate.per)

    def _burst(self) -> int:
        """One second's worth: a rate of 20/s may burst 20; 100 a minute sends 1 or 2 at once, not 100."""
        return max(1, self.rate.count * 1000 // self.rate.per)
