"""The configuration as it is written: one class per table, one field per key, with its default and what it means.

The descriptions are data (`msgspec.Meta`), so that the reference of the configuration is rendered from here and cannot
tell another story. What the values mean to the rest of the program is decided in `kurir.settings.resolve`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from kurir.settings.document_delivery import DestinationTable, TopicTable
from kurir.settings.document_extras import ResourceTable, ScheduleTable
from kurir.settings.units import Duration, Size

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class DaemonTable(msgspec.Struct, frozen=True, kw_only=True):
    """The process itself."""

    state_dir: Annotated[str, Meta(description="Where the queue lives; else $STATE_DIRECTORY.")] = "/var/lib/kurir"
    runtime_dir: Annotated[str, Meta(description="Where the control socket is made.")] = "/run/kurir"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least that is logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"], Meta(description="auto: console on a terminal, json otherwise.")
    ] = "auto"
    stop_grace: Annotated[
        Duration, Meta(description="How long attempts in flight may still run after a stop request.")
    ] = Duration("10s")
    allow_network_fs: Annotated[
        bool, Meta(description="Accept a state directory on NFS or CIFS (no WAL there); refused otherwise.")
    ] = False


class AccessTable(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use the socket, and where jobs with their own URL may go."""

    group: Annotated[str, Meta(description="Owns the socket (mode 0660).")] = "kurir"
    admin_groups: Annotated[
        tuple[str, ...], Meta(description="Groups whose members are admins, besides root and the daemon's user.")
    ] = ("kurir-admin",)
    adhoc: Annotated[
        Literal["none", "https", "any"], Meta(description="Whether a job may carry its own URL, and of which scheme.")
    ] = "https"
    adhoc_deny: Annotated[
        tuple[str, ...],
        Meta(description="Addresses such a job never connects to: loopback, link-local, or a network."),
    ] = ("loopback", "link-local")


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept. Admins are exempt from user_*."""

    max_job_bytes: Annotated[Size, Meta(description="The largest payload of one job.")] = Size("16MiB")
    queue_jobs: Annotated[Count, Meta(description="Jobs kept in all.")] = 1_000_000
    queue_bytes: Annotated[Size, Meta(description="Payloads and headers kept in all.")] = Size("512MiB")
    user_jobs: Annotated[Count, Meta(description="Jobs kept for one user.")] = 200_000
    user_bytes: Annotated[Size, Meta(description="Payloads and headers kept for one user.")] = Size("128MiB")
    user_clients: Annotated[Count, Meta(description="Connections of one user.")] = 32
    clients: Annotated[Count, Meta(description="Connections of all users; 8 of them are kept for admins.")] = 200
    user_schedules: Annotated[int, Meta(ge=0, le=1_000_000, description="Schedules of one user.")] = 100
    disk_reserve: Annotated[
        Size, Meta(description="New jobs are refused before the disk has less; at most a tenth of the file system.")
    ] = Size("32MiB")
    in_flight: Annotated[int, Meta(ge=1, le=10_000, description="Attempts at once.")] = 32
    crash_limit: Annotated[
        int, Meta(ge=1, le=1_000, description="Ends of the process with only this job in flight, before it is dead.")
    ] = 5


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended jobs and keys are remembered."""

    done: Annotated[Duration, Meta(description="How long a finished job is kept.")] = Duration("24h")
    done_count: Annotated[int, Meta(ge=0, le=1_000_000_000, description="How many finished jobs are kept.")] = 10_000
    dead: Annotated[Duration, Meta(description="How long a dead letter is kept.")] = Duration("180d")
    dead_count: Annotated[int, Meta(ge=0, le=1_000_000_000, description="How many dead letters are kept.")] = 100_000
    keys: Annotated[
        Duration, Meta(description="How long a client's idempotency key is remembered after its job ended.")
    ] = Duration("7d")
    keys_count: Annotated[int, Meta(ge=0, le=1_000_000_000, description="How many such keys are kept.")] = 1_000_000
    result_bytes: Annotated[Size, Meta(description="How much of a response is kept.")] = Size("16KiB")


class MetricsTable(msgspec.Struct, frozen=True, kw_only=True):
    """Prometheus metrics over TCP."""

    listen: Annotated[str, Meta(description='Address and port; "" turns it off.')] = "127.0.0.1:9756"


class AlertsTable(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is told of what needs a person."""

    command: Annotated[
        tuple[str, ...], Meta(description="Run for dead letters, holds, degraded reasons; JSON on its standard input.")
    ] = ()
    fold: Annotated[Duration, Meta(description="Alerts of one kind within this time become one.")] = Duration("5m")


class CacheTable(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the servers' entities is kept for reading offline."""

    bytes: Annotated[Size, Meta(description="The most that the cache holds.")] = Size("64MiB")
    entries: Annotated[int, Meta(ge=0, le=1_000_000_000, description="The most entries it holds.")] = 20_000


class NetworkTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where news of the network comes from."""

    source: Annotated[
        Literal["auto", "networkmanager", "none"], Meta(description="Who is asked; none: the network is just tried.")
    ] = "auto"
    reconnect_spread: Annotated[
        Duration, Meta(description="First attempts after a reconnect are spread over this time.")
    ] = Duration("10s")
    metered_when_unknown: Annotated[
        Literal["wwan", "yes", "no"], Meta(description="What is metered if nobody says; wwan: mobile broadband only.")
    ] = "wwan"


class PowerTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where news of the battery comes from."""

    source: Annotated[
        Literal["auto", "upower", "none"],
        Meta(description="Who is asked; auto: UPower, or the kernel where it does not run; none: power needs are met."),
    ] = "auto"
    low_battery: Annotated[int, Meta(ge=0, le=100, description="Percent at which the battery is low.")] = 15


class ClockTable(msgspec.Struct, frozen=True, kw_only=True):
    """When the wall clock is believed."""

    trust: Annotated[
        Literal["auto", "always", "never"], Meta(description="auto: once something says that it is synchronised.")
    ] = "auto"


class SecretTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where {secret:NAME} is read from when a request is sent. Exactly one of the three."""

    file: Annotated[str, Meta(description="An absolute path; one trailing newline is dropped.")] = ""
    credential: Annotated[str, Meta(description="A file of $CREDENTIALS_DIRECTORY (systemd).")] = ""
    env: Annotated[str, Meta(description="A variable of the daemon's environment.")] = ""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration. An empty one is valid."""

    daemon: DaemonTable = DaemonTable()
    access: AccessTable = AccessTable()
    limits: LimitsTable = LimitsTable()
    retention: RetentionTable = RetentionTable()
    metrics: MetricsTable = MetricsTable()
    alerts: AlertsTable = AlertsTable()
    cache: CacheTable = CacheTable()
    network: NetworkTable = NetworkTable()
    power: PowerTable = PowerTable()
    clock: ClockTable = ClockTable()
    secrets: dict[str, SecretTable] = field(default_factory=dict)
    destinations: dict[str, DestinationTable] = field(default_factory=dict)
    topics: dict[str, TopicTable] = field(default_factory=dict)
    schedules: dict[str, ScheduleTable] = field(default_factory=dict)
    resources: dict[str, ResourceTable] = field(default_factory=dict)
