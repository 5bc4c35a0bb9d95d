"""The manual pages: kurirctl(1) from its commands, kurird(8) from its parser, kurird.toml(5) from the reference."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import roff

from kurir import __main__ as daemon
from kurir import __version__
from kurir.cli.exits import MEANINGS
from kurir.cli.root import kurirctl, sections
from kurir.settings import reference
from kurir.system.clock_sync import RELEASED_MS

FOLDER = Path(__file__).parents[1] / "man"
COMMON = ("--json", "--socket", "--help")  # options of every command
_DATE = datetime.fromtimestamp(RELEASED_MS / 1000, UTC).strftime("%Y-%m-%d")
_SOURCE = f"kurird {__version__}"

_KURIRD = """\
`kurird` keeps what local programs want delivered, and delivers it over HTTP when the network really works: at least
once, always with the same idempotency key. Programs hand jobs over on a Unix socket and get their answer as soon as a
job is safely on disk. What cannot be delivered waits where a person can see, mend and resend it, with `kurirctl`(1).

It runs in the foreground and writes its log to standard error. A service manager is told when it is ready and that it
lives (`NOTIFY_SOCKET`, `WATCHDOG_USEC`); a socket passed by socket activation is used.
"""
_SIGNALS = {
    "SIGTERM, SIGINT": "Take no new job, let attempts in flight end for `daemon.stop_grace`, and stop.",
    "SIGHUP": "Read the configuration and the secrets again. One that cannot be used changes nothing; "
    "`kurirctl status` says why.",
}
_KURIRD_EXITS = {
    daemon.OK: "stopped in order, or the configuration can be used",
    daemon.FAILED: "anything else",
    daemon.STATE_UNUSABLE: "the state directory cannot be used",
    daemon.ALREADY_RUNNING: "another instance holds the lock",
    daemon.CONFIGURATION: "configuration error: the message names file, key and reason",
}
_KURIRD_ENVIRONMENT = {
    "KURIR_CONFIG": "The configuration file, unless `--config` names one.",
    "STATE_DIRECTORY": "Where the queue lives, unless the configuration says so.",
    "CREDENTIALS_DIRECTORY": "Where secrets that are credentials of the service are.",
    "NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS, JOURNAL_STREAM": "As systemd sets them.",
}
_KURIRD_FILES = {
    "/etc/kurir/kurird.toml, /etc/kurir/kurird.toml.d/*.toml": "The configuration: `kurird.toml`(5).",
    "/var/lib/kurir": "The state: the queue, large payloads, copies.",
    "/run/kurir/control.sock": "The socket.",
}
_DOCUMENTATION = "/usr/share/doc/kurird"
_PAGES = {
    "kurirctl": {
        "first-steps.md": "A first job from the shell, curl, Python and C.",
        "programs.md": "An outbox in an application's own database, schedules, workers, dead letters.",
        "handbook.md": "What each message means, and what to do.",
    },
    "kurird": {
        "installation.md": "On Debian, Alpine and postmarketOS.",
        "handbook.md": "Limits, disk, backup, what each message means and what to do.",
        "monitoring.md": "Metrics, alerts, logs.",
        "upgrade.md": "To a newer version, and back.",
        "security.md": "Whom it trusts with what.",
    },
}
_KURIRCTL_ENVIRONMENT = {
    "KURIR_SOCKET": "The daemon's socket.",
    "VISUAL, EDITOR": "What `kurirctl edit` opens.",
    "NO_COLOR": "If set to anything, no colours.",
}
_EXAMPLES = """\
kurirctl submit orders '{"id": 7}' --wait 30s
kurirctl submit orders @file.ndjson --lines --key import-1
kurirctl why ID
kurirctl dead retry --topic orders --dry-run
kurirctl secret set token --origin https://api.example.com < token.txt
kurirctl events --json --topic orders
kurirctl doctor
"""


def pages() -> dict[Path, str]:
    """Each manual page with its text as it should be."""
    made = {"kurirctl.1": _kurirctl(), "kurird.8": _kurird(), "kurird.toml.5": _configuration()}
    return {FOLDER / name: roff.page(lines) for name, lines in made.items()}


def _kurirctl() -> Iterator[str]:
    yield from roff.title("kurirctl", 1, _DATE, _SOURCE, "User Commands")
    yield from (roff.section("NAME"), roff.escape("kurirctl - hand jobs to kurird, and see and steer what it delivers"))
    yield from (roff.section("SYNOPSIS"), "\\fBkurirctl\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...")
    yield roff.section("DESCRIPTION")
    yield from roff.paragraph(kurirctl.help or "")
    yield from roff.paragraph(
        "Every command talks to `kurird`(8) over its socket. `kurirctl COMMAND --help` shows one."
    )
    yield roff.section("OPTIONS")
    context = click.Context(kurirctl, info_name="kurirctl")
    yield from _options(kurirctl, context, common=True)
    for name, commands in sections():
        yield roff.section(name.upper())
        for command in commands:
            found = kurirctl.get_command(context, command)
            assert found is not None
            yield from _command(found, click.Context(found, info_name=command, parent=context))
    yield roff.section("EXIT STATUS")
    for code, meaning in MEANINGS.items():
        yield from roff.term(str(int(code)), meaning)
    yield from _terms("ENVIRONMENT", _KURIRCTL_ENVIRONMENT)
    yield from _terms("FILES", {"/run/kurir/control.sock": "The daemon's socket."})
    yield roff.section("EXAMPLES")
    yield from roff.literal(_EXAMPLES.splitlines())
    yield from (roff.section("SEE ALSO"), "\\fBkurird\\fR(8), \\fBkurird.toml\\fR(5)")
    yield from _see("kurirctl")


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield roff.subsection(" ".join([context.command_path.removeprefix("kurirctl "), *_usage(command, context)]))
    for text in inspect.cleandoc(command.help or "").split("\n\n"):
        if text.startswith("\b\n"):
            yield from roff.literal(text.removeprefix("\b\n").splitlines())
        elif text.strip():
            yield from roff.paragraph(text)
    yield from _options(command, context, common=False)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _command(found, click.Context(found, info_name=name, parent=context))


def _usage(command: click.Command, context: click.Context) -> list[str]:
    return [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]


def _options(command: click.Command, context: click.Context, *, common: bool) -> Iterator[str]:
    for parameter in command.get_params(context):
        shared = any(name in COMMON for name in parameter.opts)
        record = parameter.get_help_record(context)
        if record is not None and record[1] and (common or not shared):
            yield from roff.term(*record)


def _kurird() -> Iterator[str]:
    parser = daemon.argument_parser()
    yield from roff.title("kurird", 8, _DATE, _SOURCE, "System Administration")
    yield from (roff.section("NAME"), roff.escape("kurird - keep what programs want delivered, and deliver it"))
    yield from (roff.section("SYNOPSIS"), roff.escape(" ".join(parser.format_usage().split()).removeprefix("usage: ")))
    yield roff.section("DESCRIPTION")
    yield from roff.from_markdown(_KURIRD)
    yield roff.section("OPTIONS")
    for action in parser._actions:  # argparse has no public way to list them
        yield from roff.term(_option(action), (action.help or "").rstrip(".") + ".")
    yield from _terms("SIGNALS", _SIGNALS)
    yield from _terms("EXIT STATUS", {str(code): meaning for code, meaning in _KURIRD_EXITS.items()})
    yield from _terms("ENVIRONMENT", _KURIRD_ENVIRONMENT)
    yield from _terms("FILES", _KURIRD_FILES)
    yield from (roff.section("SEE ALSO"), "\\fBkurirctl\\fR(1), \\fBkurird.toml\\fR(5)")
    yield from _see("kurird")


def _option(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    return f"{names} {action.metavar}" if action.metavar else names


def _configuration() -> Iterator[str]:
    text = reference.render().removeprefix("# Configuration\n")
    yield from roff.title("kurird.toml", 5, _DATE, _SOURCE, "File Formats")
    yield from (roff.section("NAME"), roff.escape("kurird.toml - the configuration of kurird"))
    yield roff.section("DESCRIPTION")
    yield from roff.from_markdown(text)
    yield from (roff.section("SEE ALSO"), "\\fBkurird\\fR(8), \\fBkurirctl\\fR(1)")


def _see(program: str) -> Iterator[str]:
    yield from roff.paragraph(f"In {_DOCUMENTATION}:")
    for page, about in _PAGES[program].items():
        yield from roff.term(page, about)


def _terms(title: str, terms: dict[str, str]) -> Iterator[str]:
    yield roff.section(title)
    for name, meaning in terms.items():
        yield from roff.term(name, meaning)
