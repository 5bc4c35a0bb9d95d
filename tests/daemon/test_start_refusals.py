"""Starts that cannot be: each ends soon, with the exit code that a supervisor acts on and one line for a person."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from support import libraries
from support.daemon import PATIENCE, Daemon, Ended, MakeDaemon, run_to_end
from support.process import readable
from support.server import ThreadedServer

SOON = 10.0  # half of it is for a machine that does other things
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a folder to another user")
needs_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def _refused(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, ended.err
    assert ended.seconds < SOON
    assert "Traceback" not in ended.err
    said = [line for line in ended.err.splitlines() if line.startswith("kurird: ")]
    assert len(said) == 1, ended.err
    for word in words:
        assert word in said[0]


def test_e15_a_pipe_in_the_place_of_the_database_is_74_and_not_waited_for(make: MakeDaemon) -> None:
    daemon = make()
    daemon.state.mkdir(mode=0o700, parents=True)
    os.mkfifo(daemon.state / "queue.db")
    _refused(run_to_end(daemon), 74, "queue.db", "plain file")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[daemon\n", ("kurird.toml",)),
        ("\xff", ("kurird.toml",)),
        ('[daemon]\nstat_dir = "/x"\n', ("stat_dir", "state_dir")),
        ('[daemon]\nstop_grace = "soon"\n', ("stop_grace", "soon")),
        ("[daemon]\nstop_grace = 5\n", ("stop_grace",)),
        ('[topics.orders]\ndestination = "nowhere"\n', ("topics.orders.destination",)),
        ("[topics.orders]\n", ("orders",)),
        ("[destinations.api]\n", ("url",)),
        ('[destinations.api]\nurl = "ftp://x"\n', ("url",)),
        ('[destinations.api]\nurl = "http://x"\nheaders = { A = "{secret:none}" }\n', ("none",)),
        ('[secrets]\ntoken = { file = "/nonexistent/token" }\n', ("token", "/nonexistent/token")),
        ('[daemon]\nlog_level = "loud"\n', ("log_level",)),
        ("a" * 300_000, ("kurird.toml",)),
    ],
)
def test_e15_a_configuration_fault_is_78_and_named(make: MakeDaemon, text: str, words: tuple[str, ...]) -> None:
    daemon = make()
    daemon.config.write_bytes(text.encode("latin-1"))
    _refused(run_to_end(daemon), 78, *words)
    assert not daemon.state.exists()
    assert not daemon.socket.exists()


def test_e15_a_missing_configuration_is_78(make: MakeDaemon) -> None:
    daemon = make()
    daemon.config.unlink()
    _refused(run_to_end(daemon), 78, str(daemon.config))


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_e15_a_configuration_that_others_may_write_is_78(make: MakeDaemon, mode: int) -> None:
    daemon = make()
    daemon.config.chmod(mode)
    _refused(run_to_end(daemon), 78, str(daemon.config))


def test_e15_a_state_folder_that_is_a_file_is_74(make: MakeDaemon) -> None:
    daemon = make()
    daemon.state.write_text("")
    _refused(run_to_end(daemon), 74, str(daemon.state))


def test_e15_a_state_folder_that_others_may_write_to_is_74(make: MakeDaemon) -> None:
    daemon = make()
    daemon.state.mkdir()
    daemon.state.chmod(0o777)
    _refused(run_to_end(daemon), 74, str(daemon.state), "0777")


@needs_root
def test_e15_a_state_folder_of_another_user_is_74(make: MakeDaemon) -> None:
    daemon = make()
    daemon.state.mkdir(mode=0o700)
    os.chown(daemon.state, 12345, 12345)
    _refused(run_to_end(daemon), 74, "12345")
    assert list(daemon.state.iterdir()) == []


@needs_user
def test_e15_a_state_folder_that_cannot_be_written_is_74(make: MakeDaemon) -> None:
    daemon = make()
    daemon.state.mkdir(mode=0o500)
    _refused(run_to_end(daemon), 74, str(daemon.state))


def test_e15_a_state_folder_beneath_a_file_is_74(make: MakeDaemon) -> None:
    daemon = make()
    (daemon.folder / "f").write_text("")
    daemon.configure({"daemon": {"state_dir": str(daemon.folder / "f" / "s")}})
    _refused(run_to_end(daemon), 74, str(daemon.folder / "f"))


def test_e15_a_database_of_a_newer_program_is_74_and_untouched(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start()
    daemon.term()
    database = daemon.state / "queue.db"
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("PRAGMA user_version = 99")
    before = database.read_bytes()
    _refused(run_to_end(daemon), 74, "schema 99")
    assert database.read_bytes() == before


def test_e15_a_runtime_folder_that_is_a_file_is_74(make: MakeDaemon) -> None:
    daemon = make()
    daemon.runtime.write_text("")
    _refused(run_to_end(daemon), 74, str(daemon.runtime))


def test_e15_a_socket_path_that_is_too_long_is_74(make: MakeDaemon) -> None:
    daemon = make()
    daemon.configure({"daemon": {"runtime_dir": str(daemon.folder / ("r" * 120))}})
    _refused(run_to_end(daemon), 74, "r" * 120)


def test_e15_a_metrics_port_that_is_taken_prevents_no_start(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(settings={"metrics": {"listen": f"127.0.0.1:{srv.port}"}}) as daemon:
        assert [one["reason"] for one in daemon.client.status()["degraded"]] == ["metrics_port"]


def test_without_a_library_for_dbus_it_starts_and_names_the_cure(make: MakeDaemon, srv: ThreadedServer) -> None:
    daemon = make(to=srv.url, settings={"network": {"source": "auto"}, "power": {"source": "auto"}})
    (daemon.folder / "bus").touch()
    support = Path(libraries.__file__).parent
    daemon.environ |= {
        "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={daemon.folder}/bus",
        "PYTHONPATH": f"{support}/without_sdbus:{support}/without_jeepney",
    }
    with daemon:
        daemon.wait_line("the system bus is not heard")
        (reason,) = daemon.client.status()["degraded"]
        assert reason["reason"] == "dbus_library"
        assert "install jeepney" in reason["detail"]
        assert b'kurir_degraded{reason="dbus_library"} 1.0' in daemon.get("/metrics")
        assert daemon.client.wait(daemon.client.submit("orders", {"n": 1}).id, 10).delivered
        assert len([line for line in daemon.lines() if "the system bus is not heard" in line]) == 1


def test_s3_a_symlink_in_the_place_of_the_state_folder_is_refused(make: MakeDaemon) -> None:
    daemon = make()
    victim = daemon.folder / "victim"
    victim.mkdir(mode=0o700)
    daemon.state.symlink_to(victim)
    _refused(run_to_end(daemon), 74, str(daemon.state))
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("name", ["lock", "queue.db", "reserve"])
def test_s3_a_symlink_within_the_state_folder_destroys_nothing(make: MakeDaemon, name: str) -> None:
    daemon = make()
    daemon.state.mkdir(mode=0o700)
    victim = daemon.folder / "victim"
    victim.write_bytes(b"precious" * 1000)
    (daemon.state / name).symlink_to(victim)
    if name == "reserve":
        daemon.start()
        daemon.term()
    else:
        _refused(run_to_end(daemon), 74, name.partition(".")[0])
    assert victim.read_bytes() == b"precious" * 1000


def test_s3_a_lock_that_is_a_hard_link_to_something_else_is_refused(make: MakeDaemon) -> None:
    daemon = make()
    daemon.state.mkdir(mode=0o700)
    victim = daemon.folder / "victim"
    victim.write_bytes(b"precious")
    (daemon.state / "lock").hardlink_to(victim)
    _refused(run_to_end(daemon), 74, "lock")
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("what", ["file", "symlink", "folder"])
def test_s3_what_stands_in_the_place_of_the_socket_is_not_removed(make: MakeDaemon, what: str) -> None:
    daemon = make()
    daemon.runtime.mkdir(mode=0o755)
    victim = daemon.folder / "victim"
    victim.write_bytes(b"precious")
    if what == "file":
        daemon.socket.write_bytes(b"precious")
    elif what == "symlink":
        daemon.socket.symlink_to(victim)
    else:
        daemon.socket.mkdir()
    _refused(run_to_end(daemon), 74, str(daemon.socket))
    assert victim.read_bytes() == b"precious"
    assert os.path.lexists(daemon.socket)


def test_s3_a_runtime_folder_that_others_may_write_to_is_refused(make: MakeDaemon) -> None:
    daemon = make()
    daemon.runtime.mkdir()
    daemon.runtime.chmod(0o777)
    _refused(run_to_end(daemon), 74, str(daemon.runtime))


def test_s2_a_second_instance_is_75_and_disturbs_nothing(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=srv.url) as daemon:
        second = subprocess.run(
            [sys.executable, "-m", "kurir", "--config", daemon.config],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert second.returncode == 75
        assert str(daemon.pid) in second.stderr
        assert "Traceback" not in second.stderr
        job = daemon.client.submit("orders", {"n": 1})
        assert daemon.client.wait(job.id, 10).delivered


def test_s2_a_stale_socket_and_a_pid_of_somebody_else_in_the_lock_prevent_no_start(make: MakeDaemon) -> None:
    with make() as daemon:
        daemon.kill9()
        assert daemon.socket.is_socket()
        (daemon.state / "lock").write_text("1\n")
        daemon.start()
        assert daemon.client.ready()
        assert (daemon.state / "lock").read_text() == f"{daemon.pid}\n"


def test_s2_a_lock_that_another_program_holds_is_75_until_it_lets_go(make: MakeDaemon) -> None:
    daemon = make()
    daemon.start()
    daemon.term()
    with (daemon.state / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _refused(run_to_end(daemon), 75)
    daemon.start()


def test_s2_of_twenty_parallel_starts_exactly_one_serves(make: MakeDaemon, srv: ThreadedServer) -> None:
    daemon = make(to=srv.url)
    start = [sys.executable, "-m", "kurir", "--config", str(daemon.config)]
    racers = [subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(20)]
    try:
        fds = {os.pidfd_open(racer.pid): racer for racer in racers}
        losers = []
        while len(losers) < 19:
            ready = readable(fds, 60)
            assert ready, f"{len(racers) - len(losers)} still run"
            for fd in ready:
                losers.append(fds.pop(fd))
                os.close(fd)
        assert [loser.wait() for loser in losers] == [75] * 19
        (winner,) = fds.values()
        job = daemon.client.submit("orders", {"n": 1})
        assert daemon.client.wait(job.id, 10).delivered
        assert (daemon.state / "lock").read_text() == f"{winner.pid}\n"
        winner.send_signal(signal.SIGTERM)
        assert winner.wait(PATIENCE) == 0
        for fd in fds:
            os.close(fd)
    finally:
        for racer in racers:
            if racer.poll() is None:
                racer.kill()
            racer.wait()
            assert racer.stderr is not None
            racer.stderr.close()


def test_s6_it_is_ready_without_network_bus_and_time_within_a_second(make: MakeDaemon, tmp_path: Path) -> None:
    # No bus at that address, and whoever asks for the way to the network finds loopback alone.
    daemon = make(
        settings={"network": {"source": "auto"}, "power": {"source": "auto"}},
        environ={"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path}/no-bus"},
    )
    took = daemon.start()
    job = daemon.client.submit("orders", {"n": 1})
    assert job.state == "pending"
    assert took < SOON  # about a third of a second; the machine may be busy
    assert daemon.term() == 0


def test_a_client_that_connects_at_once_after_the_start_is_served(make: MakeDaemon) -> None:
    daemon: Daemon = make()
    daemon.spawn()
    daemon.wait_notice("READY=1")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(daemon.socket))
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")
