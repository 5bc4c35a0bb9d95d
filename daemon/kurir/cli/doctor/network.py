"""The network as NetworkManager sees it, and the bus by which it is asked."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping

from kurir.cli.doctor.facts import Facts
from kurir.cli.doctor.finding import Finding, note, ok, wrong
from kurir.cli.doctor.services import service
from kurir.cli.overview import mapping
from kurir.cli.printable import printable

BUS, NETWORK = "d-bus", "network"
ANSWER_IN = 3.0  # seconds
_PATH = "/run/dbus/system_bus_socket"
_MANAGER = "org.freedesktop.NetworkManager"
_CONNECTIVITY = {"0": "unknown", "1": "none", "2": "portal", "3": "limited", "4": "full"}
_PROPERTY = re.compile(r'string "(\w+)"\s+variant\s+(?:boolean|uint32) (\w+)')
CHECKING = (
    "a [connectivity] section with uri= in NetworkManager.conf (Debian: network-manager-config-connectivity-debian)"
)


def bus() -> tuple[Finding, bool]:
    """Whether the system bus can be reached."""
    path = _bus_path()
    if path is None:
        return note(BUS, "DBUS_SYSTEM_BUS_ADDRESS names no socket of this machine; it was not tried"), False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_IN)
        try:
            connection.connect(path)
        except OSError as error:
            words = f"{path}: {error.strerror or error}; kurird works without it, with what the kernel says"
            return note(BUS, words, "install and start dbus to have NetworkManager, UPower and logind heard"), False
    return ok(BUS, f"{path} answers"), True


def network(facts: Facts, *, bus_answers: bool) -> Iterator[Finding]:
    """What the daemon knows of the network, and whether it could know more."""
    if facts.network_source == "none":
        yield ok(NETWORK, "NetworkManager is not asked, as network.source = none says")
        return
    seen = mapping((facts.status or {}).get("network"))
    manager = _manager() if bus_answers else None
    if manager is None:
        level = wrong if facts.network_source == "networkmanager" else note
        cure = f"sudo {service('start', 'NetworkManager')}; without it kurird works with what the kernel says"
        yield level(NETWORK, "NetworkManager does not answer on the bus", cure)
        return
    if facts.status is not None and seen.get("source") != "networkmanager":
        cure = "look into the daemon's log for why (polkit, a sandbox), and restart it"
        yield wrong(NETWORK, f"NetworkManager runs, but kurird does not hear it: {printable(seen.get('detail'))}", cure)
    connectivity = str(seen.get("connectivity") or _CONNECTIVITY.get(manager.get("Connectivity", ""), "unknown"))
    yield _connectivity(connectivity)
    if manager.get("ConnectivityCheckAvailable") != "true" or manager.get("ConnectivityCheckEnabled") != "true":
        yield note(
            NETWORK, "NetworkManager does not check connectivity: a captive portal looks like the Internet", CHECKING
        )


def _connectivity(connectivity: str) -> Finding:
    words = f"NetworkManager answers; connectivity {printable(connectivity)}"
    if connectivity == "portal":
        return note(NETWORK, words, "open a browser and log in to the portal: jobs wait until then")
    if connectivity in ("none", "limited"):
        return note(NETWORK, words, "nothing: jobs wait, and go when there is a network")
    return ok(NETWORK, words)


def _bus_path() -> str | None:
    address = os.environ.get("DBUS_SYSTEM_BUS_ADDRESS")
    if not address:
        return _PATH
    found = re.search(r"unix:(?:[^;]*,)?path=([^,;]+)", address)
    return found[1] if found else None


def _manager() -> Mapping[str, str] | None:
    """NetworkManager's own properties; None if it does not answer. Asked by dbus-send, which comes with the bus."""
    program = shutil.which("dbus-send")
    if program is None:
        return None
    ask = ["--system", "--print-reply", f"--reply-timeout={int(ANSWER_IN * 1000)}", f"--dest={_MANAGER}"]
    what = ["/org/freedesktop/NetworkManager", "org.freedesktop.DBus.Properties.GetAll", f"string:{_MANAGER}"]
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            [program, *ask, *what], capture_output=True, text=True, timeout=2 * ANSWER_IN, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return dict(_PROPERTY.findall(done.stdout)) if done.returncode == 0 else None
