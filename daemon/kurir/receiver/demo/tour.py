"""The tour: four things that happen to jobs, each done with the commands that a person would type."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from kurir.receiver.demo.destination import Destination
from kurir.receiver.demo.failure import DemoFailed

_INDENT = "   "
_WIDTH = 100
_OFFLINE_JOBS = 5


def say(text: str = "") -> None:
    """Print one paragraph."""
    print(textwrap.fill(" ".join(text.split()), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT), flush=True)


def heading(text: str) -> None:
    """Begin a section."""
    print(f"\n{text}", flush=True)


class Tour:
    """Shows what the daemon does, and raises DemoFailed when it does something else."""

    def __init__(self, socket: Path, destination: Destination) -> None:
        self._environment: Mapping[str, str] = {**os.environ, "KURIR_SOCKET": os.fspath(socket), "COLUMNS": "110"}
        self._destination = destination

    async def take(self) -> None:
        """Go through all of it; a few seconds."""
        before = len(await self._destination.received())
        await self._delivered()
        await self._unsteady()
        await self._refused()
        await self._offline()
        await self._balance(before)

    async def follow(self) -> None:
        """Print what happens from now on, until cancelled."""
        process = await self._start("events", output=None)
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await asyncio.shield(process.wait())

    async def _delivered(self) -> None:
        heading("1. A job is delivered")
        say("A program hands a job over. The answer, the job's id, comes once the job is on the disk.")
        job = await self._submit("orders", '{"id": 1}')
        await self._show("wait", job, "--timeout", "20s")

    async def _unsteady(self) -> None:
        heading("2. The server is unsteady: it answers 503 twice")
        say("A failure that may pass is tried again after a growing pause, always with the same bytes and key.")
        job = await self._submit("unsteady", '{"id": 2}')
        await self._show("wait", job, "--timeout", "20s")
        await self._show("show", job)

    async def _refused(self) -> None:
        heading("3. The server refuses: 422")
        say(
            "Repeating it would change nothing, so the job becomes a dead letter: kept, with the server's words, until "
            "a person mends, resends or discards it. It delays no other job. Exit code 1 says so to scripts."
        )
        job = await self._submit("refused", '{"id": 3}')
        await self._show("wait", job, "--timeout", "20s", expect=1)
        await self._show("dead", "list")

    async def _offline(self) -> None:
        heading("4. The server is gone, and comes back")
        say("The receiver is switched off now. Jobs are accepted as ever, and wait. Exit code 75: still waiting.")
        await self._destination.vanish()
        jobs = [await self._submit("orders", f'{{"id": {number}}}') for number in range(4, 4 + _OFFLINE_JOBS)]
        await self._show("wait", *jobs, "--timeout", "2s", expect=75)
        await self._show("why", jobs[-1])
        await self._show("list", "--state", "pending", "--limit", "3")
        print()
        say("The receiver is switched on again. A probe would find out by itself within seconds; flush asks at once.")
        await self._destination.appear()
        await self._show("flush")
        await self._show("wait", *jobs, "--timeout", "20s")

    async def _balance(self, before: int) -> None:
        heading("What the receiver has got")
        received = (await self._destination.received())[before:]
        for thing in received:
            say(f"{thing['method']} {thing['target']}  {thing['bytes']} bytes  key {thing['idempotency_key']}")
        expected = 2 + _OFFLINE_JOBS
        if len(received) != expected or len({thing["idempotency_key"] for thing in received}) != expected:
            raise DemoFailed(f"{expected} different jobs should have arrived, but these are {len(received)}")
        say(f"{expected} jobs, each exactly once.")

    async def _submit(self, *arguments: str) -> str:
        return (await self._show("submit", *arguments)).strip()

    async def _show(self, *arguments: str, expect: int = 0) -> str:
        """Print a command, run it, print what it printed. Raises DemoFailed when its exit code is not as expected."""
        print(f"\n{_INDENT}$ {shlex.join(('kurirctl', *arguments))}", flush=True)
        process = await self._start(*arguments, output=asyncio.subprocess.PIPE)
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        text = output.decode(errors="replace")
        print(textwrap.indent(text.rstrip("\n"), _INDENT), flush=True)
        if process.returncode != expect:
            raise DemoFailed(f"kurirctl {arguments[0]} ended with exit code {process.returncode} in place of {expect}")
        return text

    async def _start(self, *arguments: str, output: int | None) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kurir.cli", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else asyncio.subprocess.STDOUT,
            env=self._environment,
        )
