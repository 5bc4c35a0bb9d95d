"""`kurirctl edit`: change a job that waits, is dead or in conflict, in an editor or by options."""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kurir.cli import complete, exits, screen
from kurir.cli.commands.job_options import submit_options
from kurir.cli.commands.payload import payload_of, read_data
from kurir.cli.printable import printable
from kurir.cli.session import Session, pass_session, session_options
from kurir.client import NOTHING, Body, Client, EditOptions, Invalid, Job, KurirError


@click.command(short_help="Change a job that waits, is dead or in conflict.")
@click.argument("job_id", metavar="ID", shell_complete=complete.jobs("pending", "dead", "conflict"))
@click.option("--data", metavar="DATA|@FILE|-", help="The new payload, instead of an editor.")
@click.option("--text", is_flag=True, help="Take the new payload as it is, even if it looks like broken JSON.")
@click.option("--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'", help="The new headers.")
@click.option("--path", help="The new path.")
@click.option("--priority", type=int, metavar="N", help="The new priority, from -100 to 100.")
@click.option("--delay", metavar="DURATION", help="Earliest after this time.")
@click.option("--expires-in", metavar="DURATION", help="Dead if not delivered by then.")
@click.option("--keep-key", is_flag=True, help="Keep the idempotency key (only if no attempt reached the wire).")
@click.option("--accept-duplicate", is_flag=True, help="Edit although the server may have received it already.")
@click.option("--retry", is_flag=True, help="Send a dead job again once it is edited.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@session_options
@pass_session
def edit(
    session: Session,
    /,
    *,
    job_id: str,
    data: str | None,
    text: bool,
    yes: bool,
    retry: bool,
    keep_key: bool,
    accept_duplicate: bool,
    **given: Any,
) -> int:
    """Change a job that waits, is dead or in conflict.

    Without an option that says what to change, the payload opens in $VISUAL or $EDITOR; the difference is shown, and
    sent when you agree. A changed request gets a new idempotency key. A dead job still needs --retry, or kurirctl
    retry.
    """
    options: EditOptions = {**submit_options(given)}  # type: ignore[typeddict-item] # a subset of its names
    if keep_key:
        options["keep_key"] = True
    if accept_duplicate:
        options["accept_duplicate"] = True
    with session.client() as client:
        if data is not None or any(value not in (None, ()) for value in given.values()):
            job = client.edit(
                job_id, payload_of(read_data(data), text=text) if data is not None else NOTHING, **options
            )
        else:
            edited = _edit_payload(client, job_id, options, text=text, ask=not yes)
            if edited is None:
                return exits.Exit.OK
            job = edited
        key = job.get("idempotency_key")
        if retry and job.state == "dead":
            job = client.retry(job_id)
    _say_edited(session, job, key)
    return exits.Exit.OK


def _say_edited(session: Session, job: Job, key: object) -> None:
    if session.json:
        screen.say_document(job)
        return
    screen.say(f"{printable(job.id)}  {printable(job.state)}")
    if isinstance(key, str):
        screen.note(f"its idempotency key is {printable(key)}; kurirctl show tells those before")
    if job.state == "dead":
        screen.note("it is still dead: kurirctl retry sends it")


def _edit_payload(client: Client, job_id: str, options: EditOptions, *, text: bool, ask: bool) -> Job | None:
    """Open the payload in an editor and send what came out; None if nothing was changed or agreed to."""
    if ask and not sys.stdin.isatty():
        raise click.UsageError("an editor needs a terminal; use --data, or --yes if the editor needs none")
    body = client.body(job_id)
    before = _text_of(body)
    file = _draft(body)
    keep = False
    try:
        _run_editor(file)
        after = _drop_added_newline(before, file.read_bytes())
        if after == body.content:
            screen.note("nothing was changed")
            return None
        _show_difference(before, after.decode("utf-8", "backslashreplace"))
        keep = True  # from here on there is work in it that an error must not destroy
        payload = payload_of(after, content_type=body.content_type or None, text=text)
        if ask and not click.confirm("send this instead?", err=True):
            screen.note("nothing was sent")
            keep = False
            return None
        job = client.edit(job_id, payload, **options)
        keep = False
        return job
    except (KurirError, KeyboardInterrupt, click.Abort):
        if keep:
            screen.note(f"kurirctl: your text is kept: kurirctl edit {printable(job_id)} --data @{file}")
        raise
    finally:
        if not keep:
            file.unlink(missing_ok=True)


def _text_of(body: Body) -> str:
    try:
        return body.content.decode()
    except UnicodeDecodeError:
        raise _not_text() from None


def _not_text() -> Invalid:
    detail = "cannot edit the payload: it is not text; give the new one with --data @FILE"
    return Invalid(422, {"status": 422, "code": "invalid", "detail": detail})


def _draft(body: Body) -> Path:
    """The payload in a file that only this user may read: payloads are private."""
    suffix = ".json" if "json" in body.content_type or not body.content_type else ".txt"
    handle, name = tempfile.mkstemp(prefix="kurir-", suffix=suffix)
    with os.fdopen(handle, "wb") as file:
        file.write(body.content)
    return Path(name)


def _run_editor(file: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        ended = subprocess.run([*shlex.split(editor), str(file)], check=False)  # noqa: S603 - the user's own editor
    except (OSError, ValueError) as error:
        raise click.UsageError(f"cannot start the editor {editor!r}: {error}; set EDITOR") from None
    if ended.returncode != 0:
        raise click.UsageError(f"the editor {editor!r} ended with {ended.returncode}: nothing was sent")


def _drop_added_newline(before: str, after: bytes) -> bytes:
    """Editors end a file with a line break; a payload that had none shall not gain one."""
    return after[:-1] if not before.endswith("\n") and after.endswith(b"\n") else after


def _show_difference(before: str, after: str) -> None:
    for line in _difference(before, after):
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        text = printable(line)
        screen.note(screen.colour(text, style, sys.stderr) if style else text)


def _difference(before: str, after: str) -> Iterator[str]:
    return difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
