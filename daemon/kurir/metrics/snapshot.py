"""How things are at the instant of a scrape, as plain values. Whoever owns the parts fills it in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that is a state and not a count of events. All of it belongs to one instant.

    `accounts` are the persisted totals over all owners: accepted + imported = live + done + dead + conflict + cancelled
    + pruned + salvage_lost holds in them for each topic, and the other figures are cut to fit them.
    """

    accounts: Mapping[tuple[str, str], int] = field(default_factory=dict)  # topic, kind -> jobs
    leased: Mapping[str, int] = field(default_factory=dict)  # topic -> jobs of `live` that are leased
    oldest_pending: Mapping[str, float] = field(default_factory=dict)  # topic -> seconds
    breakers: Mapping[str, bool] = field(default_factory=dict)  # destination (or owner@origin) -> open
    holds: Mapping[str, Collection[str]] = field(default_factory=dict)  # destination (or owner@origin) -> reasons
    network: str = "try"  # offline | portal | try | online
    metered: bool | None = None  # None: nobody knows
    on_battery: bool | None = None
    clock_trusted: bool = False
    store_bytes: Mapping[str, int] = field(default_factory=dict)  # db | wal | bodies -> bytes
    disk_free: int = 0  # bytes
    degraded: Collection[str] = ()
