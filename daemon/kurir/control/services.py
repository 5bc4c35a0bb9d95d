"""Whom the handlers ask: the services of one life of the store, and what outlives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kurir.domain.policy import Limits
from kurir.services.accepting.exporting import Exporter
from kurir.services.accepting.importing import Importer
from kurir.services.accepting.intake import Intake
from kurir.services.acting.letters import Letters
from kurir.services.acting.operations import Operations
from kurir.services.acting.owners import Owners
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.dispatching.gates import Gates
from kurir.services.engine import Engine
from kurir.services.keeping.storage import Storage
from kurir.services.lending.consumers import Consumers
from kurir.services.scheduling.schedules import Schedules
from kurir.services.showing.facilities import budget_documents
from kurir.services.showing.inspector import Inspector
from kurir.services.showing.situation import Situation, Troubles
from kurir.services.showing.why import Explainer
from kurir.services.watching.watchdog import Liveness
from kurir.system.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What is behind the API."""

    intake: Intake
    importer: Importer
    exporter: Exporter
    operations: Operations
    consumers: Consumers
    letters: Letters
    owners: Owners
    inspector: Inspector
    schedules: Schedules
    situation: Situation
    liveness: Liveness
    gates: Gates
    storage: Storage
    own_secrets: OwnSecrets
    folder: Path
    in_flight: Callable[[], int]
    look_at_power: Callable[[], Awaitable[None]]
    metrics: Callable[[], bytes]

    @property
    def limits(self) -> Limits:
        """The limits that hold now."""
        return self.gates.registry.limits


def services_of(
    engine: Engine, clock: Clock, *, version: str, metrics: Callable[[], bytes], troubles: Troubles = tuple
) -> Services:
    """The services of an engine. `troubles` are reasons that the store does not know of (a taken port, for example)."""
    explainer = Explainer(engine.gates, engine.dispatcher, engine.storage)
    return Services(
        intake=engine.intake,
        importer=engine.importer,
        exporter=engine.exporter,
        operations=engine.operations,
        consumers=engine.consumers,
        letters=engine.letters,
        owners=engine.owners,
        inspector=Inspector(engine.storage, engine.reader, engine.gates, clock, explainer),
        schedules=engine.schedules,
        situation=Situation(
            engine.storage,
            engine.reader,
            engine.network.conditions,
            clock,
            version=version,
            troubles=troubles,
            budgets=partial(budget_documents, engine.gates),
        ),
        liveness=engine.liveness,
        gates=engine.gates,
        storage=engine.storage,
        own_secrets=engine.own_secrets,
        folder=engine.storage.folder,
        in_flight=lambda: engine.dispatcher.in_flight,
        look_at_power=engine.look_at_power,
        metrics=metrics,
    )
