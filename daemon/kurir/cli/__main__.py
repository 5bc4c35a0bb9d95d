"""Starts kurirctl and turns whatever ends it into a message and an exit code; only a bug prints a traceback."""

from __future__ import annotations

import errno
import os
import sys

import click

from kurir.cli.commands.completion import VARIABLE
from kurir.cli.complaints import complaint
from kurir.cli.exits import Exit, of_error
from kurir.cli.printable import json_text
from kurir.cli.root import kurirctl
from kurir.cli.session import Session
from kurir.client import KurirError, KurirProblem


def main() -> int:
    """The entry point. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a locale that lacks a character must not end the command
            stream.reconfigure(errors="backslashreplace")
    code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _output_failed(error)
    return int(code)


def _run() -> int:
    session, stdout = Session(), sys.stdout
    try:
        # What click makes of no command depends on its version; to complete one is another matter.
        if not sys.argv[1:] and VARIABLE not in os.environ:
            click.echo(click.Context(kurirctl, info_name="kurirctl").get_help(), err=True)
            return Exit.USAGE
        result = kurirctl.main(prog_name="kurirctl", standalone_mode=False, obj=session)
        return result if isinstance(result, int) else Exit.OK
    except KurirError as error:
        return _refused(error, session)
    except (KeyboardInterrupt, EOFError, click.Abort):
        sys.stderr.write("\n")
        return Exit.INTERRUPTED
    except click.UsageError as error:
        error.show()
        return Exit.USAGE
    except click.ClickException as error:
        error.show()
        return Exit.DATA
    except SystemExit as error:
        # click turns a broken pipe into an exit of its own, with the code of a dead job, and wraps the streams.
        if sys.stdout is not stdout:
            return _output_failed(BrokenPipeError(errno.EPIPE, "the reader is gone"))
        return error.code if isinstance(error.code, int) else Exit.OK
    except OSError as error:
        return _output_failed(error)
    except Exception:  # noqa: BLE001 - a bug must not look like a dead job (exit code 1)
        sys.excepthook(*sys.exc_info())  # prints it without the import of traceback, which every start would pay
        return Exit.BUG


def _refused(error: KurirError, session: Session) -> int:
    if session.json and isinstance(error, KurirProblem):
        sys.stdout.write(json_text(error.document) + "\n")
    sys.stderr.write(f"kurirctl: {complaint(error)}\n")
    return of_error(error)


def _output_failed(error: OSError) -> int:
    """The reader of our output is gone (quietly), or what it is written to is full."""
    # Whatever is still buffered would fail again when Python ends, with a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno == errno.EPIPE:
        return Exit.PIPE
    sys.stderr.write(f"kurirctl: cannot write the output: {error.strerror or error}\n")
    return Exit.FULL


if __name__ == "__main__":
    sys.exit(main())
