"""`kurirctl secret` against a real daemon that sends to a real server: piped, and on a terminal of 80 columns."""

from __future__ import annotations

import json
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cli.command import kurirctl, kurirctl_on_terminal
from support.daemon import Daemon
from support.server import Reply, ThreadedServer

VALUE = "hunter2-hunter2-hunter2"
ANYWHERE = {"access": {"adhoc": "any", "adhoc_deny": []}, "daemon": {"log_level": "debug"}}


@pytest.fixture
def srv() -> Iterator[ThreadedServer]:
    with ThreadedServer() as server:
        yield server


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, settings=ANYWHERE) as running:
        yield running


def test_a_secret_is_set_from_standard_input_listed_used_and_removed(daemon: Daemon, srv: ThreadedServer) -> None:
    srv.answer(lambda request: Reply(400, b"you said " + (request.header("Authorization") or b"")))
    nothing = kurirctl(daemon.socket, "secret")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no secrets\n")
    done = kurirctl(
        daemon.socket, "secret", "set", "token", "--origin", srv.url, "--origin", "https://Api.Example/",
        stdin=f"{VALUE}\n".encode(),
    )  # fmt: skip
    assert (done.code, done.out) == (0, f"token is stored for {srv.url}, https://api.example\n"), done
    listed = kurirctl(daemon.socket, "secret", "list")
    assert listed.out.splitlines() == ["NAME   ORIGINS", f"token  {srv.url}, https://api.example"]
    assert [one["name"] for one in json.loads(kurirctl(daemon.socket, "secret", "--json").out)["secrets"]] == ["token"]
    posted = kurirctl(
        daemon.socket, "post", f"{srv.url}/x", "{}", "--header", "Authorization: Bearer {secret:token}", "--wait", "20s"
    )
    assert posted.code == 1, posted  # the server answered 400
    assert srv.requests[0].header("Authorization") == f"Bearer {VALUE}".encode()
    job = posted.out.split()[0]
    shown = [kurirctl(daemon.socket, verb, job).out for verb in ("show", "why")]
    shown.append(kurirctl(daemon.socket, "show", job, "--json").out)
    assert "you said Bearer {secret:token}" in shown[0]
    assert kurirctl(daemon.socket, "secret", "remove", "token").out == "token is removed\n"
    gone = kurirctl(daemon.socket, "secret", "remove", "token")
    assert (gone.code, gone.out) == (65, "")
    for text in (*shown, listed.out, done.out, *daemon.lines()):
        assert VALUE not in text


def test_a_secret_is_asked_for_on_a_terminal_and_is_not_shown(daemon: Daemon) -> None:
    seen = kurirctl_on_terminal(
        daemon.socket, "secret", "set", "token", "--origin", "https://api.example",
        typed=[("value of token: ", f"{VALUE}\n")],
    )  # fmt: skip
    assert seen.code == 0, seen
    assert "token is stored for https://api.example" in seen.out
    assert VALUE not in seen.out
    (file,) = (daemon.state / "secrets").iterdir()
    assert json.loads(file.read_text())["value"] == VALUE
    table = kurirctl_on_terminal(daemon.socket, "secret").out
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()) for line in table.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (("set", "token", VALUE, "--origin", "https://h"), b"", 64, "a secret is no argument"),
        (("set", "token"), VALUE.encode(), 64, "--origin"),
        (("set", "token", "--origin", "https://h"), b"\xff\xfe", 64, "not text in UTF-8"),
        (("set", "token", "--origin", "https://h"), b"x" * 70_000, 64, "too long"),
        (("set", "token", "--origin", "https://h"), b"x" * 5_000, 65, "at most 4096"),
        (("set", "token", "--origin", "https://h"), b"", 65, "the value is empty"),
        (("set", "token", "--origin", "https://h"), b"two\nlines\n", 65, "line break"),
        (("set", "token", "--origin", "https://h/path"), VALUE.encode(), 65, "without a path"),
        (("set", "a b", "--origin", "https://h"), VALUE.encode(), 65, "the name of a secret"),
    ],
)
def test_what_is_refused_names_the_cause_and_never_the_value(
    daemon: Daemon, arguments: tuple[str, ...], stdin: bytes, code: int, words: str
) -> None:
    done = kurirctl(daemon.socket, "secret", *arguments, stdin=stdin)
    assert (done.code, done.out) == (code, ""), done
    assert words in done.err
    assert VALUE not in done.err
    assert "Traceback" not in done.err


def test_secrets_outlive_a_kill_and_are_in_no_file_but_their_own(daemon: Daemon, srv: ThreadedServer) -> None:
    kurirctl(daemon.socket, "secret", "set", "token", "--origin", srv.url, stdin=VALUE.encode())
    daemon.kill9()
    daemon.start()
    for _ in range(3):
        kurirctl(daemon.socket, "post", f"{srv.url}/x", "--header", "X-Token: {secret:token}", "--wait", "20s")
    assert {request.header("X-Token") for request in srv.requests} == {VALUE.encode()}
    assert kurirctl(daemon.socket, "backup", "copy").code == 0
    folder = daemon.state / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    files = [path for path in daemon.state.rglob("*") if path.is_file() and path.parent != folder]
    assert any("backups" in path.parts for path in files)
    for path in files:
        assert VALUE.encode() not in path.read_bytes(), path
    with closing(sqlite3.connect(f"file:{daemon.state / 'backups' / 'copy' / 'queue.db'}?mode=ro", uri=True)) as copy:
        assert copy.execute("SELECT count(*) FROM jobs").fetchone() == (3,)
    assert VALUE not in "\n".join(daemon.lines())


def test_the_client_of_programs_knows_secrets_too(daemon: Daemon) -> None:
    from kurir.client import secrets  # noqa: PLC0415

    client = daemon.client
    assert client.run(secrets.put("token", VALUE, ["https://h"]))["origins"] == ["https://h"]
    assert client.run(secrets.listing())["secrets"][0]["name"] == "token"
    client.run(secrets.remove("token"))
    assert client.run(secrets.listing()) == {"secrets": []}
