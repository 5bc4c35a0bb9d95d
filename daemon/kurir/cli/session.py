"""What every command shares: where the daemon is, and whether output is for a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

import kurir.client
from kurir.cli.human import parse_duration

if TYPE_CHECKING:
    from kurir.client import Client

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """The options that stand before or after the command's name."""

    socket: str | None = None
    json: bool = False

    def client(self, timeout: float = 30.0, patience: float = 10.0) -> Client:
        """A client; `timeout` of one exchange and `patience` with a lost answer in seconds."""
        return kurir.client.Client(self.socket, timeout=timeout, patience=patience)


pass_session = click.make_pass_decorator(Session, ensure=True)
owner_option = click.option("--owner", type=int, metavar="UID", help="Whose it is (admins).")


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Session).json = True


def _set_socket(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(Session).socket = value


def session_options(command: F) -> F:
    """--json and --socket, which every command takes."""
    command = click.option(
        "--socket",
        metavar="PATH",
        expose_value=False,
        callback=_set_socket,
        help="The daemon's socket [default: $KURIR_SOCKET or /run/kurir/control.sock].",
    )(command)
    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_set_json,
        help="Print the API's document instead of text.",
    )(command)


if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:  # not generic in the oldest click that is supported
    _FloatType = click.ParamType


class DurationType(_FloatType):
    """A duration as in the configuration; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        seconds = parse_duration(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no duration; write 250ms, 30s, 5m, 24h or 30d", param, ctx)
        return seconds


DURATION = DurationType()
