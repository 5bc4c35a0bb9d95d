"""Numbers for Prometheus: what happened is counted as it happens, how things are is looked up when somebody asks."""

from __future__ import annotations

from kurir.metrics.labels import Known
from kurir.metrics.metrics import Metrics
from kurir.metrics.snapshot import Snapshot

__all__ = ["Known", "Metrics", "Snapshot"]
