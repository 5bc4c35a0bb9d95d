"""`kurirctl doctor`: what is wrong with the daemon or its surroundings, each with the cure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kurir.cli import exits, screen
from kurir.cli.complaints import complaint
from kurir.cli.doctor import daemon, permissions
from kurir.cli.doctor.clock import clock
from kurir.cli.doctor.configuration import configuration
from kurir.cli.doctor.disk import disk
from kurir.cli.doctor.facts import configuration_of, from_outline, peer_of
from kurir.cli.doctor.finding import Finding, Level, ok, wrong
from kurir.cli.doctor.network import bus, network
from kurir.cli.doctor.services import service
from kurir.cli.overview import objects
from kurir.cli.printable import printable, printable_lines
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import Cause, Client, DaemonUnreachable, KurirError

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.WRONG: "red"}
ANSWER_IN = 10.0  # seconds
MARGIN = 21  # columns before what was found
ROOM_FOR_COLUMNS = 60  # columns; on a narrower terminal it stands below


@click.command(short_help="Say what is wrong, and the cure.")
@click.option("--config", metavar="FILE", help="The daemon's configuration [default: that of the one that runs].")
@session_options
@pass_session
def doctor(session: Session, /, *, config: str | None) -> int:
    """Say what is wrong with the daemon, its configuration or its surroundings, each with the cure.

    Looks at the configuration, permissions, clock, disk, network, D-Bus, secrets, versions, and at what the daemon
    reports. Changes nothing, and works without a daemon. Ends with 0 if nothing is wrong, else with 1.
    """
    with session.client(ANSWER_IN, patience=0.0) as client:
        findings = list(_findings(client, config))
    well = all(finding.level is not Level.WRONG for finding in findings)
    if session.json:
        screen.say_document({"ok": well, "findings": [finding.document() for finding in findings]})
    else:
        _say(findings)
    return exits.Exit.OK if well else exits.Exit.ENDED_BADLY


def _findings(client: Client, config: str | None) -> Iterator[Finding]:
    reached, status, destinations = _daemon(client)
    yield reached
    yield daemon.versions(status)
    peer = peer_of(client.path)
    checked, outline = configuration(config or (configuration_of(peer) if peer is not None else None))
    yield from checked
    facts = from_outline(outline, client.path, status, peer)
    yield from permissions.socket(facts)
    yield from permissions.state(facts)
    yield from permissions.secrets(facts)
    yield from clock(facts, datetime.now(UTC))
    yield from disk(facts)
    on_bus, answers = bus()
    yield on_bus
    yield from network(facts, bus_answers=answers)
    if status is not None:
        yield from daemon.degraded(status)
        yield from daemon.destinations(destinations)
        yield from daemon.jobs(status)


def _daemon(client: Client) -> tuple[Finding, Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]:
    """Whether it answers and can work, with what it says of itself."""
    status: Mapping[str, Any] | None = None
    destinations: Sequence[Mapping[str, Any]] = ()
    try:
        status = client.status()
        destinations = objects(client.destinations().get("destinations"))
        client.ready()
    except DaemonUnreachable as error:
        cure = f"sudo {service('start')}; its log says why it ended"
        if error.cause is Cause.DENIED:
            cure = "see socket below"
        return wrong(daemon.DAEMON, printable(error), cure), status, destinations
    except KurirError as error:
        return wrong(daemon.DAEMON, complaint(error), "see disk below, and the daemon's log"), status, destinations
    return ok(daemon.DAEMON, f"answers at {client.path}, stores and sends"), status, destinations


def _say(findings: Sequence[Finding]) -> None:
    before = ""
    for finding in findings:
        label = "" if finding.check == before else finding.check
        before = finding.check
        _say_one(label, finding)
    bad = sum(finding.level is Level.WRONG for finding in findings)
    screen.say()
    screen.say("nothing is wrong" if not bad else f"{bad} {'thing is' if bad == 1 else 'things are'} wrong")


def _say_one(label: str, finding: Finding) -> None:
    mark = screen.colour(f"{finding.level.value:<5}", _STYLES[finding.level])
    lines = printable_lines(finding.detail).split("\n") + ([f"-> {finding.cure}"] if finding.cure else [])
    narrow = screen.on_terminal() and screen.width() < ROOM_FOR_COLUMNS
    margin = 2 if narrow else MARGIN
    head = f"{label:<{MARGIN - 6}}{mark} "
    if narrow:
        screen.say(head)
        head = " " * margin
    for line in lines:
        for text in screen.wrapped(line, margin):
            screen.say(f"{head}{text}")
            head = " " * margin
