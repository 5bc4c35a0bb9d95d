"""Durations, sizes and rates as people write them: "30s", "16MiB", "20/s". A text that is none raises ValueError.

The error gives the reason and the cure.
"""

from __future__ import annotations

import re

from kurir.domain.policy import DAY, HOUR, KIB, MIB, MINUTE, SECOND, Rate

LONGEST = 3_650 * DAY  # ten years: longer is a slip of the keyboard
LARGEST = 1024 * 1024 * MIB  # 1 TiB

_MILLISECONDS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_BYTES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}
_PERIODS = {"s": SECOND, "m": MINUTE, "h": HOUR}
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)")
_RATE = re.compile(r"([0-9]{1,9})/(s|m|h)")
_SHOWN = 40


def shown(value: object) -> str:
    """A value fit for an error message: quoted, on one line, and short."""
    text = ascii(value) if not isinstance(value, str) else '"' + ascii(value)[1:-1].replace('"', '\\"') + '"'
    return text if len(text) <= _SHOWN else text[: _SHOWN - 2] + "…" + text[-1]


def parse_duration(text: object) -> int:
    """Milliseconds of a duration such as "30s". Never negative, at most ten years."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'{shown(text)} is not a duration; write a whole number and ms, s, m, h or d, such as "30s"')
    milliseconds = int(match[1]) * _MILLISECONDS[match[2]]
    if milliseconds > LONGEST:
        raise ValueError(f'{shown(text)} is too long; at most "3650d"')
    return milliseconds


def duration_text(milliseconds: int) -> str:
    """A duration in its largest unit that is exact."""
    unit = next(unit for unit, size in reversed(_MILLISECONDS.items()) if milliseconds % size == 0)
    return f"{milliseconds // _MILLISECONDS[unit]}{unit}" if milliseconds else "0s"


def parse_size(text: object) -> int:
    """Bytes of a size such as "16MiB". At most 1024 GiB."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'{shown(text)} is not a size; write a whole number and B, KiB, MiB or GiB, such as "16MiB"')
    size = int(match[1]) * _BYTES[match[2]]
    if size > LARGEST:
        raise ValueError(f'{shown(text)} is too large; at most "1024GiB"')
    return size


def parse_rate(text: object) -> Rate:
    """A rate such as "20/s". At least one request in the period."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f'{shown(text)} is not a rate; write a whole number per s, m or h, such as "20/s"')
    return Rate(count=int(match[1]), per=_PERIODS[match[2]])
