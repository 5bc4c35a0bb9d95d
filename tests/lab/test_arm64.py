"""The packages for arm64: what they install starts, explains itself and delivers; an emulator runs its machine code."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from disks import run, unmount
from trees import SUITES, kept_tree, mirror

from kurir.client import Client
from support.packages import System, dependencies, package
from support.process import readable
from support.server import Reply, ThreadedServer

EMULATOR = "qemu-aarch64-static"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
ENTRY = "kurir-lab-aarch64"
# How an ELF file for aarch64 begins, and which bits of that count.
MAGIC = "7f454c460201010000000000000000000200b700"
MASK = "ffffffffffffff00fffffffffffffffffeffffff"
PATIENCE = 400.0  # seconds; the first start of Python compiles what the distribution brings, under emulation


def missing() -> str | None:
    """Why arm64 cannot be emulated here, in one line; None if it can."""
    if os.geteuid() != 0:
        return "needs root, to mount file systems and change the root"
    absent = [program for program in (EMULATOR, "mmdebstrap", "dpkg-deb") if shutil.which(program) is None]
    return f"needs {', '.join(absent)}: make lab-full installs them" if absent else None


pytestmark = [
    pytest.mark.lab_full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@contextmanager
def emulation() -> Iterator[None]:
    """Let the kernel hand files for aarch64 to the emulator. Nothing of it stays."""
    with ExitStack() as stack:
        if not (BINFMT / "register").exists():
            run("mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT)
            stack.callback(unmount, BINFMT)
        assert not (BINFMT / ENTRY).exists(), "another run is under way, or was cut off"
        magic, mask = _escaped(MAGIC), _escaped(MASK)
        # F: the emulator is opened now, so that it is there in another root too.
        (BINFMT / "register").write_text(f":{ENTRY}:M::{magic}:{mask}:{shutil.which(EMULATOR)}:F")
        stack.callback((BINFMT / ENTRY).write_text, "-1")
        yield


def _escaped(digits: str) -> str:
    return "".join(f"\\x{digits[at : at + 2]}" for at in range(0, len(digits), 2))


def foreign_tree(suite: str, packages: list[str]) -> Path:
    """The root of a Debian for arm64 with these packages unpacked, and not configured: nothing of it has run."""

    def build(root: Path) -> None:
        command = ["mmdebstrap", "--quiet", "--arch=arm64", "--variant=extract", f"--include={','.join(packages)}"]
        made = subprocess.run([*command, suite, str(root), mirror()], capture_output=True, text=True, check=False)
        assert made.returncode == 0, f"no tree of {suite} for arm64: {made.stderr[-3000:]}"

    return kept_tree(f"{suite}-arm64", {"suite": suite, "packages": packages, "recipe": 1}, build)


@contextmanager
def installed(system: System, folder: Path) -> Iterator[Path]:
    """The root of a system with the package's files in it, on a throw-away copy."""
    file = package(system, "arm64")
    needed = [name for name in dependencies(file) if not name.startswith("systemd")]
    lower = foreign_tree(SUITES[system], sorted({"bash", "coreutils", "dash", "libc6", "python3-minimal", *needed}))
    space, root = folder / "space", folder / "root"
    with ExitStack() as stack:
        for one in (space, root):
            one.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=256M,mode=0755", "tmpfs", space)
        stack.callback(unmount, space)
        for name in ("upper", "work"):
            (space / name).mkdir()
        options = f"lowerdir={lower},upperdir={space / 'upper'},workdir={space / 'work'}"
        run("mount", "-t", "overlay", "-o", options, "overlay", root)
        stack.callback(unmount, root)
        run("dpkg-deb", "--extract", file, root)
        for name, kind in (("proc", "proc"), ("dev", "devtmpfs")):
            run("mount", "-t", kind, kind, root / name)
            stack.callback(unmount, root / name)
        yield root


def inside(root: Path, *command: str) -> list[str]:
    """The command line that runs a command of the tree."""
    return ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "chroot", str(root), *command]


def says(root: Path, *command: str) -> str:
    """Run a command of the tree; what it printed."""
    done = subprocess.run(inside(root, *command), capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("system", ["debian12", "debian13"])
def test_the_package_for_arm64_starts_and_delivers(system: System, tmp_path: Path) -> None:
    with ThreadedServer() as srv, emulation(), installed(system, tmp_path) as root:
        srv.answer(Reply(200))
        assert says(root, "/usr/bin/python3", "-c", "import os; print(os.uname().machine)") == "aarch64\n"
        config = root / "etc" / "kurir" / "kurird.toml"
        config.write_text(
            f'[destinations.api]\nurl = "{srv.url}"\n[topics.orders]\ndestination = "api"\npath = "/in"\n'
            '[metrics]\nlisten = ""\n[network]\nsource = "none"\n[power]\nsource = "none"\n'
        )
        os.chown(config, 0, 0)
        for folder in ("var/lib/kurir", "run/kurir"):
            (root / folder).mkdir(parents=True, mode=0o755 if folder.startswith("run") else 0o700)
        assert "the configuration can be used" in says(root, "/usr/bin/kurird", "--check")
        assert "submit" in says(root, "/usr/bin/kurirctl", "--help")
        with running(root, tmp_path / "log") as socket:
            with Client(socket, timeout=PATIENCE) as client:
                job = client.submit("orders", {"n": 1}, idempotency_key="from-arm64")
                assert client.wait(job.id, PATIENCE).delivered
            told = says(root, "/usr/bin/kurirctl", "submit", "orders", '{"n": 2}')
            says(root, "/usr/bin/kurirctl", "wait", told.strip(), "--timeout", "60s")
        assert [request.body for request in srv.requests] == [b'{"n":1}', b'{"n": 2}']
        assert srv.requests[0].header("Idempotency-Key") == b"from-arm64"


@contextmanager
def running(root: Path, log: Path) -> Iterator[Path]:
    """The daemon of the tree, ready; its socket, as seen from here. It is stopped in order."""
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            inside(root, "/usr/bin/kurird"), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        end = os.pidfd_open(daemon.pid)
        try:
            # Through its folder's descriptor: the path of a socket is short.
            socket = root / "run" / "kurir" / "control.sock"
            short = Path(f"/proc/self/fd/{os.open(socket.parent, os.O_PATH)}") / socket.name
            waited = 0.0
            while not socket.exists():
                assert not readable([end], 0.2), log.read_text()
                waited += 0.2
                assert waited < PATIENCE, log.read_text()
            yield short
            daemon.terminate()
            assert daemon.wait(PATIENCE) == 0, log.read_text()
            os.close(int(short.parent.name))
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
            os.close(end)
