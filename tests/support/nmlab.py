"""A real NetworkManager on a bus of its own, in network namespaces of its own: cable, DHCP server, captive portal.

    with NetworkLab() as lab:
        ... lab.address is the bus, lab.edge the namespace of the device, lab.router that of its network

Needs root and the packages that tests/lab/install-packages.sh installs; `missing()` says which. Nothing outside of the
namespaces and the temporary folder is touched, and only processes that were started here are ended.

With /sys mounted read-only NetworkManager takes the machine for a container and waits for no udev.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from support.libraries import Library

PROGRAMS = ("ip", "nft", "unshare", "NetworkManager", "nmcli", "dnsmasq", "dbus-daemon")
SYSTEM_PYTHON = "/usr/bin/python3"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_numbers = itertools.count()

BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>{address}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/>
<allow send_requested_reply="true" send_type="method_return"/><allow send_requested_reply="true" send_type="error"/>
<allow receive_type="method_call"/><allow receive_type="method_return"/><allow receive_type="error"/>
<allow receive_type="signal"/></policy></busconfig>
"""

MANAGER_CONFIG = """[main]
plugins=keyfile
dns=none
rc-manager=unmanaged
dhcp=internal
auth-polkit=false
{connectivity}
[device]
match-device=*
managed=1
{carrier}
"""

PORTAL = """
import http.server, pathlib, sys, time
ADDRESS, MODE = sys.argv[1], pathlib.Path(sys.argv[2])
class Portal(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        mode, status, body = MODE.read_text().strip(), 200, b"NetworkManager is online"
        if mode == "hang":
            time.sleep(60)
            return
        if mode == "portal":
            status, body = 302, b""
        elif mode == "wrong":
            body = b"<html>please log in</html>"
        elif mode == "error":
            status, body = 503, b"no"
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"http://{ADDRESS}:8080/login")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer((ADDRESS, 8080), Portal).serve_forever()
"""


@functools.cache
def missing() -> str | None:
    """Why a lab cannot be built on this machine, in one line; None if it can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if absent:
        return f"needs {', '.join(absent)}: make lab-packages"
    probe = f"kurir-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces are refused: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


@functools.cache
def missing_mocks() -> str | None:
    """Why mock services cannot run here; None if they can."""
    found = subprocess.run([SYSTEM_PYTHON, "-c", "import dbusmock"], capture_output=True, check=False)
    return None if found.returncode == 0 else "needs python3-dbusmock: make lab-packages"


def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait for something that another process does; for the steps of a set-up, where no event tells."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {condition}")
        time.sleep(0.01)


def system_environment(**more: str) -> dict[str, str]:
    """What a program of the system should see: nothing of the virtual environment that runs the tests."""
    return {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **more}


class PrivateBus:
    """A system bus of its own on a socket in a folder, and the services on it that this starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "bus.sock"
        self.address = f"unix:path={self.socket}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.start_bus()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._processes)):
            self.stop(name)

    def start_bus(self) -> None:
        config = self.folder / "bus.conf"
        config.write_text(BUS_CONFIG.format(address=self.address), encoding="utf-8")
        self.socket.unlink(missing_ok=True)
        self.start("dbus", ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"])
        until(self.socket.exists)

    def start_mock(self, template: str) -> None:
        """A mock service of python-dbusmock, from the system's packages."""
        self.start(f"mock {template}", [SYSTEM_PYTHON, "-m", "dbusmock", "--system", "-t", template])

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name.replace(' ', '-')}.log").open("ab") as log:
            environment = system_environment(DBUS_SYSTEM_BUS_ADDRESS=self.address)
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._processes[name] = process
        return process

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a process that was started here, without a chance to say good-bye."""
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(10)

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

    def log(self, name: str) -> str:
        return (self.folder / f"{name.replace(' ', '-')}.log").read_text(errors="replace")


class NetworkLab(PrivateBus):
    """The device's namespace with NetworkManager, and the namespace of its network with DHCP server and portal.

    `interval` is that of NetworkManager's connectivity check, None for no check; `carrier_wait_ms` None leaves what
    devices have (6 s). `logind` puts a mock login manager on the bus before NetworkManager starts.
    """

    def __init__(
        self,
        *,
        interval: int | None = 5,
        carrier_wait_ms: int | None = 200,
        metered: bool = False,
        logind: bool = False,
    ) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="kurir-nm-")))
        number = next(_numbers)
        self.edge = f"kurir-edge-{os.getpid()}-{number}"
        self.router = f"kurir-router-{os.getpid()}-{number}"
        self.subnet = f"10.{64 + os.getpid() % 128}.{number % 256}"
        self.gateway = f"{self.subnet}.1"
        self._interval = interval
        self._carrier_wait_ms = carrier_wait_ms
        self._metered = metered
        self._logind = logind

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for namespace in (self.edge, self.router):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _build(self) -> None:
        for namespace in (self.edge, self.router):
            self.ip("netns", "add", namespace)
            self.ip("-n", namespace, "link", "set", "lo", "up")
        # The address sits on a bridge: an end of a cable that is made anew loses its own.
        # A MAC of its own, or it takes that of a port and changes it when that is unplugged.
        self.ip("-n", self.router, "link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")
        self.ip("-n", self.router, "addr", "add", f"{self.gateway}/24", "dev", "br0")
        self.ip("-n", self.router, "link", "set", "br0", "up")
        self.plug()
        self.mode("full")
        dhcp = [
            *("dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--pid-file=", "--port=0", "--no-ping"),
            *("--interface=br0", "--bind-interfaces", "--dhcp-authoritative", "--leasefile-ro"),
            *(f"--dhcp-range={self.subnet}.50,{self.subnet}.99,2m", f"--dhcp-option=3,{self.gateway}"),
        ]
        if self._metered:
            dhcp.append("--dhcp-option-force=43,ANDROID_METERED")
        self.start("dnsmasq", self.in_router(dhcp))
        self.start_check_server()
        if self._logind:
            self.start_mock("logind")
            until(lambda: "org.freedesktop.login1" in self.names())
        self.start_manager()

    def start_check_server(self) -> None:
        """The server that NetworkManager asks whether this is the Internet; `mode` is what it answers."""
        script = self.folder / "portal.py"
        script.write_text(PORTAL, encoding="utf-8")
        self.start("portal", self.in_router([SYSTEM_PYTHON, str(script), self.gateway, str(self.folder / "mode")]))

    def names(self) -> str:
        """What is on the bus; the question itself comes and goes as a client."""
        question = ["dbus-send", f"--bus={self.address}", "--dest=org.freedesktop.DBus", "--print-reply"]
        question += ["/org/freedesktop/DBus", "org.freedesktop.DBus.ListNames"]
        return subprocess.run(question, capture_output=True, text=True, check=False).stdout

    def manager_config(self) -> str:
        """How NetworkManager is to be configured."""
        check = "[connectivity]\nenabled=false"
        if self._interval is not None:
            check = (
                f"[connectivity]\nenabled=true\nuri=http://{self.gateway}:8080/check\n"
                f"response=NetworkManager is online\ninterval={self._interval}"
            )
        carrier = "" if self._carrier_wait_ms is None else f"carrier-wait-timeout={self._carrier_wait_ms}"
        return MANAGER_CONFIG.format(connectivity=check, carrier=carrier)

    def start_manager(self) -> None:
        config = self.folder / "nm.conf"
        config.write_text(self.manager_config(), encoding="utf-8")
        run = (
            "mount -o remount,ro /sys; for d in /run /var/lib/NetworkManager /etc/NetworkManager; do "
            'mount -t tmpfs tmpfs $d; done; exec NetworkManager --debug --config="$0" '
            "--config-dir=/nonexistent --system-config-dir=/nonexistent"
        )
        self.start("nm", self.in_edge(["unshare", "-m", "sh", "-c", run, str(config)]))

    def in_edge(self, command: list[str]) -> list[str]:
        """The command, to be run where the device is."""
        return ["ip", "netns", "exec", self.edge, *command]

    def in_router(self, command: list[str]) -> list[str]:
        """The command, to be run where its network is."""
        return ["ip", "netns", "exec", self.router, *command]

    def python_in_edge(self, *arguments: str, library: Library = Library.SDBUS) -> subprocess.Popen[str]:
        """The Python of the tests, in the device's namespace and on its bus, spoken to through the library."""
        environment = os.environ | {"DBUS_SYSTEM_BUS_ADDRESS": self.address}
        environment |= library.environ(Path(__file__).parents[1])
        command = self.in_edge([sys.executable, *arguments])
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def mode(self, name: str) -> None:
        """What the check server answers from now on: full, portal, wrong, error or hang."""
        (self.folder / "mode").write_text(name)

    def carrier(self, state: str) -> None:
        """Switch the far end of the cable up or down."""
        self.ip("-n", self.router, "link", "set", "lan0", state)

    def unplug(self) -> None:
        """Take the network card away."""
        self.ip("-n", self.edge, "link", "del", "wan0")

    def plug(self) -> None:
        """Put a network card in, with a cable to the router."""
        self.ip(
            *("link", "add", "name", "wan0", "netns", self.edge, "type", "veth"),
            *("peer", "name", "lan0", "netns", self.router),
        )
        self.ip("-n", self.router, "link", "set", "lan0", "master", "br0", "up")
        self.ip("-n", self.edge, "link", "set", "wan0", "up")

    def drop_checks(self) -> None:
        """Let the router swallow every request to the check server."""
        rules = (
            "add table inet f; add chain inet f in { type filter hook input priority 0; }; "
            "add rule inet f in tcp dport 8080 drop"
        )
        subprocess.run(self.in_router(["nft", rules]), check=True, capture_output=True)

    def refuse_checks(self) -> None:
        """End the check server: its port answers with a reset."""
        self.kill("portal")

    def nmcli(self, *arguments: str) -> str:
        environment = system_environment(DBUS_SYSTEM_BUS_ADDRESS=self.address)
        done = subprocess.run(
            self.in_edge(["nmcli", *arguments]), env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def ip(self, *arguments: str) -> None:
        """Run ip(8), which may have -n NAMESPACE."""
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
