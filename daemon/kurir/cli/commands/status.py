"""`kurirctl status`: how the daemon, its topics and its destinations are doing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import exits, screen
from kurir.cli.human import both, parse_instant, size, span
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Styled
from kurir.cli.session import Session, pass_session, session_options

_SIZES = ("bytes", "_bytes", "size", "free")
_SPANS = ("seconds", "_seconds", "_age", "uptime")
_INSTANTS = ("at", "now", "since", "until")
_WARNINGS = ("degraded", "held", "hold")
_UNIT = re.compile(r"_(seconds|bytes|at)$")  # said by the value
DEEPEST = 4


@click.command(short_help="Show how the daemon is doing.")
@click.option("--topics", "part", flag_value="topics", help="The topics instead.")
@click.option("--destinations", "part", flag_value="destinations", help="The destinations instead.")
@session_options
@pass_session
def status(session: Session, /, *, part: str | None) -> int:
    """Show how the daemon is doing: counts, network, power, clock, store, and what is degraded."""
    with session.client() as client:
        if part == "topics":
            document = client.topics()
        elif part == "destinations":
            document = client.destinations()
        else:
            document = client.status()
    if session.json:
        screen.say_document(document)
    elif part is None:
        screen.details(_rows(document, "", datetime.now(UTC)))
    else:
        _say_items(document.get(part), part)
    return exits.Exit.OK


def _say_items(items: Any, what: str) -> None:
    """A block for each topic or destination: they have too many members for columns."""
    if isinstance(items, Mapping):
        items = [{"name": name, **value} for name, value in items.items() if isinstance(value, Mapping)]
    if not isinstance(items, list) or not items:
        screen.note(f"no {what} that you may use")
        return
    now = datetime.now(UTC)
    for item in items:
        if isinstance(item, Mapping):
            screen.say(screen.colour(printable(item.get("name", "-")), "bold"))
            members = {name: value for name, value in item.items() if name != "name"}
            screen.details(_rows(members, "", now), indent=2)


def _rows(document: Mapping[str, Any], prefix: str, now: datetime, depth: int = 0) -> Iterator[tuple[str, Cell]]:
    """Any document as labelled rows; what a member means is told by its name, so a new one is shown too."""
    for name, value in document.items():
        label = f"{prefix}{printable(_UNIT.sub('', name) or name)}".replace("_", " ")
        if value is None or value in ("", [], {}):
            continue
        if isinstance(value, Mapping) and _are_counts(value):
            yield label, _count_words(name, value)
        elif isinstance(value, Mapping):
            if depth < DEEPEST:
                yield from _rows(value, f"{label} ", now, depth + 1)
        elif isinstance(value, list):
            for index, one in enumerate(value):
                yield (label if index == 0 else ""), _style(name, _words(name, one, now))
        else:
            yield label, _style(name, _words(name, value, now))


def _are_counts(value: Mapping[str, Any]) -> bool:
    """Whether this is a number for each of some names, not members that each mean something else."""
    return all(one is None or type(one) in (int, float) for one in value.values()) and not any(
        key.endswith(_SIZES) for key in value
    )


def _count_words(name: str, counts: Mapping[str, Any]) -> str:
    """The counts in one row; those of zero are not worth the place."""
    words = []
    for key, count in counts.items():
        about = printable(_UNIT.sub("", key) or key).replace("_", " ")
        if _is_sizes(name):
            words.append(f"{about} {size(count or 0)}")
        elif key.endswith(_SPANS):
            words += [] if count is None else [f"{about} {span(count)}"]
        elif count:
            words.append(f"{count} {about}")
    return ", ".join(words) or "none"


def _words(name: str, value: Any, now: datetime) -> str:
    if isinstance(value, Mapping):
        return ", ".join(
            f"{printable(key)} {_words(str(key), one, now)}" for key, one in value.items() if one is not None
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if _is_sizes(name):
            return size(value)
        return span(value) if name.endswith(_SPANS) else printable(value)
    if (name.endswith("_at") or name in _INSTANTS) and parse_instant(value) is not None:
        return both(value, now)
    return printable(value)


def _is_sizes(name: str) -> bool:
    return name.endswith(_SIZES)


def _style(name: str, text: str) -> Cell:
    return Styled(text, "red") if name in _WARNINGS and text not in ("no", "none") else text
