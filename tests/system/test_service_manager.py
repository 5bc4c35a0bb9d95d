"""What is said to the service manager, and the sockets that it hands over, checked as if they came from a stranger."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurir.system.service_manager import ServiceManager, listen_fds


@pytest.fixture(params=["path", "abstract"])
def manager_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@kurir-notify-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        channel.settimeout(5)
        yield channel, address


def test_every_word_arrives_at_the_manager(manager_socket: tuple[socket.socket, str]) -> None:
    channel, address = manager_socket
    environment = {"NOTIFY_SOCKET": address}
    manager = ServiceManager(environment)
    assert environment == {}, "no child speaks for us"
    assert manager.more_time(60_000)
    assert manager.ready()
    assert manager.status("3 waiting\nREADY=1")
    assert manager.alive()
    assert manager.stopping()
    heard = [channel.recv(4096).decode() for _ in range(5)]
    assert heard == ["EXTEND_TIMEOUT_USEC=60000000", "READY=1", "STATUS=3 waiting READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_reload_says_when_it_began_on_the_monotonic_clock(manager_socket: tuple[socket.socket, str]) -> None:
    channel, address = manager_socket
    before = time.monotonic_ns() // 1000
    assert ServiceManager({"NOTIFY_SOCKET": address}).reloading()
    first, second = channel.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


@pytest.mark.parametrize(
    "address", ["", "relative", "vsock:2:1234", "/nonexistent/notify", "@nobody-listens", "/" + "x" * 500]
)
def test_a_manager_that_cannot_be_reached_is_no_failure(address: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": address} if address else {})
    assert not manager.ready()
    assert not manager.status("x" * 100_000)


def test_a_manager_that_does_not_read_does_not_stop_us(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(path)
        manager = ServiceManager({"NOTIFY_SOCKET": path})
        sent = [manager.alive() for _ in range(10_000)]
    assert sent[0]
    assert not sent[-1]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60_000),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60_000),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "9" * 30}, None),
        ({"WATCHDOG_USEC": "٣"}, None),
    ],
)
def test_the_watchdog_is_fed_only_if_it_watches_us(environment: dict[str, str], expected: int | None) -> None:
    assert ServiceManager(environment).watchdog_ms == expected


CHILD = """
import os, sys
from kurir.system.service_manager import BadActivation, listen_fds
os.environ["LISTEN_PID"] = str(os.getpid())
try:
    for handed in listen_fds():
        print(handed.name, handed.socket.getsockname(), os.get_inheritable(handed.socket.fileno()))
except BadActivation as error:
    print("bad:", error)
print([key for key in os.environ if key.startswith("LISTEN_")])
"""


def activate(count: str, names: str | None, *descriptors: int) -> list[str]:
    """Start a child the way a service manager does: the sockets from descriptor 3 on, and the environment."""
    environment = os.environ | {"LISTEN_FDS": count} | ({"LISTEN_FDNAMES": names} if names is not None else {})
    parking = [os.dup(fd) for fd in descriptors]

    def place() -> None:
        high = [os.dup2(fd, 100 + offset) for offset, fd in enumerate(parking)]
        for offset, fd in enumerate(high):
            os.dup2(fd, 3 + offset, inheritable=True)

    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=environment,
        preexec_fn=place,
        close_fds=False,
        capture_output=True,
        text=True,
    )
    for fd in parking:
        os.close(fd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_listening_unix_sockets_are_taken_over_with_their_names(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for number, channel in enumerate((first, second)):
            channel.bind(str(tmp_path / f"s{number}"))
            channel.listen()
        lines = activate("2", "control:more", first.fileno(), second.fileno())
        assert lines == [f"control {tmp_path}/s0 False", f"more {tmp_path}/s1 False", "[]"]
        assert activate("1", None, first.fileno()) == [f"unknown {tmp_path}/s0 False", "[]"]


def test_anything_else_that_is_handed_over_is_refused_with_the_reason(tmp_path: Path) -> None:
    with (
        socket.socket(socket.AF_INET) as internet,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as silent,
        (tmp_path / "file").open("w") as file,
    ):
        internet.bind(("127.0.0.1", 0))
        internet.listen()
        datagrams.bind(str(tmp_path / "d"))
        silent.bind(str(tmp_path / "s"))
        faults = [activate("1", "x", channel.fileno())[0] for channel in (internet, datagrams, silent, file)]
    assert [fault.partition("(x) ")[2].partition(";")[0] for fault in faults] == [
        "is not a Unix stream socket",
        "is not a Unix stream socket",
        "does not listen",
        "is not a socket: Socket operation on non-socket",
    ]


@pytest.mark.parametrize("count", ["", "abc", "-1", "65", "99999999999", "1.5"])
def test_a_count_that_is_none_is_refused(count: str) -> None:
    assert activate(count, None)[0].startswith("bad: LISTEN_FDS=")


def test_sockets_for_another_process_are_left_alone() -> None:
    environment = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}
    assert listen_fds(environment) == []
    assert environment == {}
    assert listen_fds({}) == []
