"""Processes of other users, who ask over the socket what a test wants to know."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

OWNER, OTHER, MEMBER = 61_001, 61_002, 61_003
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="other users can only be made by root, with setpriv"
)

# One process, many requests: lines of JSON in, lines of JSON out. No import of ours: the checkout may be unreadable.
PROGRAM = """
import http.client, json, socket, sys
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])
for line in sys.stdin:
    method, target, body, *kind = json.loads(line)
    connection = Connection("kurir", timeout=20)
    follows = method == "GET" and bool(kind)
    content = None if body is None or follows else body if kind else json.dumps(body)
    connection.request(method, target, content, {"Content-Type": kind[0]} if kind and not follows else {})
    answer = connection.getresponse()
    if follows:
        print(json.dumps([answer.status, ""]), flush=True)  # connected: nothing is missed from now on
        heard = ""
        while body not in heard:
            heard += answer.readline().decode()
        connection.close()
        print(json.dumps([answer.status, heard]), flush=True)
        continue
    content = b"" if target.startswith("/v1/events") and answer.status == 200 else answer.read()
    connection.close()
    print(json.dumps([answer.status, content.decode()]), flush=True)
"""


class User:
    """A process of another user that asks what a test wants to know."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def of(cls, path: Path, uid: int, gid: int | None = None, groups: tuple[int, ...] = ()) -> User:
        supplementary = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
        program = [
            "setpriv", f"--reuid={uid}", f"--regid={gid or uid}", supplementary, "/usr/bin/env", "python3", "-c",
            PROGRAM, str(path),
        ]  # fmt: skip
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe, cwd="/", limit=2**24))

    async def ask(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        status, content = await self._say(method, target, body)
        of_lines = "}\n{" in content
        return status, json.loads(content) if content.startswith(("{", "[")) and not of_lines else content

    async def ask_raw(self, method: str, target: str, body: str, kind: str) -> tuple[int, str]:
        """Say a text of a media type; the answer as it is."""
        return await self._say(method, target, body, kind)

    async def follow(self, until: str) -> None:
        """Follow events from now on, until one of them holds this text."""
        assert (await self._say("GET", "/v1/events", until, "text/event-stream"))[0] == 200

    async def followed(self) -> str:
        """What was said until then."""
        return (await self._heard())[1]

    async def _say(self, *said: Any) -> tuple[int, str]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said).encode() + b"\n")
        return await self._heard()

    async def _heard(self) -> tuple[int, str]:
        assert self._process.stdout is not None
        async with asyncio.timeout(20):
            line = await self._process.stdout.readline()
        assert line, "the user's process has ended"
        status, content = json.loads(line)
        return status, content

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
