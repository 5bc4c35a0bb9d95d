"""The operator's program: what it is told, what it may take, and how it ends. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from kurir.system.command import LONGEST, tell

ENVIRON = {"PATH": os.environ["PATH"], "WORD": "of ours"}


def script(folder: Path, text: str) -> tuple[str, ...]:
    file = folder / "alert"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return (str(file),)


async def run(command: tuple[str, ...], content: bytes = b"{}", limit: float = 20.0) -> str | None:
    return await tell(command, content, limit=limit, environ=ENVIRON)


async def gone(pid: int) -> None:
    """Wait until a process that may be somebody else's child has ended."""
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            await asyncio.sleep(0.01)


async def test_it_hears_what_it_is_told_without_a_shell_and_with_the_environment_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    [file] = script(
        tmp_path, f'cat > {tmp_path}/in; env > {tmp_path}/env; pwd > {tmp_path}/pwd; echo "$1" > {tmp_path}/arg'
    )
    assert await run((file, "$(reboot) *"), b"x" * LONGEST) is None
    assert (tmp_path / "in").read_bytes() == b"x" * LONGEST
    assert (tmp_path / "arg").read_text() == "$(reboot) *\n"
    assert (tmp_path / "pwd").read_text() == "/\n"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "WORD"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo '  no\n mail' >&2; exit 3", "it ended with 3: no mail"),
        ("exit 1", "it ended with 1"),
        ("kill -TERM $$", "signal 15 ended it"),
        ("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 2", f"it ended with 2: {'x' * 500}"),
        ("echo said on standard output", None),
        ("exec 0<&-; exit 0", None),
    ],
)
async def test_it_says_why_it_failed(tmp_path: Path, text: str, why: str | None) -> None:
    assert await run(script(tmp_path, text), b"y" * LONGEST) == why


async def test_one_that_cannot_be_started_is_a_failure_like_any_other(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert await run((str(tmp_path / "none"),)) == f"cannot start {tmp_path / 'none'}: No such file or directory"
    assert await run((str(plain),)) == f"cannot start {plain}: Permission denied"


async def test_when_its_time_is_over_it_is_killed_with_its_group(tmp_path: Path) -> None:
    command = script(tmp_path, f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/child; wait")
    assert await run(command, limit=0.5) == "it was killed after 0.5 s"
    await gone(int((tmp_path / "child").read_text()))


async def test_when_its_caller_is_cancelled_it_is_killed_with_its_group_and_reaped(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = script(tmp_path, f"sleep 1000 & echo $$ $! > {fifo}; wait")
    task = asyncio.create_task(run(command, limit=1000))
    leader, child = (await asyncio.to_thread(fifo.read_text)).split()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{leader}").exists(), "a zombie is left"
    await gone(int(child))


async def test_one_that_is_cancelled_while_it_starts_is_killed_with_its_group_too(tmp_path: Path) -> None:
    command = script(
        tmp_path, f"sleep 1000 & echo $! > {tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; wait"
    )
    task = asyncio.create_task(run(command, limit=1000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the process exists, and asyncio has not said so yet
    while not (tmp_path / "child").exists():
        os.sched_yield()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(int((tmp_path / "child").read_text()))


async def test_what_it_leaves_in_the_background_keeps_nobody_waiting(tmp_path: Path) -> None:
    command = script(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/child; exit 0")
    assert await run(command) is None
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


async def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    command = script(tmp_path, f"ls -l /proc/self/fd > {tmp_path}/fds")
    await run(command)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await run(command)
        await run((str(tmp_path / "none"),))
    assert len(os.listdir("/proc/self/fd")) == before
    inherited = [line for line in (tmp_path / "fds").read_text().splitlines() if "->" in line]
    assert len([line for line in inherited if "/proc/" not in line]) <= 3, inherited
