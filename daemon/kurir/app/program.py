"""The program: everything built from the settings, started and taken down in order.

A run has one or more lives of the store: when a damaged database is found while running, the engine around it ends, the
database is set aside and salvaged, and a new engine begins. The lock, the control socket and its clients outlive it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from kurir import __version__
from kurir.app.following import SecretFiles, follow_time_zone
from kurir.app.store import StoreKeeper, require_local_disk
from kurir.control.events import EventStream
from kurir.control.metrics_listener import MetricsListener
from kurir.control.server import ControlServer
from kurir.control.services import Services, services_of
from kurir.domain.conditions import Conditions
from kurir.domain.errors import ConfigurationError, StoreCorrupt
from kurir.domain.events import Events
from kurir.domain.instant import Now
from kurir.logs import Folding, Level, Logger, LogSubscriber, install_handlers
from kurir.metrics import Known, Metrics, Snapshot
from kurir.services.agenda import Agenda
from kurir.services.delivering.own_secrets import OwnSecrets
from kurir.services.engine import Engine, Surroundings
from kurir.services.keeping.opening import Opened
from kurir.services.registry import Registry
from kurir.services.showing.figures import Figures
from kurir.services.showing.views import Lens
from kurir.services.watching.alerts import REASON as ALERT_COMMAND
from kurir.services.watching.alerts import Alerts, Told
from kurir.services.watching.outside import Outside
from kurir.services.watching.watchdog import Watchdog
from kurir.settings.load import load
from kurir.settings.model import Settings
from kurir.store.salvage import REASON as QUARANTINED
from kurir.store.salvage import SalvageReport
from kurir.store.upgrade import Upgraded
from kurir.system.clock import SystemClock
from kurir.system.clock_sync import Trust, read_boot_id
from kurir.system.http import HttpSender
from kurir.system.listener import ControlSocket, open_control
from kurir.system.netlink import on_link
from kurir.system.secret_folder import SecretFolder
from kurir.system.secrets import Secrets
from kurir.system.service_manager import ServiceManager
from kurir.system.state_folder import StateLock, require_folder

METRICS_PORT = "metrics_port"
DBUS_LIBRARY = "dbus_library"
RELOAD = "reload"


@dataclass(frozen=True, slots=True)
class _Stage:
    """What outlives the store."""

    keeper: StoreKeeper
    control: ControlSocket
    metrics: Metrics
    server: ControlServer
    alerts: Alerts


class Program:
    """One process. `run` returns when it was asked to stop and everything is recorded."""

    def __init__(self, settings: Settings, path: Path | None, environ: MutableMapping[str, str], log: Logger) -> None:
        self.settings = self._started_with = settings
        self._path = path
        self._environ = environ
        self._log = log
        self._manager = ServiceManager(environ)
        self._clock = SystemClock(trust=Trust(settings.clock_trust), boot_id=read_boot_id(environ.get("KURIR_BOOT_ID")))
        self._secrets = Secrets(settings.secrets, environ=environ, group=settings.access.group)
        self._sender = HttpSender()
        self._own_secrets = OwnSecrets(SecretFolder(settings.daemon.state_dir))
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._secret_files = SecretFiles(lambda: self._secrets, self._secrets_changed, log)
        self._troubles: dict[str, str] = {}
        self._engine: Engine | None = None
        self._outside = Outside(
            self._clock,
            lambda: self._engine,
            self._bus_unspoken,
            network=settings.network.source,
            power=settings.power.source,
        )
        self._figures: Figures | None = None
        self._subscribers: list[Callable[[Events], None]] = []
        self._alerts: Alerts | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises KuriError for what prevents it."""
        folder = self.settings.daemon.state_dir
        require_folder(folder)
        wal = require_local_disk(folder, allow_network=self.settings.daemon.allow_network_fs)
        self._secrets.validate()
        async with AsyncExitStack() as stack:
            lock = StateLock.acquire(folder)
            stack.callback(lock.release)
            unusable = self._own_secrets.load()
            keeper = StoreKeeper(
                folder,
                self._clock,
                self._manager,
                wal=wal,
                crash_limit=lambda: self.settings.limits.crash_limit,
                tell_salvaged=self._tell_salvaged,
            )
            opened = await keeper.opened()
            if opened.upgraded is not None:
                self._tell_upgraded(opened.upgraded)
            try:
                control = open_control(self.settings.daemon.runtime_dir, self.settings.access.group, self._environ)
            except BaseException:
                opened.conn.close()
                raise
            stack.callback(control.close)
            for warning in (*control.warnings, *unusable):
                self._log.warning(warning)
            await self._serve(keeper, opened, control)

    async def _serve(self, keeper: StoreKeeper, opened: Opened, control: ControlSocket) -> None:
        agenda = Agenda(self._clock, lambda event: None)
        folding = Folding(self._clock.now, agenda.book)
        undo = install_handlers(asyncio.get_running_loop(), self._log, folding, self._redact)
        follower = LogSubscriber(self._log, folding, self._redact, self._clock.now)
        metrics = Metrics(self._snapshot, self._known, self._clock.now)
        stream = EventStream(self._lens, self._clock.wall)
        self._subscribers = [
            metrics.subscribe,
            stream.subscribe,
            lambda events: events.subscribe(follower.on_event),
        ]
        alerts = self._alerts = self._new_alerts(agenda, folding, control)
        server = ControlServer(stream, lambda: self.settings.access, lambda: self.settings.limits, self._defect)
        self._hear_signals()
        try:
            await self._work(_Stage(keeper, control, metrics, server, alerts), opened)
        finally:
            folding.flush()
            agenda.close()
            undo()

    async def _work(self, stage: _Stage, opened: Opened) -> None:
        """Run one life of the store after the other, until the process is to stop."""
        scraped = MetricsListener(stage.metrics.render)
        stage.keeper.report(opened)
        engine = self._begin(stage.keeper, opened)
        stage.server.serve(self._services(engine, stage.metrics))
        async with asyncio.TaskGroup() as around:
            outside = around.create_task(self._watch_outside(), name="outside")
            telling = around.create_task(stage.alerts.run(), name="alerts")
            await stage.server.start(*stage.control.sockets)
            await self._offer_metrics(scraped)
            while True:
                try:
                    await self._live(engine)
                    break
                except* StoreCorrupt as faults:
                    self._log.error("the database is damaged; it is set aside", error=str(_first(faults)))
                stage.server.serve(None)
                await self._end(engine)
                spent = engine.budgets.written()  # what was saved of it may be a minute old, or damaged
                opened = await stage.keeper.salvaged()
                engine = self._begin(stage.keeper, opened)
                engine.budgets.restore(spent)
                stage.server.serve(self._services(engine, stage.metrics))
            await scraped.stop()
            await stage.server.stop(1.0)
            await stage.alerts.stop()
            telling.cancel()
            outside.cancel()
        await self._end(engine)
        await self._sender.close()

    def _begin(self, keeper: StoreKeeper, opened: Opened) -> Engine:
        """Build the engine of a life of the store."""
        events = Events()
        for subscribe in self._subscribers:
            subscribe(events)
        if self._alerts is not None:
            events.subscribe(self._alerts.on_event, *Alerts.KINDS)
        outside = Surroundings(
            folder=keeper.folder,
            clock=self._clock,
            events=events,
            reserve=keeper.reserve(),
            sender=self._sender,
            on_link=on_link,
            own_secrets=self._own_secrets,
        )
        engine = Engine(opened, outside, self._registry(), self._conditions())
        self._outside.introduce(engine)
        self._adopt(engine)
        self._engine, self._figures = engine, Figures(engine, self._clock)
        return engine

    async def _live(self, engine: Engine) -> None:
        """Run an engine until the process is to stop. Raises (a group of) StoreCorrupt."""
        async with asyncio.TaskGroup() as group:
            work = group.create_task(engine.run(), name="engine")
            watchdog = None
            if self._manager.watchdog_ms is not None:
                guard = Watchdog(engine.liveness, engine.agenda, self._manager.watchdog_ms, self._manager.alive)
                watchdog = group.create_task(guard.run(), name="watchdog")
            self._manager.ready()
            self._manager.status("accepting and delivering")
            await self._stop.wait()
            self._manager.stopping()
            await engine.drain(self._grace(), self._hurry)
            for task in (work, watchdog):
                if task is not None:
                    task.cancel()

    async def _end(self, engine: Engine) -> None:
        if self._figures is not None:
            self._figures.close()
        self._engine = self._figures = None
        await engine.close()

    def _tell_upgraded(self, done: Upgraded) -> None:
        self._log.info(
            "the queue was upgraded; what it was before is kept for a way back",
            file=str(done.copy),
            older=done.older,
            newer=done.newer,
        )

    def _tell_salvaged(self, report: SalvageReport) -> None:
        self._log.warning(
            "the damaged database is kept",
            file=str(report.file),
            kept=report.kept,
            lost=report.lost,
            dead=report.buried or None,
        )
        if self._alerts is not None:
            self._alerts.degraded(QUARANTINED, f"the database was damaged; it is kept as {report.file}")

    async def _watch_outside(self) -> None:
        """Follow the world and the files of secrets."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._outside.run(), name="world")
            group.create_task(self._secret_files.run(), name="secrets")
            group.create_task(follow_time_zone(self._zone_changed, self._log), name="time zone")

    def _zone_changed(self) -> None:
        if self._engine is not None:
            self._engine.zone_changed()

    def reload(self) -> None:
        """Take over a changed configuration. One that cannot be used changes nothing, and says why."""
        self._manager.reloading()
        try:
            settings = load(self._path, environ=self._environ, uid=os.geteuid())
            secrets = self._secrets.reconfigured(settings.secrets, group=settings.access.group)
            secrets.validate()
        except ConfigurationError as fault:
            self._log.error("cannot reload; the old configuration goes on", error=str(fault))
            self._trouble(RELOAD, f"the last reload failed: {fault}")
            self._manager.ready()
            return
        self._troubles.pop(RELOAD, None)
        self.settings, self._secrets = settings, secrets
        self._log.set_level(Level[settings.daemon.log_level.upper()])
        self._log.set_format(settings.daemon.log_format)
        if self._engine is not None:
            self._adopt(self._engine)
            self._engine.secrets_changed(secrets.refresh())
        if self._alerts is not None:
            self._alerts.adopt(self._told())
        self._secret_files.reloaded()
        if later := settings.for_the_next_start(self._started_with):
            self._log.warning("changes that take effect with the next start of kurird", keys=", ".join(later))
        self._log.info("reloaded")
        self._manager.ready()

    def _adopt(self, engine: Engine) -> None:
        engine.adopt(self._registry(), self._conditions(), self._secrets, self.settings.network.reconnect_spread)

    def _registry(self) -> Registry:
        settings = self.settings
        return Registry(
            topics=settings.topics,
            destinations=settings.destinations,
            access=settings.access,
            limits=settings.limits,
            retention=settings.retention,
            schedules=settings.schedules,
        )

    def _conditions(self) -> Conditions:
        return Conditions(
            metered_when_unknown=self.settings.network.metered_when_unknown, low_battery=self.settings.power.low_battery
        )

    def _services(self, engine: Engine, metrics: Metrics) -> Services:
        return services_of(engine, self._clock, version=__version__, metrics=metrics.render, troubles=self._wrong)

    async def _offer_metrics(self, listener: MetricsListener) -> None:
        if self.settings.metrics_listen is None:
            return
        fault = await listener.start(*self.settings.metrics_listen)
        if fault is not None:
            self._trouble(METRICS_PORT, fault)
            self._log.warning("metrics are not served over TCP", error=fault)

    def _new_alerts(self, agenda: Agenda, folding: Folding, control: ControlSocket) -> Alerts:
        def complain(text: str) -> None:
            folding.tell(("alerts", "failed"), lambda left_out: self._log.warning(text, more_like_it=left_out or None))

        environ = {"KURIR_SOCKET": str(control.sockets[0].getsockname())}
        return Alerts(self._told(), agenda, self._lens, self._redact, environ, complain)

    def _told(self) -> Told:
        return Told(command=self.settings.alerts.command, fold=self.settings.alerts.fold)

    def _trouble(self, reason: str, detail: str) -> None:
        """Something is wrong until it passes, and somebody should know."""
        self._troubles[reason] = detail
        if self._alerts is not None:
            self._alerts.degraded(reason, detail)

    def _bus_unspoken(self, why: str) -> None:
        self._trouble(DBUS_LIBRARY, why)
        self._log.warning("the system bus is not heard", error=why)

    def _wrong(self) -> list[tuple[str, str]]:
        """What is wrong now besides the store."""
        fault = self._alerts.trouble if self._alerts is not None else None
        return [*self._troubles.items(), *([(ALERT_COMMAND, fault)] if fault is not None else [])]

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    def _asked_to_stop(self) -> None:
        """The first request drains, the second one interrupts what is still under way."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _grace(self) -> float:
        return self.settings.daemon.stop_grace / 1000

    def _secrets_changed(self, names: frozenset[str]) -> None:
        if self._engine is not None:
            self._engine.secrets_changed(names)

    def _snapshot(self) -> Snapshot:
        return Snapshot() if self._figures is None else self._figures.snapshot(tuple(name for name, _ in self._wrong()))

    def _known(self) -> Known:
        return Known(self.settings.topics, self.settings.destinations)

    def _redact(self, text: str) -> str:
        return self._secrets.redact(text)

    def _lens(self) -> Lens:
        return Lens(self._registry(), Now(self._clock.now(), self._clock.wall()))

    def _defect(self, where: str, fault: Exception) -> None:
        self._log.error("a request failed because of a defect of kurird", where=where, error=repr(fault))


def _first(fault: BaseException) -> BaseException:
    """What was raised, out of the groups that it came through."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault
