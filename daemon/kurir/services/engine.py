"""One life of the store, and everything that works on it: built here, run in one task group, ended in order."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kurir.domain.conditions import Conditions
from kurir.domain.errors import StoreCorrupt, StoreFailing
from kurir.domain.events import AttemptEnded, Events, JobChanged, JobClaimed, TokenAsked
from kurir.domain.health import Standing
from kurir.domain.job import ADHOC_TOPIC, State
from kurir.domain.outcome import Hold
from kurir.services.accepting.exporting import Exporter
from kurir.services.accepting.importing import Importer
from kurir.services.accepting.intake import Intake
from kurir.services.acting.belongings import SchedulesOfOwners, SecretsOfOwners
from kurir.services.acting.letters import Letters
from kurir.services.acting.operations import Operations
from kurir.services.acting.owners import Hands, Owners, noted
from kurir.services.agenda import Agenda
from kurir.services.delivering.delivery import Delivery
from kurir.services.delivering.exchange import Exchange, World
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.delivering.tokens import Tokens
from kurir.services.dispatching.budgets import Budgets
from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.services.dispatching.gates import Gates
from kurir.services.dispatching.patience import Patience
from kurir.services.dispatching.withdrawal import Withdrawal
from kurir.services.keeping.housekeeping import Housekeeping
from kurir.services.keeping.opening import Opened
from kurir.services.keeping.storage import Reserve, Storage
from kurir.services.lending.consumers import Consumers
from kurir.services.registry import Registry, health_key
from kurir.services.scheduling.scheduler import Scheduler
from kurir.services.scheduling.schedules import Schedules
from kurir.services.watching.connectivity import NetworkWatch
from kurir.services.watching.timekeeping import Timekeeping
from kurir.services.watching.watchdog import Liveness
from kurir.store import leases, meta
from kurir.store.amend import put_holds
from kurir.store.look import oldest_live
from kurir.store.reader import Reader
from kurir.store.recover import Suspect, acquit, end
from kurir.store.statements import load
from kurir.store.tx import Tx
from kurir.store.writer import Writer
from kurir.system.clock import Clock
from kurir.system.http import HttpSender
from kurir.system.login1 import Sleep
from kurir.system.secrets import Secrets

_TABLES = load("tables")
_HOLDS = frozenset(Hold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an engine finds outside of the store: it outlives the engine."""

    folder: Path
    clock: Clock
    events: Events
    reserve: Reserve
    sender: HttpSender
    on_link: Callable[[str], bool]
    own_secrets: OwnSecrets
    uid: int = field(default_factory=os.geteuid)
    """The daemon's own user: the schedules of the configuration are its."""


class Engine:
    """The services around one opened store."""

    def __init__(self, opened: Opened, outside: Surroundings, registry: Registry, conditions: Conditions) -> None:
        self._opened = opened
        self._outside = outside
        self.registry = registry
        self.secrets: Secrets | None = None
        self.own_secrets = outside.own_secrets
        self.spread = 0
        self.look_at_power: Callable[[], Awaitable[None]] = _no_look
        self.want_charge: Callable[[], None] = lambda: None
        self._build_store()
        self._build_delivery(conditions)
        self._build_makers()
        self._build_hands()
        self._connect()

    def _build_store(self) -> None:
        opened, outside = self._opened, self._outside
        self.agenda = Agenda(outside.clock, outside.events.emit)
        self.reader = Reader(outside.folder)
        writer = Writer(opened.conn, opened.tally)
        self.storage = Storage(
            writer, opened.catalog, outside.folder, outside.reserve, self.agenda, outside.events.emit
        )

    def _build_delivery(self, conditions: Conditions) -> None:
        """From what may be sent at all to the attempts under way."""
        opened, outside, registry = self._opened, self._outside, self.registry
        clock, emit = outside.clock, outside.events.emit
        # One source for the spread of retries, probes and reconnects; it keeps no secret.
        uniform = random.Random().uniform  # noqa: S311
        self.network = NetworkWatch(self.agenda, emit, conditions)
        self.gates = Gates(registry, clock, self.network.conditions, emit, uniform)
        self.budgets = Budgets(clock, self.network.conditions, self.agenda, self.storage)
        self.gates.budgets = self.budgets
        self.patience = Patience(opened.catalog, self.gates, clock.now)
        self.tokens = Tokens(outside.sender, clock, uniform, secrets=self._secrets, failed=self.network.send_failed)
        world = World(
            sender=outside.sender,
            secrets=self._secrets,
            own_secrets=outside.own_secrets,
            tokens=self.tokens,
            conditions=self.network.conditions,
            on_link=outside.on_link,
            send_failed=self.network.send_failed,
            look=self.network.look,
        )
        exchange = Exchange(self.gates, clock, outside.folder, world)
        exchange.ambiguous_below = opened.recovered.ambiguous_below
        self.delivery = Delivery(self.storage, self.gates, self.patience, clock, emit, exchange)
        self.dispatcher = Dispatcher(self.storage, self.gates, clock, self.agenda, emit, self.delivery.start)
        self.delivery.dispatcher = self.dispatcher
        self.withdrawal = Withdrawal(
            self.gates.needs,
            opened.catalog,
            self.agenda,
            registry=lambda: self.registry,
            under_way=self.dispatcher.under_way,
            withdraw=self.delivery.withdraw,
        )
        self.delivery.began = self.withdrawal.began

    def _build_makers(self) -> None:
        """Where jobs come from, and who pulls them."""
        opened, outside = self._opened, self._outside
        clock, emit = outside.clock, outside.events.emit
        self.consumers = Consumers(
            self.storage,
            self.reader,
            self.gates,
            self.dispatcher,
            clock=clock,
            agenda=self.agenda,
            emit=emit,
            uid=outside.uid,
        )
        self.intake = Intake(self.storage, self.gates, self.dispatcher, clock, emit, outside.own_secrets)
        self.scheduler = Scheduler(
            self.storage,
            self.reader,
            self.intake,
            self.gates,
            self.agenda,
            emit,
            kept=opened.schedules,
            uid=outside.uid,
        )
        self.schedules = Schedules(self.scheduler, self.storage, self.reader, self.intake, self.gates, emit)
        self.importer = Importer(
            self.intake,
            self.storage,
            self.reader,
            self.gates,
            self.dispatcher,
            clock=clock,
            emit=emit,
            own_secrets=outside.own_secrets,
        )
        self.exporter = Exporter(
            self.reader, opened.catalog, self.gates, clock, outside.folder, lambda: self.delivery.ambiguous_below
        )

    def _build_hands(self) -> None:
        """What people do to jobs, and what has to be done from time to time."""
        outside, clock = self._outside, self._outside.clock
        self.operations = Operations(
            self.storage,
            self.reader,
            self.gates,
            self.dispatcher,
            self.delivery,
            clock,
            own_secrets=outside.own_secrets,
        )
        self.letters = Letters(self.storage, self.reader, self.gates, clock, self.operations.amended)
        hands = Hands(self.dispatcher, self.delivery, self.operations)
        self.owners = Owners(self.storage, self.reader, self.gates, clock, hands)
        # In this order: who refuses a move comes before who has moved something.
        self.owners.belongings += [
            SchedulesOfOwners(self.scheduler, self.schedules),
            SecretsOfOwners(outside.own_secrets),
        ]
        self.housekeeping = Housekeeping(self.storage, self.reader, self.dispatcher, self.patience, clock, self.agenda)
        self.liveness = Liveness(self.storage, self.dispatcher, clock.now)

    def _connect(self) -> None:
        """Who hears of what."""
        clock = self._outside.clock
        self.reader.damaged = self.storage.failed
        self.housekeeping.retention = lambda: self.registry.retention
        self.housekeeping.emit = self._outside.events.emit
        self.housekeeping.found_at_start = self._opened.body_files
        self.operations.listen(self._outside.events)
        self.operations.expires = self.housekeeping.expires
        self.operations.take_from_consumer = self.consumers.cancel
        self.housekeeping.subscribe(self._outside.events)
        self._outside.events.subscribe(self.budgets.on_event, JobClaimed, AttemptEnded, TokenAsked)
        self.budgets.freed = self.dispatcher.reopen_destination
        self.gates.bursts.since = self.dispatcher.ready_since
        self.gates.bursts.reopen = self.dispatcher.reopen
        self.network.changed = self._conditions_changed
        self.network.reconnected = partial(self._reconnected, self.gates.reconnected)
        self.network.improved = partial(self._reconnected, self.gates.improved)
        self.network.portal_gone = partial(self._release_everywhere, Hold.PORTAL)
        self._timekeeping = Timekeeping(clock, self.storage, self.dispatcher, self._outside.events.emit, self.patience)
        self._timekeeping.resumed = self.network.resumed
        self._timekeeping.told = self.withdrawal.look
        self._timekeeping.changed = self.scheduler.look_again
        for maker in (self.intake, self.importer, self.operations, self.owners):
            maker.new_lane = self._new_lane
        self.operations.pauses_changed = self._conditions_changed
        self.gates.needs.missing_secret = self._outside.own_secrets.missing
        self._outside.own_secrets.changed = self._own_secret_changed
        self.tokens.emit = self._outside.events.emit
        self.tokens.recovered = self._token_recovered

    async def run(self) -> None:
        """Work until cancelled. Raises StoreCorrupt when the database turns out to be damaged."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._begin(group), name="begin")
            raise await self.storage.corrupt

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        await self._remember()
        group.create_task(self.delivery.run(), name="delivery")
        group.create_task(self.housekeeping.run(), name="housekeeping")
        group.create_task(self.scheduler.run(), name="scheduler")
        await asyncio.sleep(0)  # both are running before the first claim is handed over
        self._timekeeping.begin()
        self._report_recovered()
        in_force = await self.storage.outcome(leases.lent)
        suspects = await self._suspects()
        if not self.intake.stopping:
            since = await self._ready_since()
            self.consumers.recall(in_force)  # they count for the limits of their topics, whoever serves those now
            self.dispatcher.begin(self._opened.recovered.instance, suspects, since)
            self.consumers.begin(self._opened.recovered.instance)  # the lanes of its jobs are known now
            group.create_task(self.owners.resume(), name="owners")

    async def _suspects(self) -> list[Suspect]:
        """Who goes alone. One that consumers are to pull by now crashes nothing here any more."""
        all_of_them, known = self._opened.recovered.suspects, self._opened.catalog.by_id
        pulled = [one for one in all_of_them if self.registry.local_topic(known[one.lane]) is not None]
        if pulled:
            await self.storage.outcome(partial(acquit, suspects=pulled))
        return [one for one in all_of_them if one not in pulled]

    def adopt(self, registry: Registry, conditions: Conditions, secrets: Secrets, spread: int) -> None:
        """Take over a new configuration; nothing under way is dropped."""
        if registry.retention != self.registry.retention:
            self.housekeeping.retention_changed()
        moved = [
            lane_id
            for lane_id, lane in self._opened.catalog.by_id.items()
            if (self.registry.local_topic(lane) is None) is not (registry.local_topic(lane) is None)
        ]
        self.registry = registry
        self.secrets = secrets
        self.spread = spread
        self.storage.disk_reserve = min(registry.limits.disk_reserve, self.storage.disk_size() // 10)
        afresh = self.gates.adopt(registry)
        self.budgets.adopt(registry)
        self.tokens.keep(registry.destinations)
        self.network.adopt(conditions)
        self.withdrawal.look()
        self.scheduler.read_again()
        self.patience.mark()
        if afresh:
            self._outside.sender.reload_trust()
        for name in afresh:
            self.storage.outcome_then(partial(put_holds, name=name, standing=()), lambda _: None)
            self._forgive(name)
        self.consumers.lender.forget(moved)
        self.consumers.adopt()
        self.dispatcher.reroute(moved)
        self.dispatcher.look_again()

    def secrets_changed(self, names: frozenset[str]) -> None:
        """Credentials were replaced: destinations that were held for theirs are tried again."""
        if names:
            self.tokens.secrets_changed(names)
            self._release_everywhere(Hold.UNAUTHORIZED, Hold.SECRET, Hold.TOKEN)
            self.dispatcher.look_again()

    def _token_recovered(self, destination: str, hold: Hold) -> None:
        """There is a token again: jobs that waited for it need not wait for the one that asked."""
        self.gates.release(destination, destination, hold)
        self.dispatcher.look_again()

    def _own_secret_changed(self, owner: int) -> None:
        """A user's credentials were replaced: origins that refused them are tried again, by that user's jobs."""
        for lane in self._opened.catalog.by_id.values():
            if lane.owner == owner and lane.topic == ADHOC_TOPIC:
                self.gates.release(health_key(lane), lane.destination, Hold.UNAUTHORIZED, Hold.SECRET)
        self._conditions_changed()

    def zone_changed(self) -> None:
        """The system is set to another time zone: what is said in local time is at another instant."""
        self.scheduler.look_again()
        self._conditions_changed()

    def sleeping(self, state: Sleep) -> None:
        """The device is about to be suspended, or is back."""
        if state is Sleep.PREPARING:
            self.dispatcher.pause()
            self.consumers.lender.sleeping(asleep=True)
        else:
            self._outside.clock.look()
            self.dispatcher.resume()
            self.consumers.lender.sleeping(asleep=False)

    async def drain(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Accept and claim nothing more, let attempts end for that long (or until `hurry`), record everything."""
        self.intake.stopping = True
        self.consumers.stop()
        self.dispatcher.stop()
        await self.delivery.drain(grace_s, hurry)
        self.patience.mark()
        try:
            await self.storage.outcome_now(partial(end, save=self._save))
        except (StoreFailing, StoreCorrupt):
            return  # the next start finds an unclean end, which it can bear

    async def close(self) -> None:
        """Give everything back. The store is closed last."""
        self._outside.own_secrets.changed = lambda owner: None
        self._timekeeping.close()
        self.dispatcher.stop()
        self.consumers.close()
        self.agenda.close()
        await self.reader.close()
        await self.storage.close()
        self._opened.conn.close()

    def _save(self, tx: Tx) -> None:
        self.housekeeping.save(tx)
        self.budgets.save(tx)

    async def _ready_since(self) -> dict[int, int]:
        """When the oldest job of each lane that waits for company was accepted: a restart makes it wait no longer."""
        known = self._opened.catalog.by_id
        patient = [lane for lane, known_as in known.items() if self.gates.needs.all_of(known_as).urgency != "now"]
        oldest = await self.reader.run(partial(oldest_live, lanes=patient)) if patient else {}
        return {lane: accepted_at for lane, (_, accepted_at) in oldest.items()}

    async def _remember(self) -> None:
        """Pauses, holds, budgets and a move that outlive a restart."""
        pauses, holds, budgets, move = await self.storage.outcome(_remembered)
        self.budgets.restore(budgets)
        self.owners.recall(move)
        for kind, name in pauses:
            (self.gates.paused_topics if kind == "topic" else self.gates.paused_destinations).add(name)
        for destination, hold, detail, since, until, strikes in holds:
            if until > self.agenda.now() and hold in _HOLDS:  # a newer program may know others
                standing = Standing(Hold(hold), detail, since, until, strikes)
                self.gates.restore_hold(destination, standing)

    def _report_recovered(self) -> None:
        now = self.agenda.now()
        for job in self._opened.recovered.dead:
            self._outside.events.emit(JobChanged(job, State.LEASED, (now - job.accepted_at) / 1000))
        for job in self._opened.recovered.buried:
            self._outside.events.emit(JobChanged(job, State.PENDING, (now - job.accepted_at) / 1000))

    def look_for_power_needs(self) -> None:
        """Tell who watches the battery whether any lane depends on it."""
        for lane in self._opened.catalog.by_id:
            self._may_depend_on_power(lane)

    def _new_lane(self, lane: int) -> None:
        self.patience.look(lane)
        self._may_depend_on_power(lane)

    def _may_depend_on_power(self, lane: int) -> None:
        said = self.gates.needs.all_of(self._opened.catalog.by_id[lane])
        if said.needs.power != "any" or said.urgency != "now":
            self.want_charge()

    def _conditions_changed(self) -> None:
        self.withdrawal.look()
        self.patience.mark()
        self.dispatcher.look_again()

    def _reconnected(self, begin: Callable[[int, int], None]) -> None:
        """Another network: old connections are stale, old backoff is over, first attempts are spread."""
        self._outside.sender.drop_connections()
        self._outside.clock.recheck_soon()
        begin(self.agenda.now(), self.spread)
        self.tokens.reconnected()
        self._release_everywhere(Hold.PORTAL, Hold.TOKEN)
        for name in {lane.destination for lane in self._opened.catalog.by_id.values() if self.gates.backs_off(lane)}:
            self._forgive(name)

    def _release_everywhere(self, *holds: Hold) -> None:
        for key in list(self.gates.health):
            self.gates.release(key, key.rpartition("@")[2], *holds)

    def _forgive(self, destination: str) -> None:
        self.delivery.forgive(destination)

    def _secrets(self) -> Secrets:
        assert self.secrets is not None
        return self.secrets


def _remembered(tx: Tx) -> tuple[list[tuple[str, str]], list[tuple[str, str, str, int, int, int]], str, str]:
    meta.touch(tx)
    pauses, holds = tx.conn.execute(_TABLES["pauses"]).fetchall(), tx.conn.execute(_TABLES["holds"]).fetchall()
    return pauses, holds, Budgets.saved(tx), noted(tx)


async def _no_look() -> None:
    """Nobody can be asked."""
