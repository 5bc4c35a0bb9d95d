"""What happened since the start, in plain dictionaries keyed as it happened. Names become labels at the scrape.

The keys are bounded: origins of ad-hoc jobs are folded as they come, everything else is a name that was configured once
or a word of our own, and a dictionary that grows all the same stops taking new keys.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from kurir.metrics.histogram import Histogram
from kurir.metrics.labels import OTHER

KEYS: Final = 5_000
"""The most keys of one kind; far more than topics, destinations and verdicts make."""

Key = tuple[str, ...]
Cells = dict[Key, int]


@dataclass(slots=True)
class Counts:
    """One dictionary per metric; the keys are in the order of its labels."""

    accepted: Cells = field(default_factory=dict)  # topic
    refused: Cells = field(default_factory=dict)  # code
    attempts: Cells = field(default_factory=dict)  # topic, destination, verdict
    retries: Cells = field(default_factory=dict)  # topic, destination, reason
    finished: Cells = field(default_factory=dict)  # topic, state
    duplicates: Cells = field(default_factory=lambda: {("submit",): 0, ("server",): 0})  # where
    conflicts: Cells = field(default_factory=dict)  # kind
    wakeups: Cells = field(default_factory=dict)  # cause
    job_attempts: dict[Key, Histogram] = field(default_factory=dict)  # topic
    attempt_seconds: dict[Key, Histogram] = field(default_factory=dict)  # destination
    sync_seconds: dict[Key, Histogram] = field(default_factory=dict)  # topic
    leases_lost: int = 0
    sent_bytes: int = 0
    radio_bursts: int = 0


def add(cells: Cells, key: Key) -> None:
    """Count one."""
    try:
        cells[key] += 1
    except KeyError:
        key = key if len(cells) < KEYS else (OTHER,) * len(key)
        cells[key] = cells.get(key, 0) + 1


def observe(histograms: dict[Key, Histogram], key: Key, bounds: tuple[float, ...], value: float) -> None:
    """Enter one observation."""
    histogram = histograms.get(key)
    if histogram is None:
        key = key if len(histograms) < KEYS else (OTHER,) * len(key)
        histogram = histograms.setdefault(key, Histogram(bounds))
    histogram.counts[bisect_left(histogram.bounds, value)] += 1
    histogram.sum += value
