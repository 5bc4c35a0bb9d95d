"""The daemon itself: whether it answers and works, which version it is, and what it reports."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kurir import __version__
from kurir.cli.doctor.finding import Finding, note, ok, wrong
from kurir.cli.doctor.services import service
from kurir.cli.overview import mapping, number, objects
from kurir.cli.printable import printable

DAEMON, VERSIONS, DEGRADED, DESTINATIONS, JOBS = "daemon", "versions", "degraded", "destinations", "jobs"

# By the reason that the daemon reports.
_CURES: Mapping[str, str] = {
    "dbus_library": (
        "install jeepney (Debian: python3-jeepney, Alpine: py3-jeepney), or set network.source and "
        "power.source to none; then {restart}"
    ),
    "disk_full": "free some space where the state lies",
    "metrics_port": "set metrics.listen to a free port, or to nothing; then {restart}",
    "reload": "mend the configuration (kurird --check), then {reload}",
    "store_quarantined": "the damaged file is kept beside the queue: look at it, then kurirctl ack store_quarantined",
}
# By the kind of a hold. The others end by themselves.
_HOLDS: Mapping[str, str] = {
    "unauthorized": "put a valid credential into its secret: the change is noticed at once",
    "gone": "the server says that this address is gone for good: set the destination's url",
    "secret": "make the secret readable: see secrets above",
    "token": "see what its token server says; it is asked again by itself",
    "classified": "see what its `classify` says; kurirctl flush does not end it, a change of its configuration does",
}


def versions(status: Mapping[str, Any] | None) -> Finding:
    """kurirctl's and the daemon's, and what they stand on."""
    below = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    theirs = None if status is None else printable(status.get("version", "unknown"))
    if theirs is not None and theirs != __version__:
        return wrong(VERSIONS, f"kurirctl is {__version__}, the daemon {theirs}", f"sudo {service('restart')}")
    who = f"kurirctl {__version__}" if theirs is None else f"kurirctl and kurird {__version__}"
    return ok(VERSIONS, f"{who}; {below}")


def degraded(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Each reason that the daemon reports."""
    for one in objects(status.get("degraded")):
        reason = printable(one.get("reason", "-"))
        cure = f"see the daemon's log; once it is dealt with: kurirctl ack {reason}"
        if reason in _CURES:
            cure = _CURES[reason].format(reload=service("reload"), restart=service("restart"))
        yield wrong(DEGRADED, f"{reason}: {printable(one.get('detail', ''))}", cure)


def destinations(items: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Each destination that is left alone, and why."""
    for one in items:
        name = printable(one.get("name", "-"))
        for hold in objects(one.get("hold")):
            kind = printable(hold.get("kind", "hold"))
            detail = f"{name} is held: {kind}: {printable(hold.get('detail', ''))}"
            if kind in _HOLDS:
                yield wrong(DESTINATIONS, detail, _HOLDS[kind])
            else:
                yield note(DESTINATIONS, detail, "nothing: it ends by itself")
        if mapping(one.get("breaker")).get("state") == "open":
            failures = printable(mapping(one.get("breaker")).get("failures", "-"))
            words = f"{name} fails: {failures} failures in a row; one job after the other probes it"
            yield note(DESTINATIONS, words, f"kurirctl list --state pending --destination {name}; kurirctl flush")
        if one.get("paused") is True:
            yield note(DESTINATIONS, f"{name} is paused", f"kurirctl resume destination {name}")


def jobs(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Jobs that need a person."""
    counts = mapping(status.get("jobs"))
    for state, cure in (("dead", "kurirctl dead list"), ("conflict", "kurirctl list --state conflict")):
        if count := number(counts.get(state)):
            yield note(JOBS, f"{count} {state}: they need a person", cure)
