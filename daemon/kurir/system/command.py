"""A program of the operator that is told something: run without a shell, for a bounded time, killed with its group."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

LONGEST: Final = 60_000
"""Bytes that it may be told: they fit into a pipe, so that nobody waits for a program that does not read them."""

_COMPLAINT: Final = 500
_PIECE: Final = 4096
_PIECES: Final = 16


async def tell(command: tuple[str, ...], content: bytes, *, limit: float, environ: Mapping[str, str]) -> str | None:
    """Run a command with `content` (at most LONGEST bytes) on its standard input, for up to `limit` seconds.

    It has the environment that is given, "/" for a folder, a session and a process group of its own, and nowhere to
    write but standard error. Returns None when it ended with 0, else why not. When the time is over, or the caller is
    cancelled, the whole group is killed; what it put into the background and ended before goes on.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    complaint = _Complaint()
    try:
        try:
            os.write(writer, content)
        finally:
            os.close(writer)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=reader,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=complaint.writer,
                env=dict(environ),
                cwd="/",
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _undo(starting)
            raise
        except OSError as fault:
            return f"cannot start {command[0]}: {fault.strerror}"
        complaint.listen()
        overdue = not await _ended(process, limit)
        said = complaint.heard()
    finally:
        os.close(reader)
        complaint.close()
    if overdue:
        why = f"it was killed after {limit:g} s"
    elif process.returncode == 0:
        return None
    elif process.returncode is not None and process.returncode < 0:
        why = f"signal {-process.returncode} ended it"
    else:
        why = f"it ended with {process.returncode}"
    return f"{why}: {said}" if said else why


async def _undo(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Cancelled while it started: it may run already, and have children."""
    with suppress(OSError):
        process = await starting
        _kill(process)
        await process.wait()


async def _ended(process: asyncio.subprocess.Process, limit: float) -> bool:
    """Whether it ends in time. If not, or when this is cancelled, it is killed with its group and reaped."""
    try:
        async with asyncio.timeout(limit):
            await process.wait()
    except TimeoutError:
        _kill(process)
        await process.wait()
        return False
    except asyncio.CancelledError:
        _kill(process)
        await process.wait()
        raise
    return True


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(process.pid, signal.SIGKILL)


class _Complaint:
    """The beginning of what a program says on standard error. The rest is read too, so that it need not wait."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.writer, True)
        self._text = b""
        self._listening = False

    def listen(self) -> None:
        """The program has its end; ours would keep the pipe open."""
        os.close(self.writer)
        self.writer = -1
        asyncio.get_running_loop().add_reader(self._reader, self._read)
        self._listening = True

    def heard(self) -> str:
        """What it said, in one line."""
        for _ in range(_PIECES):
            if not self._listening or not self._read():
                break
        return " ".join(self._text.decode("utf-8", "replace").split())

    def close(self) -> None:
        self._stop()
        os.close(self._reader)
        if self.writer >= 0:
            os.close(self.writer)

    def _read(self) -> bool:
        try:
            piece = os.read(self._reader, _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._stop()
            return False
        self._text += piece[: max(0, _COMPLAINT - len(self._text))]
        return True

    def _stop(self) -> None:
        if self._listening:
            asyncio.get_running_loop().remove_reader(self._reader)
            self._listening = False
