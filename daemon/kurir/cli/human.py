"""Instants, durations, sizes and errors in the words of people. Pure: `now` is an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kurir.cli.printable import printable

_DURATION = re.compile(r"(\d{1,12})(ms|s|m|h|d)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_STEPS = ((60.0, "s", 1.0), (3600.0, "min", 60.0), (86400.0, "h", 3600.0))
LONG_AGO = 60 * 86400.0


def parse_duration(text: str) -> float | None:
    """Seconds of a duration as the configuration writes it ("250ms", "30s", "5m", "24h", "30d"); None if it is none."""
    match = _DURATION.fullmatch(text.strip())
    return int(match[1]) * _UNIT_SECONDS[match[2]] if match else None


def parse_instant(text: object) -> datetime | None:
    """An instant of the API; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def span(seconds: float) -> str:
    """A length of time, in its largest unit: "40 s", "3 min", "5 h", "12 days"."""
    for limit, unit, size in _STEPS:
        if round(seconds / size) * size < limit:
            return f"{round(seconds / size)} {unit}"
    days = round(seconds / 86400)
    return f"{days} day" if days == 1 else f"{days} days"


def relative(instant: object, now: datetime) -> str:
    """An instant of the API as people say it: "3 min ago", "in 2 min"; the date if it is far away."""
    then = parse_instant(instant)
    if then is None:
        return "-" if instant is None else printable(instant)
    seconds = (then - now).total_seconds()
    if abs(seconds) >= LONG_AGO:
        return then.astimezone().strftime("%Y-%m-%d")
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def both(instant: object, now: datetime) -> str:
    """An instant in full, with how far away it is."""
    then = parse_instant(instant)
    if then is None:
        return relative(instant, now)
    full = then.astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    return full if abs((then - now).total_seconds()) >= LONG_AGO else f"{full} ({relative(instant, now)})"


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def error_words(error: object) -> str:
    """What went wrong with a job or an attempt, in one line."""
    if not isinstance(error, Mapping):
        return printable(error) if error else ""
    kind = printable(error.get("kind") or "error").replace("_", " ")
    status = error.get("status")
    what = f"HTTP {printable(status)}" if status is not None and kind == "http status" else kind
    detail = printable(error.get("detail") or "")
    if what.startswith("HTTP "):  # said already
        detail = detail.removeprefix(f"answered {printable(status)}").removeprefix(": ")
    return f"{what}: {detail}" if detail else what


def job_note(job: Mapping[str, Any], now: datetime) -> str:
    """What is worth knowing about a job in a list: why it waits, or how it ended badly."""
    error = error_words(job.get("last_error"))
    if job.get("state") == "pending":
        due = parse_instant(job.get("due_at"))
        again = relative(job.get("due_at"), now) if due is not None and due > now else ""
        reason = printable(job.get("reason") or "")
        if error:
            return f"{error}; again {again}" if again else error
        return " ".join(part for part in (reason if reason != "new" else "", again) if part)
    return error if job.get("state") in ("dead", "conflict") else ""


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, with a sign that there was more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
