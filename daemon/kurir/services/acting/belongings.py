"""What users have, seen from the outside: in figures, and as lines of jobs that follow their owner."""

from __future__ import annotations

import pwd
from collections.abc import Mapping

from kurir.domain.errors import Refused
from kurir.domain.job import Job
from kurir.domain.peer import Peer
from kurir.services.accepting.compose import key_line, target_line, topic_line
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.scheduling.scheduler import Scheduler
from kurir.services.scheduling.schedules import Schedules
from kurir.services.showing.owner_documents import OwnerDocument, OwnersDocument
from kurir.store.tx import LIVE, Tally

_ADMINISTRATOR = Peer(uid=0, name="root", groups=frozenset(), admin=True)
_KINDS = (LIVE, "done", "dead", "conflict", "cancelled")


def line_after(job: Job, owner: int) -> int | None:
    """The line that a job stands in once it is another owner's: made of the same things as its present one."""
    if job.line is None:
        return None
    if job.ordering_key is not None and job.line == key_line(job.owner, job.topic, job.ordering_key):
        return key_line(owner, job.topic, job.ordering_key)
    if job.line == topic_line(job.owner, job.topic):
        return topic_line(owner, job.topic)
    if job.line == target_line(job.owner, job.destination, job.target):
        return target_line(owner, job.destination, job.target)
    return job.line  # of an older rule: who stands in it stays together


def owners_document(tally: Tally, others: Mapping[str, Mapping[int, int]]) -> OwnersDocument:
    """Everybody who has something. Asks the system for names, which may take a while."""
    jobs: dict[int, dict[str, int]] = {}
    size: dict[int, int] = {}
    for (_, owner, kind), (count, cost) in tally.accounts.copy().items():
        if kind in _KINDS and count:
            mine = jobs.setdefault(owner, {})
            mine[kind] = mine.get(kind, 0) + count
            size[owner] = size.get(owner, 0) + cost
    found = sorted({*jobs, *(owner for counts in others.values() for owner in counts)})
    return OwnersDocument(
        [
            OwnerDocument(
                uid=uid,
                name=_name(uid),
                jobs=jobs.get(uid, {}),
                bytes=size.get(uid, 0),
                also={name: counts[uid] for name, counts in others.items() if counts.get(uid)},
            )
            for uid in found
        ]
    )


class SchedulesOfOwners:
    """The schedules that users have set; not those of the configuration."""

    name = "schedules"

    def __init__(self, scheduler: Scheduler, schedules: Schedules) -> None:
        self._scheduler = scheduler
        self._schedules = schedules

    def count(self, owner: int | None) -> dict[int, int]:
        """How many each user has, or one."""
        found: dict[int, int] = {}
        for who, _ in self._of(owner):
            found[who] = found.get(who, 0) + 1
        return found

    async def forget(self, owner: int) -> int:
        """Remove all of a user's."""
        mine = self._of(owner)
        for _, name in mine:
            await self._schedules.remove(_ADMINISTRATOR, name, owner)
        return len(mine)

    def check_move(self, owner: int, to: int) -> None:
        """Refuse: what a schedule may do depends on the name and groups of who set it."""
        if mine := self._of(owner):
            names = ", ".join(name for _, name in mine[:10])
            detail = f"cannot move: user {owner} has schedules ({names}); set them as user {to}, then remove these"
            raise Refused("exists", detail)

    async def move(self, owner: int, to: int) -> int:
        """Refuse, or move nothing."""
        self.check_move(owner, to)
        return 0

    def _of(self, owner: int | None) -> list[tuple[int, str]]:
        standing = self._scheduler.standing.values()
        return [one.stored.key for one in standing if not one.stored.configured and owner in (None, one.stored.owner)]


class SecretsOfOwners:
    """The secrets that users have put down."""

    name = "secrets"

    def __init__(self, secrets: OwnSecrets) -> None:
        self._secrets = secrets

    def count(self, owner: int | None) -> dict[int, int]:
        """How many each user has, or one."""
        found: dict[int, int] = {}
        for who, _, _ in self._secrets.of(owner):
            found[who] = found.get(who, 0) + 1
        return found

    async def forget(self, owner: int) -> int:
        """Remove all of a user's."""
        return await self._secrets.forget(owner)

    def check_move(self, owner: int, to: int) -> None:
        """Refuse where both have one of the same name."""
        self._secrets.check_move(owner, to)

    async def move(self, owner: int, to: int) -> int:
        """Give all of a user's to another one."""
        return await self._secrets.move(owner, to)


def _name(uid: int) -> str | None:
    """The user's name; None for one that the system does not know any more."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None
