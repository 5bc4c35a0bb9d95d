"""The metrics of what happened and of how things are, in prometheus_client's text format.

Nothing is registered globally: a registry of our own holds one collector, which is given what it needs for one scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kurir.metrics.counts import Cells, Counts, Key
from kurir.metrics.histogram import Histogram
from kurir.metrics.labels import Known, word
from kurir.metrics.snapshot import Snapshot
from kurir.metrics.states import ENDED, states


class Exposition(Collector):
    """Writes the text. One at a time: a scrape is a plain call on the loop's thread."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._scrape = (Snapshot(), Known((), ()))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, snapshot: Snapshot, known: Known) -> bytes:
        """The whole text of one scrape."""
        self._scrape = (snapshot, known)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for."""
        snapshot, known = self._scrape
        yield from _counters(self._counts, known)
        yield from _histograms(self._counts, known)
        yield from states(snapshot, known)


def _counters(counts: Counts, known: Known) -> Iterator[Metric]:
    topics = sorted(known.topics)
    accepted: Cells = {(topic,): 0 for topic in topics}
    finished: Cells = {(topic, state): 0 for topic in topics for state in ENDED}
    yield _counter(
        "kurir_accepted",
        "Jobs accepted: on the disk before the client was told.",
        ["topic"],
        known,
        accepted,
        counts.accepted,
    )
    yield _counter(
        "kurir_refused", "Submits refused, by the code of the problem document.", ["code"], known, counts.refused
    )
    yield _counter(
        "kurir_attempts",
        "Attempts that ended; `unreachable` were tries that cannot have reached a server.",
        ["topic", "destination", "verdict"],
        known,
        counts.attempts,
    )
    yield _counter(
        "kurir_retries",
        "Jobs that went back into the queue after an attempt, by what failed.",
        ["topic", "destination", "reason"],
        known,
        counts.retries,
    )
    yield _counter(
        "kurir_finished",
        "Jobs that ended, by the state they ended in.",
        ["topic", "state"],
        known,
        finished,
        counts.finished,
    )
    yield _counter(
        "kurir_duplicates",
        "Repeats recognised by their key: of a submit here, of a request at the server.",
        ["where"],
        known,
        counts.duplicates,
    )
    yield _counter(
        "kurir_conflicts", "Edits that ended in conflict, by what the server said.", ["kind"], known, counts.conflicts
    )
    yield _counter(
        "kurir_wakeups", "Times an alarm woke the daemon, by what it was set for.", ["cause"], known, counts.wakeups
    )
    yield CounterMetricFamily(
        "kurir_leases_lost", "Outcomes that came after the lease was over; they changed nothing.", counts.leases_lost
    )
    yield CounterMetricFamily("kurir_sent_bytes", "Bytes of requests written to the network.", counts.sent_bytes)
    yield CounterMetricFamily(
        "kurir_radio_bursts",
        "Attempts that began after ten seconds without one: each may wake a radio.",
        counts.radio_bursts,
    )


def _histograms(counts: Counts, known: Known) -> Iterator[Metric]:
    yield _histogram(
        "kurir_job_attempts",
        "Requests on the wire that a job had needed when it ended.",
        ["topic"],
        known,
        counts.job_attempts,
    )
    yield _histogram(
        "kurir_attempt_seconds", "Duration of one attempt, in seconds.", ["destination"], known, counts.attempt_seconds
    )
    yield _histogram(
        "kurir_sync_seconds", "From accepted to done, in seconds of device time.", ["topic"], known, counts.sync_seconds
    )


def _counter(name: str, text: str, labels: Sequence[str], known: Known, *cells: Cells) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    folded: Cells = {}
    for key, count in (item for each in cells for item in each.items()):
        label = _fold(labels, key, known)
        folded[label] = folded.get(label, 0) + count
    for label, count in sorted(folded.items()):
        family.add_metric(label, count)
    return family


def _histogram(
    name: str, text: str, labels: Sequence[str], known: Known, histograms: dict[Key, Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    folded: dict[Key, Histogram] = {}
    for key, histogram in histograms.items():
        label = _fold(labels, key, known)
        folded.setdefault(label, Histogram(histogram.bounds)).add(histogram)
    for label, histogram in sorted(folded.items()):
        family.add_metric(label, list(histogram.cumulative()), histogram.sum)
    return family


def _fold(labels: Iterable[str], key: Key, known: Known) -> Key:
    fold = {"topic": known.topic, "destination": known.destination}
    return tuple(fold.get(label, word)(value) for label, value in zip(labels, key, strict=True))
