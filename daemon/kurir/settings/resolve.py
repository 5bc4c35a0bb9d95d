"""From what is written to what is meant: the document of a configuration as Settings, or every problem with it.

The tables of the process are resolved here; destinations, topics, and what comes by itself or is read have files of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kurir.domain.conditions import MeteredWhenUnknown
from kurir.domain.policy import Access, Limits, Retention
from kurir.settings.check_names import (
    absolute_path_fault,
    credential_fault,
    group_fault,
    name_fault,
    variable_fault,
)
from kurir.settings.check_urls import listen_address, network_fault
from kurir.settings.document import (
    AccessTable,
    AlertsTable,
    DaemonTable,
    Document,
    LimitsTable,
    RetentionTable,
    SecretTable,
)
from kurir.settings.model import (
    AlertSettings,
    CacheSettings,
    DaemonSettings,
    NetworkSettings,
    PowerSettings,
    Settings,
)
from kurir.settings.problems import Scope
from kurir.settings.resolve_destinations import destinations_of
from kurir.settings.resolve_extras import collections_of, schedules_of
from kurir.settings.resolve_topics import topics_of
from kurir.settings.secret_references import OAUTH
from kurir.system.secrets import SecretKind, SecretSource


def resolve(document: Document, scope: Scope, environ: Mapping[str, str]) -> Settings:
    """The meaning of a document. Problems are recorded in the scope; the result is of use only if there are none."""
    secrets = _secrets(document.secrets, scope.within("secrets"))
    destinations = destinations_of(document.destinations, scope.within("destinations"), secrets)
    topics = topics_of(document.topics, scope.within("topics"), destinations, secrets)
    return Settings(
        daemon=_daemon(document.daemon, scope.within("daemon"), environ),
        access=_access(document.access, scope.within("access")),
        limits=_limits(document.limits),
        retention=_retention(document.retention),
        metrics_listen=_listen(document.metrics.listen, scope.within("metrics")),
        alerts=_alerts(document.alerts, scope.within("alerts")),
        cache=CacheSettings(bytes=document.cache.bytes.bytes, entries=document.cache.entries),
        network=NetworkSettings(
            source=document.network.source,
            reconnect_spread=document.network.reconnect_spread.ms,
            metered_when_unknown=MeteredWhenUnknown(document.network.metered_when_unknown),
        ),
        power=PowerSettings(source=document.power.source, low_battery=document.power.low_battery),
        clock_trust=document.clock.trust,
        secrets=secrets,
        destinations=destinations,
        topics=topics,
        schedules=schedules_of(document.schedules, scope.within("schedules"), topics),
        collections=collections_of(document.resources, scope.within("resources"), destinations, secrets),
    )


def _daemon(table: DaemonTable, scope: Scope, environ: Mapping[str, str]) -> DaemonSettings:
    return DaemonSettings(
        state_dir=_folder("state_dir", table.state_dir, "STATE_DIRECTORY", scope, environ),
        runtime_dir=_folder("runtime_dir", table.runtime_dir, "RUNTIME_DIRECTORY", scope, environ),
        log_level=table.log_level,
        log_format=table.log_format,
        stop_grace=table.stop_grace.ms,
        allow_network_fs=table.allow_network_fs,
    )


def _folder(name: str, written: str, variable: str, scope: Scope, environ: Mapping[str, str]) -> Path:
    """A folder: what the file says, else what the environment says (systemd lists several with colons), else ours."""
    given = environ.get(variable, "").split(":")[0]
    if scope.says(name) or not given:
        scope.check(name, absolute_path_fault(written))
        return Path(written)
    if fault := absolute_path_fault(given):
        scope.refuse(name, f"the environment variable {variable} cannot be used: {fault}")
    return Path(given)


def _access(table: AccessTable, scope: Scope) -> Access:
    scope.check("group", group_fault(table.group))
    for index, group in enumerate(table.admin_groups):
        scope.check("admin_groups", group_fault(group), index=index)
    for index, network in enumerate(table.adhoc_deny):
        scope.check("adhoc_deny", network_fault(network), index=index)
    return Access(group=table.group, admin_groups=table.admin_groups, adhoc=table.adhoc, adhoc_deny=table.adhoc_deny)


def _limits(table: LimitsTable) -> Limits:
    return Limits(
        max_job_bytes=table.max_job_bytes.bytes,
        queue_jobs=table.queue_jobs,
        queue_bytes=table.queue_bytes.bytes,
        user_jobs=table.user_jobs,
        user_bytes=table.user_bytes.bytes,
        user_clients=table.user_clients,
        clients=table.clients,
        user_schedules=table.user_schedules,
        disk_reserve=table.disk_reserve.bytes,
        in_flight=table.in_flight,
        crash_limit=table.crash_limit,
    )


def _retention(table: RetentionTable) -> Retention:
    return Retention(
        done=table.done.ms,
        done_count=table.done_count,
        dead=table.dead.ms,
        dead_count=table.dead_count,
        keys=table.keys.ms,
        keys_count=table.keys_count,
        result_bytes=table.result_bytes.bytes,
    )


def _listen(text: str, scope: Scope) -> tuple[str, int] | None:
    if text == "":
        return None
    try:
        return listen_address(text)
    except ValueError as fault:
        scope.refuse("listen", str(fault))
        return None


def _alerts(table: AlertsTable, scope: Scope) -> AlertSettings:
    if table.command:
        scope.check("command", absolute_path_fault(table.command[0]), index=0)
    for index, argument in enumerate(table.command):
        scope.check("command", "it holds a NUL character" if "\0" in argument else "", index=index)
    return AlertSettings(command=table.command, fold=table.fold.ms)


def _secrets(tables: Mapping[str, SecretTable], scope: Scope) -> Mapping[str, SecretSource]:
    sources = {}
    for name, table in tables.items():
        if name == OAUTH:
            scope.refuse(name, "this name is reserved for the token of a destination's oauth")
        scope.check(name, name_fault(name))
        if (source := _secret(table, scope.within(name))) is not None:
            sources[name] = source
        else:
            # The references to it are no further problem.
            sources[name] = SecretSource(kind=SecretKind.ENV, where="")
    return MappingProxyType(sources)


def _secret(table: SecretTable, scope: Scope) -> SecretSource | None:
    said = [kind for kind in SecretKind if scope.says(kind.value)]
    if len(said) != 1:
        scope.refuse(None, "exactly one of file, credential and env must say where it is read from")
        return None
    match kind := said[0]:
        case SecretKind.FILE:
            where, fault = table.file, absolute_path_fault(table.file)
        case SecretKind.CREDENTIAL:
            where, fault = table.credential, credential_fault(table.credential)
        case SecretKind.ENV:
            where, fault = table.env, variable_fault(table.env)
    scope.check(kind.value, fault)
    return SecretSource(kind=kind, where=where)
