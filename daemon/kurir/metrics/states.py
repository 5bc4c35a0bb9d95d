"""The metrics of how things are, from one snapshot, so that they agree with each other in every scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kurir.metrics.labels import Known, word
from kurir.metrics.snapshot import Snapshot

ENDED: Final = ("done", "dead", "conflict", "cancelled")

_KINDS: Final = ("accepted", "imported", "live", *ENDED, "pruned", "salvage_lost")
_DROPPED: Final = "dropped."
_FILES: Final = ("db", "wal", "bodies")
_REACH: Final = {"offline": 0, "portal": 1, "try": 2, "online": 3}

Series = Mapping[tuple[str, ...], float]


def states(snapshot: Snapshot, known: Known) -> Iterator[Metric]:
    """Every metric that is a state."""
    yield from _jobs(snapshot, known)
    yield from _destinations(snapshot, known)
    yield from _device(snapshot)


def _jobs(snapshot: Snapshot, known: Known) -> Iterator[Metric]:
    ledger = _ledger(snapshot, known)
    topics = sorted({topic for topic, _ in ledger})
    leased = dict.fromkeys(topics, 0)
    for topic, jobs in snapshot.leased.items():
        label = known.topic(topic)
        leased[label] = leased.get(label, 0) + jobs
    jobs_now: dict[tuple[str, ...], float] = {}
    for topic in topics:
        live = ledger[topic, "live"]
        # The books are of the last commit; a claim or an outcome may be on its way.
        held = min(leased[topic], live)
        jobs_now[topic, "pending"], jobs_now[topic, "leased"] = live - held, held
        jobs_now.update({(topic, state): ledger[topic, state] for state in ENDED})
    ages: dict[tuple[str, ...], float] = {(topic,): 0.0 for topic in topics}
    for topic, age in snapshot.oldest_pending.items():
        key = (known.topic(topic),)
        ages[key] = max(age, ages.get(key, 0.0))
    yield _gauge("kurir_jobs", "Jobs that are kept, by state.", ["topic", "state"], jobs_now)
    yield _gauge("kurir_oldest_pending_age_seconds", "Age of the oldest job that waits; 0: none does.", ["topic"], ages)
    yield _gauge(
        "kurir_ledger",
        "Persisted totals: accepted + imported = live + done + dead + conflict + cancelled + pruned + salvage_lost.",
        ["topic", "kind"],
        ledger,
    )
    yield _dropped(snapshot, known)


def _ledger(snapshot: Snapshot, known: Known) -> dict[tuple[str, str], float]:
    """Totals per topic and kind; every topic that is configured or has jobs has every kind."""
    ledger: dict[tuple[str, str], float] = {(topic, kind): 0 for topic in known.topics for kind in _KINDS}
    for (topic, kind), jobs in snapshot.accounts.items():
        if kind not in _KINDS:
            continue
        label = known.topic(topic)
        if (label, kind) not in ledger:
            ledger.update({(label, each): 0 for each in _KINDS if (label, each) not in ledger})
        ledger[label, kind] = ledger.get((label, kind), 0) + jobs
    return ledger


def _dropped(snapshot: Snapshot, known: Known) -> Metric:
    """What was dropped, by reason: persisted like the ledger, in no sum with it."""
    family = CounterMetricFamily(
        "kurir_dropped", "Jobs that were removed or given up without having been delivered.", labels=["topic", "reason"]
    )
    found: dict[tuple[str, str], float] = {}
    for (topic, kind), jobs in snapshot.accounts.items():
        if kind.startswith(_DROPPED):
            key = (known.topic(topic), word(kind.removeprefix(_DROPPED)))
            found[key] = found.get(key, 0) + jobs
    for label, value in sorted(found.items()):
        family.add_metric(label, value)
    return family


def _destinations(snapshot: Snapshot, known: Known) -> Iterator[Metric]:
    opened: dict[tuple[str, ...], float] = {(name,): 0.0 for name in known.destinations}
    for name, is_open in snapshot.breakers.items():
        key = (known.destination(name),)
        opened[key] = max(float(is_open), opened.get(key, 0.0))
    held: Series = {
        (known.destination(name), word(why)): 1.0 for name, reasons in snapshot.holds.items() for why in reasons
    }
    yield _gauge("kurir_breaker_state", "Whether the breaker is open: 0 closed, 1 open.", ["destination"], opened)
    yield _gauge("kurir_held", "1 while a destination is held, by the reason.", ["destination", "reason"], held)


def _device(snapshot: Snapshot) -> Iterator[Metric]:
    yield _one(
        "kurir_network_state",
        "0 offline, 1 captive portal, 2 not known: tried gently, 3 online.",
        _REACH.get(snapshot.network),
    )
    yield _one("kurir_network_metered", "Whether data costs money; absent: nobody knows.", snapshot.metered)
    yield _one("kurir_on_battery", "Whether the device runs on battery; absent: nobody knows.", snapshot.on_battery)
    yield _one("kurir_clock_synced", "Whether the wall clock is trusted.", snapshot.clock_trusted)
    sizes: Series = {(name,): size for name, size in snapshot.store_bytes.items() if name in _FILES}
    yield _gauge("kurir_store_bytes", "Bytes on the disk, by kind of file.", ["file"], sizes)
    yield _one("kurir_disk_free_bytes", "Bytes left to the daemon on the file system of its state.", snapshot.disk_free)
    reasons: Series = {(word(reason),): 1.0 for reason in snapshot.degraded}
    yield _gauge("kurir_degraded", "1 for each thing that is wrong and needs to pass or a person.", ["reason"], reasons)


def _gauge(name: str, text: str, labels: Sequence[str], series: Series | Mapping[tuple[str, str], float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label, value in sorted(series.items()):
        family.add_metric(label, value)
    return family


def _one(name: str, text: str, value: float | bool | None) -> Metric:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric((), float(value))
    return family
