"""`kurirctl secret`: what is filled into the headers of one's own jobs, stored and never read back."""

from __future__ import annotations

import sys

import click

from kurir.cli import complete, exits, screen
from kurir.cli.overview import objects
from kurir.cli.printable import printable
from kurir.cli.screen import Cell, Column
from kurir.cli.session import Session, owner_option, pass_session, session_options
from kurir.client import secrets

MOST = 64 * 1024  # bytes; much more than the daemon takes, so that it is the one to say how much that is


@click.group(invoke_without_command=True, short_help="List, set or remove your secrets.")
@session_options
@click.pass_context
def secret(context: click.Context) -> int:
    """List, set or remove secrets. Without a command it lists them.

    In a header of a job with its own URL (kurirctl post), {secret:NAME} is the value of your secret NAME, filled in
    when the request is sent, if it goes to one of the origins of the secret. Nobody can read a value back.
    """
    if context.invoked_subcommand is None:
        return _say_all(context.ensure_object(Session), None)
    return exits.Exit.OK


@secret.command("list", short_help="List secrets and where they may be sent.")
@owner_option
@session_options
@pass_session
def list_secrets(session: Session, /, *, owner: int | None) -> int:
    """List secrets and the origins that they may be sent to."""
    return _say_all(session, owner)


@secret.command("set", short_help="Store a secret, or replace it.")
@click.argument("name", shell_complete=complete.secrets)
@click.argument("words", nargs=-1, metavar="")
@click.option(
    "--origin",
    "origins",
    multiple=True,
    required=True,
    metavar="URL",
    help="Where it may be sent, as https://host or https://host:port; again for more.",
)
@owner_option
@session_options
@pass_session
def set_secret(
    session: Session, /, *, name: str, words: tuple[str, ...], origins: tuple[str, ...], owner: int | None
) -> int:
    """Store a secret, or replace it with its origins. Jobs that wait for it go.

    The value is read from standard input, without the line break at its end, or asked for on a terminal, where it is
    not shown.
    """
    if words:
        raise click.UsageError(
            "a secret is no argument, which others see: it is read from standard input, or asked for"
        )
    value = _value(name)
    with session.client() as client:
        document = client.run(secrets.put(name, value, origins, owner))
    if session.json:
        screen.say_document(document)
    else:
        screen.say(f"{printable(name)} is stored for {_origins(document)}")
    return exits.Exit.OK


@secret.command(short_help="Remove a secret; jobs that refer to it wait.")
@click.argument("name", shell_complete=complete.secrets)
@owner_option
@session_options
@pass_session
def remove(session: Session, /, *, name: str, owner: int | None) -> int:
    """Remove a secret. Jobs that refer to it wait until it is stored again."""
    with session.client() as client:
        client.run(secrets.remove(name, owner))
    if session.json:
        screen.say_document({"done": True})
    else:
        screen.say(f"{printable(name)} is removed")
    return exits.Exit.OK


def _value(name: str) -> str:
    if sys.stdin.isatty():
        asked: str = click.prompt(f"value of {printable(name)}", hide_input=True, err=True)
        return asked
    given = sys.stdin.buffer.read(MOST + 1)
    if len(given) > MOST:
        raise click.UsageError("what standard input holds is too long for a secret")
    try:
        return given.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:  # its message would quote the value
        raise click.UsageError("what standard input holds is not text in UTF-8") from None


def _say_all(session: Session, owner: int | None) -> int:
    with session.client() as client:
        document = client.run(secrets.listing(owner))
    if session.json:
        screen.say_document(document)
        return exits.Exit.OK
    found = list(objects(document.get("secrets")))
    if not found:
        screen.note("no secrets")
        return exits.Exit.OK
    several = len({one.get("owner") for one in found}) > 1
    columns = [Column("NAME", True), *([Column("OWNER")] if several else []), Column("ORIGINS")]
    rows: list[list[Cell]] = [
        [printable(one.get("name")), *([printable(one.get("owner"))] if several else []), _origins(one)]
        for one in found
    ]
    screen.table(columns, rows)
    return exits.Exit.OK


def _origins(one: object) -> str:
    origins = one.get("origins") if isinstance(one, dict) else None
    return ", ".join(printable(origin) for origin in origins) if isinstance(origins, list) else "-"
