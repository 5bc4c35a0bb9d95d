"""A distribution in buckets, and the bounds of ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

ATTEMPT_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""From a server in the same rack to a large upload over a slow link."""

SYNC_SECONDS: Final = (
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0,
    HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY, 7 * DAY, 30 * DAY,
)  # fmt: skip
"""From at once to a device that was in a drawer for a month."""

JOB_ATTEMPTS: Final = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 25.0, 100.0)


class Histogram:
    """Counts per bucket and their sum. The last bucket has no bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, other: Histogram) -> None:
        """Take in the observations of another one with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def cumulative(self) -> Iterable[tuple[str, int]]:
        """(bound, observations up to it) of every bucket, as Prometheus wants them."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total
