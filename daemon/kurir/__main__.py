"""kurird: the daemon's command line. Exit codes are part of the public contract."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from kurir import __version__
from kurir.domain.errors import (
    AlreadyRunning,
    ConfigurationError,
    KuriError,
    StateDirectoryError,
    StoreCorrupt,
    StoreFailing,
)
from kurir.settings.load import load
from kurir.settings.model import Settings
from kurir.settings.outline import outline

OK = 0
FAILED = 1
STATE_UNUSABLE = 74
ALREADY_RUNNING = 75
CONFIGURATION = 78


def main(arguments: list[str] | None = None) -> int:
    """Run the daemon, or check its configuration. Returns the exit code."""
    options = argument_parser().parse_args(arguments)
    environ = os.environ
    path = options.config
    if path is None and environ.get("KURIR_CONFIG"):
        path = Path(environ["KURIR_CONFIG"])
    try:
        settings = load(path, environ=environ, uid=os.geteuid())
        if options.check:
            print(json.dumps(outline(settings)) if options.json else "the configuration can be used")
            return OK
        return _run(settings, path)
    except KuriError as error:
        print(f"kurird: {error}", file=sys.stderr)
        return exit_code(error)


def argument_parser() -> argparse.ArgumentParser:
    """What may stand on the command line."""
    parser = argparse.ArgumentParser(prog="kurird", description="Keeps what programs want delivered, and delivers it.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="read FILE, then FILE.d/*.toml")
    parser.add_argument("--check", action="store_true", help="check the configuration, and exit")
    parser.add_argument("--json", action="store_true", help="with --check: print the places and limits that it sets")
    parser.add_argument("--version", action="version", version=f"kurird {__version__}")
    return parser


def exit_code(error: KuriError) -> int:
    """What a supervisor is told of an error."""
    match error:
        case ConfigurationError():
            return CONFIGURATION
        case AlreadyRunning():
            return ALREADY_RUNNING
        case StateDirectoryError() | StoreFailing() | StoreCorrupt():
            return STATE_UNUSABLE
        case _:
            return FAILED


def _run(settings: Settings, path: Path | None) -> int:
    # Only now: a check of the configuration needs nothing of it.
    from kurir.app import Program  # noqa: PLC0415
    from kurir.logs import configure  # noqa: PLC0415

    async def serve() -> None:
        log = configure(settings.daemon.log_level, settings.daemon.log_format, environ=os.environ)
        await Program(settings, path, os.environ, log).run()
        log.flush()

    try:
        asyncio.run(serve())
    except* KuriError as errors:
        first = errors.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return OK


if __name__ == "__main__":
    sys.exit(main())
