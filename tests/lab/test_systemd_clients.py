"""The activated socket and its clients under the systemd of Debian 12 and 13: who waits, who is who, who knows what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from installed import SETTINGS, SOCKET, USERS, Device, decode
from lab_processes import until

from support.daemon import merged

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

AT_ONCE = 8


@pytest.fixture(scope="module", autouse=True)
def receiver(debian: Device) -> None:
    debian.start_receiver()


def test_submits_before_the_start_wait_and_are_served_and_so_is_who_comes_later(debian: Device) -> None:
    inode = debian.box.says("stat", "-c", "%i", SOCKET)
    for _ in range(2):
        debian.systemctl("stop", "kurird.service")
        assert debian.main_pid == 0
        assert debian.systemctl("is-active", "kurird.socket") == "active"
        with ThreadPoolExecutor(AT_ONCE) as pool:
            early = list(pool.map(debian.submit, USERS * (AT_ONCE // len(USERS))))
        assert debian.main_pid != 0
        second = debian.submit("alice")
        for job in (*early, second):
            assert debian.delivered(job)
    assert debian.box.says("stat", "-c", "%i", SOCKET) == inode


def test_a_system_that_boots_serves_who_comes_first(debian: Device) -> None:
    # As at a boot: the socket is there long before the service.
    debian.systemctl("stop", "kurird.service", "kurird.socket")
    assert debian.box.run("test", "-e", SOCKET, check=False).returncode == 1 or debian.main_pid == 0
    debian.systemctl("start", "kurird.socket")
    assert debian.main_pid == 0
    assert debian.delivered(debian.submit("bob"))


def test_two_users_are_two_owners(debian: Device) -> None:
    jobs = {user: debian.submit(user, data=f'{{"of": "{user}"}}') for user in USERS}
    for user, other in (USERS, USERS[::-1]):
        listed = decode(debian.box.says("kurirctl", "list", "--json", user=user))["jobs"]
        uid = int(debian.box.says("id", "-u", user))
        assert jobs[user] in {job["id"] for job in listed}
        assert {job["owner"] for job in listed} == {uid}
        assert debian.client.get(jobs[user])["owner"] == uid
        hidden = debian.box.run("kurirctl", "show", jobs[other], user=user, check=False)
        assert hidden.returncode == 65
        assert "it may belong to another user" in hidden.stderr


def test_an_administrator_is_who_is_in_the_group(debian: Device) -> None:
    refused = debian.box.run("kurirctl", "pause", "destination", "api", user="alice", check=False)
    assert refused.returncode == 77
    debian.box.run("usermod", "--append", "--groups", "kurir-admin", "bob")
    debian.box.run("kurirctl", "pause", "destination", "api", user="bob")
    debian.box.run("kurirctl", "resume", "destination", "api", user="bob")


def test_a_credential_of_systemd_is_a_secret(debian: Device) -> None:
    debian.box.write("/etc/kurir/api.token", "first-token\n", mode=0o600)
    seen = "/srv/seen"
    echo = (
        "import http.server, sys\n"
        "class Echo(http.server.BaseHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        print(self.headers['Authorization'], file=open(sys.argv[1], 'a'), flush=True)\n"
        "        self.send_response(200); self.send_header('Content-Length', '0'); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', 8100), Echo).serve_forever()\n"
    )
    debian.run_service("echo", "python3", "-c", echo, seen)
    destination = {"url": "http://127.0.0.1:8100", "headers": {"Authorization": "Bearer {secret:api-token}"}}
    secrets = {"api-token": {"credential": "api-token"}}
    debian.configure(merged(SETTINGS, {"destinations": {"api": destination}, "secrets": secrets}), restart=False)
    debian.drop_in("LoadCredential=api-token:/etc/kurir/api.token")
    assert debian.delivered(debian.submit("alice"))
    debian.box.write("/etc/kurir/api.token", "second-token\n", mode=0o600)
    debian.systemctl("restart", "kurird.service")
    assert debian.delivered(debian.submit("alice"))
    assert debian.box.says("cat", seen).splitlines() == ["Bearer first-token", "Bearer second-token"]
    assert not [line for line in debian.journal() if ("-token" in line and "first" in line) or "second-token" in line]
    debian.systemctl("stop", "echo")
    debian.configure(SETTINGS, restart=False)
    debian.drop_in()


def test_a_user_relays_an_outbox_with_the_user_service(debian: Device) -> None:
    uid = debian.box.says("id", "-u", "alice")
    debian.systemctl("start", f"user@{uid}.service")
    user = {"XDG_RUNTIME_DIR": f"/run/user/{uid}", "HOME": "/home/alice"}
    database = "/home/alice/app data.db"
    fill = (
        "import sqlite3, sys; from kurir import outbox; c = sqlite3.connect(sys.argv[1]); outbox.create(c)\n"
        "for n in range(3): outbox.enqueue(c, 'orders', {'row': n})\n"
        "c.commit()"
    )
    debian.box.run("python3", "-c", fill, database, user="alice", env={"PYTHONPATH": "/usr/lib/kurird"})
    unit = f"kurir-relay@{debian.box.says('systemd-escape', '--path', database)}.service"
    debian.box.run("systemctl", "--user", "enable", "--now", unit, user="alice", env=user)

    count = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM kurir_outbox'))"

    def left() -> int:
        return int(debian.box.says("python3", "-c", count, database, user="alice").strip("(),"))

    until(lambda: left() == 0, what="the rows are relayed")
    until(lambda: sum(b'"row"' in one.body for one in debian.received()) == 3, what="the rows are delivered")
    assert debian.box.says("systemctl", "--user", "is-active", unit, user="alice", env=user) == "active"
    # It outlives the daemon, and is started anew when it is killed.
    debian.systemctl("stop", "kurird.service")
    debian.box.run("python3", "-c", fill, database, user="alice", env={"PYTHONPATH": "/usr/lib/kurird"})
    until(lambda: left() == 0, what="the rows are relayed")
    debian.box.run("systemctl", "--user", "disable", "--now", unit, user="alice", env=user)
