"""How the daemon, its topics and its destinations are doing, in words: for `status` and `top`. Pure.

The documents come from a daemon that may be older or newer: a member that is missing or of another kind is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from kurir.cli.human import both, parse_instant, relative, size, span
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Column, Styled

COUNTED = ("pending", "leased", "done", "dead", "conflict", "cancelled")
Document = Mapping[str, Any]

TOPIC_COLUMNS = (
    Column("TOPIC"),
    *(Column(state.upper(), whole=True, right=True) for state in COUNTED[:-1]),
    Column("OLDEST", whole=True, right=True),
)
DESTINATION_COLUMNS = (Column("DESTINATION"), Column("IN FLIGHT", whole=True, right=True), Column("STATE"))


def mapping(value: object) -> Document:
    """The value if it is an object, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Document]:
    """The objects of a list; of anything else none."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def number(value: object) -> int | float | None:
    """The value if it is a number."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def jobs(status: Document) -> str:
    """All jobs by state, and how long the oldest waits."""
    counts = mapping(status.get("jobs"))
    parts = [f"{counts[state]} {state}" for state in COUNTED if number(counts.get(state))]
    words = ", ".join(parts) or "none"
    oldest = number(status.get("oldest_pending_age"))
    return words if oldest is None else f"{words}; the oldest waits for {span(oldest)}"


def network(document: Document) -> str:
    """Whether sending makes sense, over what, and who says so."""
    about = []
    links = document.get("links")
    if isinstance(links, list) and links:
        about.append(", ".join(printable(link) for link in links))
    if document.get("connectivity"):
        about.append(f"connectivity {printable(document['connectivity'])}")
    if document.get("metered") is not None:
        sure = printable(document.get("metered_known") or "unknown")
        about.append(("metered" if document["metered"] else "not metered") + (f" ({sure})" if sure != "yes" else ""))
    if document.get("roaming") == "roaming":
        about.append("roaming")
    if document.get("detail"):
        about.append(printable(document["detail"]))
    reach = printable(document.get("reach") or "unknown").replace("_", " ")
    return f"{reach}: {'; '.join(about)}" if about else reach


def power(document: Document) -> str:
    """Where the power comes from."""
    supply, percent = printable(document.get("supply") or "unknown"), number(document.get("percent"))
    low = ", which is low" if document.get("low") is True else ""
    return supply if percent is None else f"{supply}, battery at {percent:.0f} %{low}"


def budgets(document: Document, now: datetime) -> list[str]:
    """How much of each data budget is spent, and when it begins anew."""
    return [_budget(name, mapping(one), now) for name, one in sorted(mapping(document.get("budgets")).items())]


def _budget(name: str, one: Document, now: datetime) -> str:
    spent, whole = number(one.get("spent_bytes")), number(one.get("bytes"))
    used = f"{size(spent)} of {size(whole)}" if spent is not None and whole is not None else "not known"
    per, where = printable(one.get("per") or "period"), " on metered networks" if one.get("on") == "metered" else ""
    anew = f", anew {relative(one['until'], now)}" if parse_instant(one.get("until")) is not None else ""
    idle = "" if one.get("counts") is not False else "; not counted now"
    return f"{printable(name)}: {used} a {per}{where}{anew}{idle}"


def clock(document: Document, now: datetime) -> str:
    """The daemon's time of day, and whether it acts on it."""
    trusted = document.get("trusted")
    belief = {True: "trusted", False: "not trusted: nothing absolute happens yet"}.get(trusted is True, "")
    there = both(document.get("now"), now).removesuffix(" (now)")
    return f"{there}, {belief}" if trusted is not None else there


def store(document: Document) -> str:
    """What the queue takes on the disk, and what is left there."""
    parts = [
        words.format(size(found))
        for name, words in (
            ("database_bytes", "{} in the queue"),
            ("reusable_bytes", "{} of it reusable"),
            ("disk_free", "{} free on the disk"),
        )
        if (found := number(document.get(name))) is not None and (found or name != "reusable_bytes")
    ]
    return ", ".join(parts)


def degraded(status: Document, now: datetime) -> Iterator[Cell]:
    """What a person should look at, a line for each reason."""
    reasons = status.get("degraded")
    for one in reasons if isinstance(reasons, list) else []:
        if isinstance(one, Mapping):
            since = f" (since {relative(one['since'], now)})" if one.get("since") else ""
            yield Styled(f"{printable(one.get('reason', '-'))}: {printable(one.get('detail', ''))}{since}", "red")
        else:
            yield Styled(printable(one), "red")


def topic_rows(counts: Document, topics: Sequence[Document]) -> list[list[Cell]]:
    """A row for each topic that is configured or has jobs, those with the most to do first."""
    known = {printable(topic.get("name", "-")): topic for topic in topics}
    counted = {printable(name): mapping(one) for name, one in counts.items()}
    names = dict.fromkeys([*known, *counted])

    def live(name: str) -> float:
        one = counted.get(name, {})
        return (number(one.get("pending")) or 0) + (number(one.get("leased")) or 0)

    ordered = sorted(names, key=lambda name: (-live(name), name))
    return [_topic_row(name, known.get(name, {}), counted.get(name, {})) for name in ordered]


def _topic_row(name: str, topic: Document, counts: Document) -> list[Cell]:
    shown: Cell = Styled(f"{name} (paused)", "yellow") if topic.get("paused") is True else name
    numbers: list[Cell] = [_count(state, number(counts.get(state)) or 0) for state in COUNTED[:-1]]
    oldest = number(counts.get("oldest_pending_age"))
    return [shown, *numbers, "-" if oldest is None else span(oldest)]


def _count(state: str, count: int | float) -> Cell:
    if not count:
        return "-"
    return Styled(str(count), "red") if state in ("dead", "conflict") else str(count)


def destination_rows(destinations: Sequence[Document], now: datetime) -> list[list[Cell]]:
    """A row for each destination."""
    rows: list[list[Cell]] = []
    for one in destinations:
        flight = f"{printable(one.get('in_flight', '-'))}/{printable(one.get('concurrency', '-'))}"
        rows.append([printable(one.get("name", "-")), flight, destination_state(one, now)])
    return rows


def destination_state(document: Document, now: datetime) -> Cell:
    """What keeps jobs from a destination, or when it last took one."""
    held = [_hold(one, now) for one in objects(document.get("hold"))]
    if document.get("paused") is True:
        held.insert(0, "paused")
    breaker = mapping(document.get("breaker"))
    if breaker.get("state") == "open":
        probe = _probe(breaker.get("probe_at"), now)
        held.append(f"breaker open after {printable(breaker.get('failures', '-'))} failures{probe}")
    budget = mapping(document.get("budget"))
    if budget.get("counts") is True and number(budget.get("left_bytes")) == 0:
        held.append(f"budget spent, anew {relative(budget.get('until'), now)}")
    if held:
        return Styled("; ".join(held), "red" if held != ["paused"] else "yellow")
    last = document.get("last_success_at")
    return f"open, last success {relative(last, now)}" if last else "open, nothing sent yet"


def _probe(at: object, now: datetime) -> str:
    then = parse_instant(at)
    if then is None:
        return ""
    return f", next probe {relative(at, now)}" if then > now else ", the next job is a probe"


def _hold(hold: Document, now: datetime) -> str:
    kind = printable(hold.get("kind", "hold")).replace("_", " ")
    detail = f" ({printable(hold['detail'])})" if hold.get("detail") else ""
    until = f", looked at again {relative(hold['until'], now)}" if hold.get("until") else ""
    return f"held: {kind}{detail}{until}"
