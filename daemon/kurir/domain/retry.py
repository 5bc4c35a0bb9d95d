"""When a failed job is tried again: a decision computed from the policy, the number of failures and a random number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from kurir.domain.policy import DAY, SECOND, Jitter, RetryPolicy

LONGEST_HOLD = DAY
"""A server may ask for a pause of at most this long, in milliseconds; a longer one is cut (a typing error must not
silence a device for years)."""

Uniform = Callable[[float, float], float]


def delay(policy: RetryPolicy, failures: int, uniform: Uniform) -> int:
    """Milliseconds to wait after the `failures`-th failure (1 for the first).

    The jitter lies inside the cap: no delay is ever longer than `policy.cap`.
    """
    if policy.schedule:
        return policy.schedule[min(failures, len(policy.schedule)) - 1]
    ceiling = min(policy.cap, policy.base << min(failures, 40))
    if policy.jitter is Jitter.NONE:
        return ceiling
    floor = min(policy.base, ceiling) if policy.jitter is Jitter.FULL else ceiling // 2
    return round(uniform(floor, ceiling))


def retry_after(value: str | None, date: str | None) -> int | None:
    """Milliseconds that a Retry-After header asks for (RFC 9110, section 10.2.3), or None if it says nothing usable.

    A date is read against the response's own Date header: the wall clock of the device may be wrong, the difference
    between two clocks readings of the server is not. Without Date a date form is ignored.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(int(text.lstrip("0")[:12] or "0") * SECOND, LONGEST_HOLD)
    if date is None:
        return None
    try:
        gap = _instant(text) - _instant(date.strip())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0, min(round(gap.total_seconds() * 1000), LONGEST_HOLD))


def _instant(text: str) -> datetime:
    moment = parsedate_to_datetime(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # a date of HTTP is in UTC, whatever it omits


def matrix_retry_after(body: bytes) -> int | None:
    """Milliseconds in `retry_after_ms` of a Matrix rate-limit answer, or None."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    value = document.get("retry_after_ms") if isinstance(document, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return min(round(value), LONGEST_HOLD)
