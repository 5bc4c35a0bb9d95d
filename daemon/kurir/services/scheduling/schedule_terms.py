"""What a schedule says: about time to its clock, the rest to its jobs; of the configuration and of the API alike."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from kurir.domain.cron import cron_fault
from kurir.domain.errors import Refused
from kurir.domain.peer import Peer
from kurir.domain.policy import Access, Ordering, Schedule
from kurir.domain.schedule import MOST_OFTEN, Rule
from kurir.domain.submission import ScheduleGiven, Submission
from kurir.domain.units import duration_text
from kurir.services.accepting.timing import duration
from kurir.services.registry import Registry
from kurir.store.schedules import Stored, Wanted, Who
from kurir.system.timezone import zone

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_decode = msgspec.json.Decoder(ScheduleGiven)


def check_name(name: str) -> None:
    """Raises Refused for what cannot be the id of a schedule."""
    if not _NAME.fullmatch(name):
        detail = "its id must be 1 to 64 letters, digits, _, . or -, and begin with a letter, digit or _"
        raise Refused("invalid", f"cannot set the schedule: {detail}", field="id")


def rule_of(given: ScheduleGiven) -> Rule:
    """When it runs. Raises Refused, naming the member that is wrong."""
    if (given.cron is None) == (given.every is None):
        raise _invalid("cron", "exactly one of cron and every must say when it runs")
    every = None if given.every is None else duration(given.every, "every")
    if every is not None and every < MOST_OFTEN:
        raise _invalid("every", f'it is too often; at least "{duration_text(MOST_OFTEN)}"')
    if given.cron is not None and (fault := cron_fault(given.cron)):
        raise _invalid("cron", fault)
    try:
        zone(given.timezone or "")
    except ValueError as fault:
        raise _invalid("timezone", str(fault)) from None
    return Rule(
        cron=given.cron or "",
        every=every,
        timezone=given.timezone or "",
        missed=given.missed,
        overlap=given.overlap,
        spread=0 if given.spread is None else duration(given.spread, "spread"),
    )


def written(given: ScheduleGiven) -> bytes:
    """A schedule as it is kept: its payload byte for byte."""
    return msgspec.json.encode(given)


def read_back(said: bytes) -> ScheduleGiven:
    """What `written` wrote. Raises Refused for what another program wrote."""
    try:
        return _decode.decode(said)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Refused("invalid", "the schedule cannot be read; set it again") from None


def configured(schedules: Mapping[str, Schedule], owner: int) -> tuple[Wanted, ...]:
    """The schedules of the configuration; their jobs belong to the daemon's own user."""
    return tuple(_configured(schedule, owner) for schedule in schedules.values())


def _configured(schedule: Schedule, owner: int) -> Wanted:
    given = ScheduleGiven(
        topic=schedule.topic,
        cron=schedule.cron or None,
        every=None if schedule.every is None else duration_text(schedule.every),
        timezone=schedule.timezone or None,
        missed=schedule.missed,  # type: ignore[arg-type]  # one of the words, as the settings have checked
        overlap=schedule.overlap,  # type: ignore[arg-type]
        spread=duration_text(schedule.spread) if schedule.spread else None,
        payload=UNSET if schedule.payload is None else msgspec.Raw(schedule.payload.encode()),
    )
    said = written(given)
    return Wanted(
        owner=owner,
        name=schedule.name,
        configured=True,
        who=Who(""),
        topic=schedule.topic,
        rule=rule_of(given),
        size=len(said),
        said=said,
    )


def job_of(given: ScheduleGiven, name: str, registry: Registry, key: str | None) -> Submission:
    """The job of a run. Where the topic needs an ordering key and none is given, the schedule's id is it."""
    topic = registry.topics.get(given.topic)
    more: dict[str, object] = {"idempotency_key": key}
    if topic is not None and topic.ordering is Ordering.KEY and given.ordering_key is None:
        more["ordering_key"] = name
    return given.job(**more)


def peer_of(stored: Stored, access: Access, own: int) -> Peer:
    """Whose the jobs of a schedule are: the user who set it, with the groups that it had then."""
    groups = frozenset(stored.who.groups)
    admin = stored.owner in (0, own) or not groups.isdisjoint(access.admin_groups)
    return Peer(stored.owner, stored.who.name, groups, admin)


def _invalid(field: str, detail: str) -> Refused:
    return Refused("invalid", f"cannot set the schedule: {field}: {detail}", field=field)
