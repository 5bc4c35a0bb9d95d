"""The options of `submit` and `post`: one for each member that a job may have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click

from kurir.cli import complete
from kurir.client import SubmitOptions

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "content_type": click.option(
        "--content-type", metavar="TYPE", help="Media type of the payload [default: the topic's]."
    ),
    "headers": click.option(
        "--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'", help="A request header."
    ),
    "path": click.option("--path", help="Path below the destination's URL, if the topic lets jobs set it."),
    "query": click.option("--query", help="Query of the request, without the question mark."),
    "idempotency_key": click.option("--key", "idempotency_key", help="Idempotency key: the same key twice is one job."),
    "priority": click.option("--priority", type=int, metavar="N", help="From -100 to 100; higher goes first."),
    "ordering_key": click.option("--ordering-key", metavar="KEY", help="Jobs of one key go one after the other."),
    "unique": click.option("--unique", metavar="KEY", help="At most one living job of this key."),
    "unique_policy": click.option(
        "--unique-policy",
        type=click.Choice(["keep", "replace", "append"]),
        help="What a second job of the unique key does.",
    ),
    "delay": click.option("--delay", metavar="DURATION", help="Earliest after this time, for example 5m."),
    "not_before": click.option("--not-before", metavar="TIME", help="Earliest at this time (RFC 3339)."),
    "expires_in": click.option("--expires-in", metavar="DURATION", help="Dead if not delivered by then."),
    "max_attempts": click.option("--max-attempts", type=int, metavar="N", help="Dead after this many failed attempts."),
    "needs": click.option(
        "--needs", multiple=True, metavar="WHAT=VALUE", help="For example network=unmetered, power=external."
    ),
    "urgency": click.option(
        "--urgency", type=click.Choice(["now", "soon", "whenever"]), help="How long it may wait for company."
    ),
    "after": click.option(
        "--after",
        multiple=True,
        metavar="ID",
        shell_complete=complete.jobs("pending", "leased"),
        help="Only after this job is done.",
    ),
    "unless": click.option("--unless", metavar="JSON", help='Not if this holds, for example {"job": ID}.'),
    "correlation_id": click.option("--correlation-id", metavar="ID", help="Goes along in logs and on the wire."),
    "text": click.option("--text", is_flag=True, help="Send DATA as it is, even if it looks like broken JSON."),
}
"""By the name of the parameter, in the order of the help."""


def job_options(*names: str) -> Callable[[F], F]:
    """Give a command these options, or all of them."""

    def add(command: F) -> F:
        for name, option in reversed([*_OPTIONS.items()]):
            if not names or name in names:
                command = option(command)
        return command

    return add


def submit_options(given: Mapping[str, Any]) -> SubmitOptions:
    """The client's options from the command line's. Raises a usage error; the daemon judges the values."""
    options = {name: value for name, value in given.items() if value not in (None, ())}
    policy = options.pop("unique_policy", None)
    if policy and "unique" not in options:
        raise click.UsageError("--unique-policy needs --unique KEY")
    if policy:
        options["unique"] = {"key": options["unique"], "policy": policy}
    if "headers" in options:
        options["headers"] = _pairs(options["headers"], ":", "--header", "Name: value")
    if "needs" in options:
        options["needs"] = _pairs(options["needs"], "=", "--needs", "network=unmetered")
    if "unless" in options:
        options["unless"] = _json_object(options["unless"])
    return cast(SubmitOptions, options)


def _pairs(texts: Sequence[str], separator: str, option: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise click.UsageError(f"{option} must look like '{example}', not {text!r}")
        if name.strip() in pairs:
            raise click.UsageError(f"{option} names {name.strip()!r} twice")
        pairs[name.strip()] = value.strip()
    return pairs


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise click.UsageError(f"--unless must be a JSON object, not {text!r}")
    return value
