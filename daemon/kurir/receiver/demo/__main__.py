"""`python -m kurir.receiver.demo`: run the demo until Ctrl-C, or with --once (or without a terminal) just the tour."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kurir.receiver.demo.daemon import Daemon, running
from kurir.receiver.demo.destination import Destination
from kurir.receiver.demo.failure import DemoFailed
from kurir.receiver.demo.tour import Tour, heading

INTERRUPTED = 130
PIPE = 141


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:6]) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; it is a number up to 65535")
    return int(text[:6])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kurir.receiver.demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the tour")
    parser.add_argument("--port", type=_port, default=0, help="where the receiver listens [default: a free port]")
    parser.add_argument("--folder", type=Path, help="keep everything there [default: a new one that is removed]")
    return parser.parse_args()


async def _run(folder: Path, port: int, *, stay: bool) -> None:
    destination = Destination(folder / "received.db", port)
    await destination.appear()
    try:
        async with running(folder, destination.url) as daemon:
            _introduce(folder, daemon, destination)
            tour = Tour(daemon.socket, destination)
            await _unless_ended(daemon, tour, stay=stay)
    finally:
        await destination.vanish()


async def _unless_ended(daemon: Daemon, tour: Tour, *, stay: bool) -> None:
    async def show() -> None:
        await tour.take()
        if stay:
            _invite(daemon)
            await tour.follow()

    shown, ended = asyncio.create_task(show()), asyncio.create_task(daemon.ended())
    try:
        done, _ = await asyncio.wait({shown, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        shown.cancel()
        ended.cancel()
        await asyncio.wait({shown, ended})


def _introduce(folder: Path, daemon: Daemon, destination: Destination) -> None:
    print("kurird is running, and so is a receiver for it to deliver to.")
    print(f"   folder    {folder}")
    print(f"   socket    {daemon.socket}")
    print(f"   receiver  {destination.url}")
    print(f"   log       {daemon.log}", flush=True)


def _invite(daemon: Daemon) -> None:
    heading("Now you. In a second terminal, in this folder:")
    programs = Path(sys.executable).parent
    shown = programs.relative_to(Path.cwd()) if programs.is_relative_to(Path.cwd()) else programs
    job = """'{"topic": "orders", "payload": {"id": 101}}'"""
    for command in (
        f"export KURIR_SOCKET={daemon.socket}",
        f"""{shown}/kurirctl submit orders '{{"id": 100}}' --wait 10s""",
        f"{shown}/kurirctl list",
        f"{shown}/kurirctl --help",
        f"curl --unix-socket $KURIR_SOCKET http://kurir/v1/jobs --json {job}",
        "curl --unix-socket $KURIR_SOCKET http://kurir/v1/status",
    ):
        print(f"   $ {command}")
    heading("What happens is shown here (kurirctl events). Ctrl-C ends everything.")


async def _until_signal(folder: Path, port: int, *, stay: bool) -> bool:
    """Run the demo; False if a signal ended it. Further signals do not disturb the taking down."""
    work = asyncio.create_task(_run(folder, port, stay=stay))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, lambda: work.cancelling() or work.cancel())
    await asyncio.wait({work})
    if work.cancelled():
        return False
    work.result()
    return True


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        try:
            if folder is None:
                made = tempfile.TemporaryDirectory(prefix="kurir-demo-", ignore_cleanup_errors=True)
                folder = Path(stack.enter_context(made))
            else:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as fault:
            raise DemoFailed(f"cannot make the folder: {fault}; choose another one with --folder") from fault
        yield folder.resolve()


def main() -> int:
    """Run the demo. 0: it went as it should, 1: it did not (the message says why), 130: interrupted during the tour."""
    options = _arguments()
    stay = not options.once and sys.stdin is not None and sys.stdin.isatty()
    os.umask(0o077)
    try:
        with _place(options.folder) as folder:
            finished = asyncio.run(_until_signal(folder, options.port, stay=stay))
    except DemoFailed as fault:
        print(f"\nthe demo ends: {fault}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read what is shown has gone, as in `make run | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE
    if not finished:
        print("\nEnded; the daemon and the receiver are stopped." if stay else "\ninterrupted")
        return 0 if stay else INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
