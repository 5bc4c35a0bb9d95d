"""What the queue promises, written down a second time and in the simplest way: lists and dictionaries, no SQL.

The model does not say which job goes next. It hears of each attempt as it reaches the server, and says whether that
job might have gone now; and it says in which states each job may be afterwards. What it allows beyond the plain rules:

- A dead job of a line (an ordering key, a topic, a target) that skips its dead lets the next ones go. Retried, it goes
  before those that have not gone yet; what was delivered meanwhile stays delivered.
- A job in flight when an older one of its line comes back ends its attempt first.
- After a crash an attempt that was in flight is repeated, also one whose success nobody could record.
- A dead job that retention removes holds nobody any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LIVE = "pending"
DONE, DEAD, CONFLICT, CANCELLED, GONE = "done", "dead", "conflict", "cancelled", "gone"
ENDED = (DONE, DEAD, CONFLICT, CANCELLED)
CRASH_LIMIT = 5
FAILURES = ("503", "reset", "timeout")
UNSURE = ("reset", "timeout", "cut")


class Broken(AssertionError):
    """A promise is broken."""


def check(holds: bool, promise: str, *about: object) -> None:
    if not holds:
        raise Broken(f"{promise}: {', '.join(map(str, about))}")


@dataclass(eq=False, kw_only=True)
class Entry:
    """A job as the model knows it. Instants are device milliseconds unless they are named wall."""

    uid: bytes
    number: int  # the order in which jobs were accepted
    owner: int
    topic: str
    destination: str
    line: tuple[object, ...] | None
    target: str | None  # of a PUT
    unique: tuple[object, ...] | None
    policy: str
    parents: tuple[Entry, ...]
    blocks: bool
    body: bytes
    key: str
    salt: int
    accepted_at: int
    due: int
    wall_due: int | None
    expires: int | None
    most: int
    needs: str | None  # what must hold while it is sent: a member of Model.lost, or nothing
    fleeting: bool  # unwanted once a newer one stands in its line
    alive: int  # the last instant at which it was seen alive
    state: str = LIVE
    in_flight: bool = False
    also: set[str] = field(default_factory=set)  # what else it may be, until somebody looks
    ambiguous: bool = False
    shadowed: bool = False  # accepted before an unclean boot: its claim may be what the power cut took
    attempts: int = 0
    failures: int = 0
    crashes: int = 0

    def __str__(self) -> str:
        return f"job {self.number} ({self.topic} of {self.owner}, {self.body.decode()}, {self.state})"

    @property
    def unsure(self) -> bool:
        """Whether an earlier attempt may have been carried out without anybody knowing."""
        return self.ambiguous or self.shadowed


@dataclass(kw_only=True)
class Model:
    """All jobs, what is shut, and what happened since somebody looked last."""

    keeps_done: int
    keeps_dead: int
    jobs: dict[bytes, Entry] = field(default_factory=dict)
    sent: dict[tuple[str, str], tuple[Entry, tuple[object, ...]]] = field(default_factory=dict)
    """By destination and key: whose it is, and what it was."""
    known: dict[tuple[object, ...], tuple[Entry, tuple[object, ...]]] = field(default_factory=dict)
    """By owner, topic and the key that a program chose: the job that it stands for, and its content."""
    online: bool = True
    lost: set[str] = field(default_factory=set)  # what some jobs need, and is not there
    at_rest: bool = False  # everything has just been looked at, and nothing goes on
    amid: bool = False  # jobs come in while attempts go out: of those nobody knows which was first
    paused: set[str] = field(default_factory=set)  # topics and destinations
    held: dict[str, int] = field(default_factory=dict)  # destinations that asked for a pause, until when
    asked: dict[str, int] = field(default_factory=dict)  # the same, since the last look
    touched: set[Entry] = field(default_factory=set)  # had an attempt since the last look
    removed: int = 0
    ending: Entry | None = None  # its attempt is being ended by a cancel

    # What is asked of it.

    def alive(self) -> Iterator[Entry]:
        return (e for e in self.jobs.values() if e.state == LIVE)

    def holder(self, unique: tuple[object, ...] | None) -> Entry | None:
        """The first live job of a unique key."""
        return next((e for e in self.alive() if unique is not None and e.unique == unique), None)

    def may_be(self, entry: Entry, now: int) -> set[str]:
        """Every state that a job may be in now. At rest it is in the one in which it was seen."""
        if self.at_rest:
            return {entry.state}
        late = entry.state == LIVE and not entry.in_flight and entry.expires is not None and entry.expires <= now
        unwanted = entry.state == LIVE and entry.fleeting and any(self._newer(entry))
        return {entry.state} | entry.also | ({DEAD} if late else set()) | ({CANCELLED} if unwanted else set())

    def _newer(self, entry: Entry) -> Iterator[Entry]:
        """Jobs that came to stand behind it in its line."""
        return (e for e in self.jobs.values() if e.number > entry.number and e.line == entry.line is not None)

    def kept_for_good(self, entry: Entry, now: int) -> bool:
        """Whether retention cannot have removed it yet, had it ended when it was last seen alive."""
        return now - entry.alive < (self.keeps_dead if entry.state == DEAD else self.keeps_done)

    def holds_line(self, entry: Entry, now: int) -> bool:
        """Whether it keeps younger ones of its line from going, whatever is unknown about it."""
        stays = {LIVE, CONFLICT} | ({DEAD} if entry.blocks and self.kept_for_good(entry, now) else set())
        return self.may_be(entry, now) <= stays

    def holds_children(self, entry: Entry, now: int) -> bool:
        stays = {LIVE, CONFLICT} | ({DEAD} if self.kept_for_good(entry, now) else set())
        return self.may_be(entry, now) <= stays

    def held_by(self, entry: Entry, now: int) -> Entry | None:
        """A job that has to end, or needs a person, before this one may go."""
        for other in entry.parents:
            if self.holds_children(other, now):
                return other
        for other in self.jobs.values():
            if other.number >= entry.number:
                continue
            if entry.line is not None and other.line == entry.line and self.holds_line(other, now):
                return other
            if entry.unique is not None and other.unique == entry.unique and self.may_be(other, now) == {LIVE}:
                return other
        return None

    # What it hears.

    def begin(self, destination: str, key: str, request: tuple[object, ...], now: int, wall: int) -> Entry:
        """An attempt reaches the server."""
        owner = next((e for e in self.jobs.values() if (e.destination, e.key) == (destination, key)), None)
        check(owner is not None, "only keys of today's requests go out", key)
        assert owner is not None
        first, before = self.sent.setdefault((destination, key), (owner, request))
        check(first is owner and before == request, "one key, one request", owner, first, before, request)
        check(request[-1] == owner.body, "the bytes are those that were accepted", owner, request)
        check(not owner.in_flight, "one attempt of a job at a time", owner)
        check(LIVE in self.may_be(owner, now), "what has ended is not sent", owner)
        for other in self.jobs.values():
            if other.in_flight:
                same_line = owner.line is not None and other.line == owner.line
                check(not same_line, "one attempt of a line at a time", owner, other)
                same_target = (owner.destination, owner.target) == (other.destination, other.target)
                check(owner.target is None or not same_target, "one write to a target at a time", owner, other)
                same_unique = owner.unique is not None and other.unique == owner.unique
                check(not same_unique, "one attempt of a unique key at a time", owner, other)
        before_it = self.held_by(owner, now)
        check(before_it is None, "who stands before goes first", owner, before_it)
        check(now >= owner.due, "nothing goes before its time", owner, owner.due, now)
        check(owner.wall_due is None or wall >= owner.wall_due, "nothing goes before its instant", owner)
        check(owner.expires is None or now < owner.expires, "nothing goes after its time", owner)
        newer = next((e for e in self._newer(owner) if self.holds_line(e, now)), None)
        check(not owner.fleeting or newer is None or self.amid, "what is unwanted is not sent", owner, newer)
        check(owner.needs not in self.lost, "nothing goes without what it needs", owner, owner.needs)
        check(self.online, "nothing is tried without a network", owner)
        check(not {owner.topic, owner.destination} & self.paused, "nothing of what is paused is sent", owner)
        check(now >= self.held.get(owner.destination, 0), "a pause that was asked for is kept", owner)
        owner.in_flight = True
        owner.attempts += 1
        self.touched.add(owner)
        return owner

    def end(self, entry: Entry, answer: str, now: int) -> None:
        """The server answered, or the attempt was cut off."""
        entry.in_flight = False
        entry.alive = now
        if answer == "refused":
            entry.attempts -= 1
        elif answer == "200":
            entry.state = DONE
        elif answer == "418" and entry.destination == "b":
            entry.state = CONFLICT
        elif answer in FAILURES or (answer == "409" and entry.unsure):
            entry.failures += 1
            if entry.failures >= entry.most:
                entry.also.add(DEAD)
        elif answer in ("400", "409", "418"):
            entry.state = DEAD
        elif answer == "429":
            self.asked[entry.destination] = max(now + 60_000, self.asked.get(entry.destination, 0))
        entry.ambiguous = entry.ambiguous or answer in UNSURE
        if answer == "cut" and entry is self.ending:
            entry.state = CANCELLED

    def revived(self, entry: Entry, now: int) -> None:
        """A dead or conflicting job is pending again."""
        check(DEAD in self.may_be(entry, now), "only the dead come back", entry)
        other = self.holder(entry.unique)
        check(other is None, "at most one live job of a unique key", entry, other)
        entry.state, entry.failures, entry.due, entry.wall_due, entry.crashes = LIVE, 0, 0, None, 0
        entry.also.clear()
        if entry.expires is not None and entry.expires <= now:
            entry.expires += now - entry.accepted_at
        entry.alive = now

    def given_up(self, entry: Entry) -> None:
        entry.state = CANCELLED
        entry.also.clear()

    def looked(self, rows: dict[bytes, str], now: int, wall: int) -> None:
        """Everything is at rest: the states that are stored are among those that may be, and are known from now on."""
        unknown = rows.keys() - self.jobs.keys()
        check(not unknown, "there are no jobs that nobody submitted", unknown)
        for entry in self.jobs.values():
            found = rows.get(entry.uid, GONE)
            if entry.state == GONE:
                check(found == GONE, "what is removed stays away", entry)
                continue
            possible = self.may_be(entry, now)
            if found == GONE:
                ended = possible - {LIVE, CONFLICT}
                check(bool(ended), "nothing vanishes", entry, possible)
                entry.state = DEAD if ended == {DEAD} else DONE
                check(not self.kept_for_good(entry, now), "what has ended is kept for its time", entry)
                self.removed += 1
            else:
                check((found == "leased") is entry.in_flight, "who is in flight is leased", entry, found)
                known = (
                    self.online or entry.needs != "unmetered"
                )  # of a network that is down nobody knows what it costs
                lacks = entry.in_flight and entry.needs in self.lost and known
                check(not lacks, "nothing goes on without what it needs", entry, entry.needs)
                found = LIVE if found == "leased" else found
                check(found in possible, "a job is what became of it", entry, found, possible)
            late = entry.expires is not None and entry.expires <= now and not entry.in_flight
            check(found != LIVE or not late, "what is too late has expired", entry)
            if found == LIVE:
                entry.alive = now
                if entry.wall_due is not None and wall >= entry.wall_due:
                    entry.wall_due = None  # its instant has come; it is not held back again
            entry.state = found
            entry.also.clear()
        for name, until in self.asked.items():
            self.held[name] = max(until, self.held.get(name, 0))
        self.asked.clear()
        self.touched.clear()
        self._one_of_each_key()

    def _one_of_each_key(self) -> None:
        """Of several live jobs of a unique key all but the first came to stand behind it."""
        first: dict[tuple[object, ...], Entry] = {}
        for entry in self.alive():
            if entry.unique is None or first.setdefault(entry.unique, entry) is entry:
                continue
            check(entry.policy != "keep", "at most one live job of a unique key", first[entry.unique], entry)

    def crashed(self, leased: set[bytes]) -> None:
        """The process is gone. What it had leased is repeated, and what it had not recorded."""
        for entry in self.jobs.values():
            if entry.uid in leased:
                entry.ambiguous = True
                entry.crashes += len(leased) == 1
                entry.also |= {LIVE} | ({DEAD} if entry.crashes >= CRASH_LIMIT else set())
                entry.state = LIVE
            entry.in_flight = False
