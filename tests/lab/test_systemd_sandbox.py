"""The sandbox of the service on Debian 12 and 13: how tight it is, and that all of kurird works in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trustme
from installed import SETTINGS, SHARED, Device
from lab_processes import until

from kurir.system.clock_sync import kernel_synchronised
from support.daemon import merged

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

NM = "org.freedesktop.NetworkManager"
HTTPS = """
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print("over TLS:", self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(("127.0.0.1", 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
server.socket = context.wrap_socket(server.socket, server_side=True)
print("ready", flush=True)
server.serve_forever()
"""

# What can be done where the daemon is, asked by a program in its place.
PROBE = """
import asyncio, ctypes, json, os, socket, sys, time
from pathlib import Path
from kurir.system.clock_sync import has_battery_clock, kernel_synchronised
from kurir.system.dbus.system_bus import SystemBus
from kurir.system.networkmanager_facts import NAME, ROOT
from kurir.system.timedate1 import ntp_synchronised

def refused(act):
    try:
        act()
    except OSError as fault:
        return fault.strerror
    return None

def system_call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def set_tick():
    timex = bytearray(512)
    timex[:4] = (0x4000).to_bytes(4, sys.byteorder)  # ADJ_TICK, to what it is
    timex[80:88] = (10000).to_bytes(8, sys.byteorder)
    system_call("adjtimex", (ctypes.c_char * 512).from_buffer(timex))

async def ask(bus):
    async def listen(_):
        await asyncio.Event().wait()
    attending = asyncio.create_task(bus.attend(listen, lambda why: None))
    async with asyncio.timeout(20):
        while bus.connection is None:
            await asyncio.sleep(0.01)
        answer = await bus.connection.call(NAME, ROOT, NAME, "CheckConnectivity")
    found = answer, await ntp_synchronised(bus)
    attending.cancel()
    return found

connectivity, ntp = asyncio.run(ask(SystemBus()))
print(json.dumps({
    "synchronised": kernel_synchronised(),
    "battery clock": has_battery_clock(),
    "connectivity": connectivity,
    "ntp": ntp,
    "set clock": refused(lambda: time.clock_settime(time.CLOCK_REALTIME, time.time())),
    "set tick": refused(set_tick),
    "write /etc": refused(lambda: Path("/etc/probe").write_text("x")),
    "write /usr": refused(lambda: Path("/usr/probe").write_text("x")),
    "write /run": refused(lambda: Path("/run/kurir/probe").write_text("x")),
    "read home": refused(lambda: list(Path("/home").iterdir())) or list(map(str, Path("/home").iterdir())),
    "read shadow": refused(lambda: Path("/etc/shadow").read_text()),
    "namespace": refused(lambda: system_call("unshare", 0x10000000)),
    "mount": refused(lambda: system_call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
    "packets": refused(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "others": [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()],
    "devices": sorted(os.listdir("/dev")),
}))
"""


def test_the_score_is_as_promised_in_a_running_system(debian: Device) -> None:
    scored = debian.box.run("systemd-analyze", "security", "--threshold=15", "kurird.service", check=False)
    overall = re.search(r"Overall exposure level for kurird.service: (\d\.\d)", scored.stdout)
    assert overall is not None
    print(f"{debian.system}: {overall[1]}")
    assert scored.returncode == 0, overall[0]


def test_systemd_finds_nothing_wrong_with_the_installed_units(debian: Device) -> None:
    units = debian.box.says("sh", "-c", "cd /usr/lib/systemd/system && echo kurird*").split()
    assert {"kurird.service", "kurird.socket"} <= set(units)
    found = [debian.box.run("systemd-analyze", "verify", "--man=no", *units)]
    relay = "kurir-relay@home-alice-app.db.service"
    environment = {"XDG_RUNTIME_DIR": "/run"}
    found.append(debian.box.run("systemd-analyze", "--user", "verify", "--man=no", relay, env=environment))
    assert [(one.stdout, one.stderr) for one in found] == [("", ""), ("", "")]


@pytest.fixture(scope="module")
def probed(debian: Device) -> Any:
    """The answers of the probe, which runs in the unit of the daemon, but for the notification."""
    (debian.shared / "probe.py").write_text(PROBE)
    unit = debian.box.says("cat", "/usr/lib/systemd/system/kurird.service")
    unit = re.sub(r"(?m)^ExecStart=.*", f"ExecStart=/usr/bin/python3 {SHARED}/probe.py", unit)
    unit = re.sub(r"(?m)^(Restart|WatchdogSec|ExecReload)=.*\n", "", unit).replace("Type=notify", "Type=oneshot")
    unit = unit.replace("StateDirectory=kurir", "StateDirectory=probe")
    environment = "Environment=PYTHONPATH=/usr/lib/kurird:/usr/lib/kurird/vendor"
    output = f"StandardOutput=file:{SHARED}/probe.json"
    debian.box.write(
        "/run/systemd/system/probe.service", unit.replace("[Service]", f"[Service]\n{environment}\n{output}")
    )
    debian.systemctl("daemon-reload")
    debian.systemctl("start", "NetworkManager.service")
    debian.systemctl("start", "probe.service")
    return json.loads((debian.shared / "probe.json").read_text())


def test_the_kernel_says_there_whether_the_clock_is_synchronised_and_lets_nobody_set_it(
    debian: Device, probed: dict[str, Any]
) -> None:
    assert probed["synchronised"] is kernel_synchronised()
    assert probed["ntp"] is not None
    assert probed["set clock"] == probed["set tick"] == "Operation not permitted"


def test_networkmanager_checks_the_connectivity_for_it(probed: dict[str, Any]) -> None:
    assert 0 <= probed["connectivity"] <= 4, probed


def test_it_reaches_nothing_that_it_does_not_need(debian: Device, probed: dict[str, Any]) -> None:
    read_only = "Read-only file system"
    assert (probed["write /etc"], probed["write /usr"], probed["write /run"]) == (read_only, read_only, read_only)
    assert probed["read home"] in ([], "Permission denied")
    assert probed["read shadow"] == "Permission denied"
    assert probed["namespace"] == probed["mount"] == "Operation not permitted"
    assert probed["packets"] == "Address family not supported by protocol"
    assert set(probed["others"]) <= {str(debian.main_pid)}  # of the same user
    assert {"sda", "mem", "kmsg"}.isdisjoint(probed["devices"])


def test_polkit_lets_it_ask_for_a_check_and_the_bus_for_nothing_else(debian: Device) -> None:
    call = ("busctl", "--system", "call", NM, "/org/freedesktop/NetworkManager", NM)
    checked = debian.box.says(*call, "CheckConnectivity", user="kurird")
    assert re.fullmatch(r"u [0-4]", checked)
    for refused in (
        ("Enable", "b", "false"),
        ("Sleep", "b", "true"),
        ("Reload", "u", "0"),
        ("DeactivateConnection", "o", "/"),
    ):
        done = debian.box.run(*call, *refused, user="kurird", check=False)
        assert done.returncode != 0
        assert "denied" in done.stderr.lower(), done.stderr

    def authorized(action: str) -> bool:
        asked = ("pkcheck", "--action-id", f"{NM}.{action}", "--process", str(debian.main_pid))
        done = debian.box.run(*asked, check=False)
        assert done.returncode in (0, 1, 2, 3), done.stderr
        return done.returncode == 0

    assert authorized("network-control")
    for action in ("enable-disable-network", "settings.modify.system", "settings.modify.own", "reload", "sleep-wake"):
        assert not authorized(action), action
    # Others are asked for a password, as before.
    assert debian.box.run(*call, "Enable", "b", "false", user="bob", check=False).returncode != 0


def test_tls_metrics_and_the_bus_work_in_it_at_once(debian: Device) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    debian.box.write("/etc/kurir/ca.pem", authority.cert_pem.bytes().decode())
    pem = certificate.private_key_and_cert_chain_pem.bytes().decode()
    debian.box.write("/srv/server.pem", pem, mode=0o600)
    debian.run_service("https", "python3", "-c", HTTPS, "/srv/server.pem")
    said = ("journalctl", "-o", "cat", "-u", "https")
    until(lambda: "ready" in debian.box.says(*said), what="the server")
    changes = {
        "network": {"source": "auto"},
        "power": {"source": "auto"},
        "destinations": {"api": {"url": "https://127.0.0.1:8443", "tls": {"ca": "/etc/kurir/ca.pem"}}},
    }
    debian.configure(merged(SETTINGS, changes))
    job = debian.submit("alice", data='{"by": "TLS"}')
    assert debian.delivered(job)
    assert 'over TLS: {"by": "TLS"}' in debian.box.says(*said)

    until(lambda: debian.client.status()["network"]["source"] == "networkmanager", what="NetworkManager is heard")
    status = debian.client.status()
    assert status["degraded"] == []
    assert status["power"]["source"] != "upower"
    assert status["clock"]["trusted"] is kernel_synchronised()
    assert status["store"]["disk_free"] > 0
    scraped = debian.box.says("curl", "-sS", "--fail", "http://127.0.0.1:9756/metrics")
    assert 'kurir_finished_total{state="done",topic="orders"}' in scraped
    assert f"kurir_clock_synced {float(kernel_synchronised() or False)}" in scraped
    assert debian.show("NRestarts") == "0"
    complaints = [line for line in debian.journal("-n", "200") if re.search(r'"level":"(warning|error)"', line)]
    assert complaints == []
