"""`kurirctl metrics`: the numbers for Prometheus, and as a file for a node_exporter that is there already."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import click

from kurir.cli import screen
from kurir.cli.exits import Exit
from kurir.cli.printable import printable
from kurir.cli.session import Session, pass_session, session_options

FILE: Final = "kurird.prom"
_OURS: Final = ("kurir_", "# HELP kurir_", "# TYPE kurir_")


@click.command(short_help="Print the metrics, or write them where node_exporter reads.")
@click.option(
    "--textfile",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write kurird.prom in this folder, whole or not at all, instead of printing.",
)
@session_options
@pass_session
def metrics(session: Session, /, *, textfile: Path | None) -> int:
    """Print the metrics in Prometheus' text format (for administrators).

    With --textfile they go to a file for node_exporter's textfile collector. Those of the process are left out there:
    node_exporter has some of its own under the same names. When the daemon does not answer, the file stays as it was,
    and node_textfile_mtime_seconds tells its age.
    """
    with session.client() as client:
        text = client.metrics()
    if textfile is not None:
        path = textfile / FILE
        _replace(path, ours(text))
        if session.json:
            screen.say_document({"path": str(path)})
    elif session.json:
        screen.say_document({"metrics": text})
    else:
        for line in text.splitlines():
            screen.say(printable(line))
    return Exit.OK


def ours(text: str) -> str:
    """The metrics of kurird without those of the process."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_OURS))


def _replace(path: Path, text: str) -> None:
    """Put a file in place that everybody may read. No sync: what a power cut takes is there again a moment later."""
    partial: Path | None = None
    try:
        # Its name does not end in .prom, so that nobody reads it before it is whole.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        partial = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o644)
            file.write(text)
        partial.replace(path)
    except BaseException as fault:
        if partial is not None:
            partial.unlink(missing_ok=True)
        if isinstance(fault, OSError):
            raise click.ClickException(f"cannot write {printable(str(path))}: {fault.strerror}") from fault
        raise
