"""The daemon of the demo: a real kurird, with a configuration that is impatient enough to be watched."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kurir.receiver.demo.failure import DemoFailed

PATIENCE = 30.0
"""Seconds that the start and the end of the daemon may take."""

LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path (unix(7))."""

_CONFIGURATION = """\
[daemon]
state_dir = {state}
runtime_dir = {run}

[access]                # jobs with their own URL may go to this computer: only a demo wants that
adhoc = "any"
adhoc_deny = []

[metrics]               # no TCP port; the socket answers GET /metrics
listen = ""

[network]               # do not ask NetworkManager: the demo only uses the loopback interface
source = "none"

[destinations.receiver]
url = {url}
retry = {{ base = "500ms", cap = "2s" }}                                  # impatient, for the demo
breaker = {{ failures = 3, probe_every = "1s", probe_cap = "3s" }}

[topics.orders]
destination = "receiver"
path = "/orders"

[topics.unsteady]       # the receiver answers 503 twice there
destination = "receiver"
path = "/unsteady"

[topics.refused]        # the receiver answers 422 there
destination = "receiver"
path = "/refused"

[topics.thumbs]         # for programs on this computer: kurirctl work thumbs -- COMMAND
consumer = "local"
"""

_FROM_A_SUPERVISOR = ("WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon."""

    socket: Path
    log: Path
    process: asyncio.subprocess.Process

    async def ended(self) -> None:
        """Wait for an end that nobody asked for, and raise DemoFailed."""
        code = await self.process.wait()
        raise DemoFailed(f"kurird has ended with exit code {code}; the end of its log:\n{_tail(self.log)}")


@asynccontextmanager
async def running(folder: Path, url: str) -> AsyncIterator[Daemon]:
    """Run a daemon in `folder` that delivers to `url`, and stop it at the end. Raises DemoFailed."""
    run, log, config = folder / "run", folder / "kurird.log", folder / "kurird.toml"
    control = run / "control.sock"
    if len(os.fsencode(control)) > LONGEST_SOCKET:
        raise DemoFailed(f"the path {control} is too long for a socket; set TMPDIR=/tmp or give a shorter --folder")
    for place in (folder / "state", run):
        place.mkdir(mode=0o700, exist_ok=True)
    values = {"state": folder / "state", "run": run, "url": url}
    config.write_text(_CONFIGURATION.format_map({name: json.dumps(str(value)) for name, value in values.items()}))
    config.chmod(0o600)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as news, log.open("ab") as output:
        address = run / "ready"
        address.unlink(missing_ok=True)
        news.bind(os.fspath(address))
        environment = {name: value for name, value in os.environ.items() if name not in _FROM_A_SUPERVISOR}
        # A session of its own: Ctrl-C is for the demo, which then stops the daemon in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kurir", "--config", os.fspath(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment, "NOTIFY_SOCKET": os.fspath(address)},
            start_new_session=True,
        )
        try:
            daemon = Daemon(control, log, process)
            await _until_ready(daemon, news)
            yield daemon
        finally:
            await asyncio.shield(_stop(process))


async def _until_ready(daemon: Daemon, news: socket.socket) -> None:
    """Wait until the daemon says, as it would to systemd, that it accepts jobs."""
    ready = asyncio.create_task(_ready(news))
    ended = asyncio.create_task(daemon.ended())
    try:
        done, _ = await asyncio.wait({ready, ended}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise DemoFailed(f"kurird is not ready after {PATIENCE:.0f} s; the end of its log:\n{_tail(daemon.log)}")
        if ended in done:
            ended.result()
    finally:
        ready.cancel()
        ended.cancel()


async def _ready(news: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while b"READY=1" not in await loop.sock_recv(news, 4096):
        pass


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), PATIENCE)
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-10:])
