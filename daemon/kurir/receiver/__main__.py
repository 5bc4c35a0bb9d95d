"""`python -m kurir.receiver --listen 127.0.0.1:8099 --store FILE`: run the small server until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from kurir.receiver.server import KEEP, application, serve


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 <= int(port[:6]) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port[:6])


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kurir.receiver", description=__doc__)
    parser.add_argument("--listen", type=_address, default="127.0.0.1:8099", metavar="HOST:PORT", help="0: a free port")
    parser.add_argument("--store", type=Path, required=True, metavar="FILE", help="SQLite file, made when missing")
    parser.add_argument("--keep", type=_positive, default=KEEP, metavar="N", help="keep the newest N received things")
    return parser.parse_args()


async def _run(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(application(arguments.store, keep=arguments.keep), *arguments.listen) as url:
        print(f"listening on {url}", flush=True)
        await stop.wait()


def main() -> int:
    """Run the server; exit code 0 after a signal, 1 if it cannot listen."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    arguments = _arguments()
    try:
        asyncio.run(_run(arguments))
    except OSError as error:
        print(f"cannot serve: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
