"""Credentials in the real process: OAuth through a token server that fails, restarts and reloads; secrets of users."""

from __future__ import annotations

import base64
import json
import threading

import pytest

from kurir.client import secrets
from support.daemon import MakeDaemon, run_to_end
from support.server import Reply, Request, ThreadedServer

SECRET = "s3cret-of-the-client"
OAUTH = {"client_id": "edge", "client_secret": "{secret:client}", "scope": "orders"}


class Tokens:
    """Issues tokens from a scripted server, and knows which are good. Called in the server's thread."""

    def __init__(self, server: ThreadedServer, failures: int = 0) -> None:
        self.good: set[str] = set()
        self.failures = failures
        self.lock = threading.Lock()
        server.answer(self.answer)

    def answer(self, request: Request) -> Reply:
        with self.lock:
            if self.failures:
                self.failures -= 1
                return Reply(503, b"down for maintenance")
            authorization = request.header("Authorization") or b""
            if authorization != b"Basic " + base64.b64encode(f"edge:{SECRET}".encode()):
                return Reply(401, b'{"error":"invalid_client"}', (("Content-Type", "application/json"),))
            token = f"token-{len(self.good)}-of-{id(self):x}"
            self.good.add(token)
            document = {"access_token": token, "token_type": "bearer", "expires_in": 3600}
            return Reply(200, json.dumps(document).encode(), (("Content-Type", "application/json"),))

    def admit(self, request: Request) -> Reply:
        """What the guarded server answers."""
        token = (request.header("Authorization") or b"").decode().removeprefix("Bearer ")
        return Reply(200 if token in self.good else 401, b"you sent " + token.encode())


@pytest.fixture
def token_server():
    with ThreadedServer() as server:
        yield server


def configured(daemon, token_server: ThreadedServer, value: str = SECRET) -> None:
    path = daemon.secret("client", value)
    daemon.configure(
        {
            "daemon": {"log_level": "debug"},
            "secrets": {"client": {"file": str(path)}},
            "destinations": {
                "api": {
                    "headers": {"Authorization": "Bearer {secret:oauth}"},
                    "oauth": {**OAUTH, "token_url": f"{token_server.url}/token"},
                }
            },
        }
    )


def test_f4_fifty_jobs_outlive_a_token_server_that_fails_and_no_word_of_a_token_stays(
    make: MakeDaemon, srv: ThreadedServer, token_server: ThreadedServer
) -> None:
    tokens = Tokens(token_server, failures=3)
    srv.answer(tokens.admit)
    daemon = make(to=srv.url)
    configured(daemon, token_server)
    with daemon:
        jobs = [daemon.client.submit("orders", {"n": n}) for n in range(50)]
        for job in jobs:
            after = daemon.client.wait(job.id, 30)
            assert (after.state, after["charged"]) == ("done", 0), (after, daemon.tail())
        assert len(token_server.requests) <= 4
        assert len(srv.requests) == 50
        status = daemon.client.destinations()["destinations"][0]
        assert status["hold"] == []
        shown = json.dumps(daemon.client.get(jobs[0].id))
        written = "\n".join(daemon.lines()) + shown
        for path in daemon.state.rglob("*"):
            written += path.read_bytes().decode("latin-1") if path.is_file() else ""
        assert "down for maintenance" in written
        for word in (*tokens.good, SECRET, base64.b64encode(f"edge:{SECRET}".encode()).decode()):
            assert word not in written, word
    (scope,) = {request.body for request in token_server.requests}
    assert scope == b"grant_type=client_credentials&scope=orders"


def test_f4_a_client_that_is_refused_waits_for_the_operator_whose_new_secret_lets_all_go(
    make: MakeDaemon, srv: ThreadedServer, token_server: ThreadedServer
) -> None:
    tokens = Tokens(token_server)
    srv.answer(tokens.admit)
    daemon = make(to=srv.url)
    configured(daemon, token_server, "an-old-secret")
    with daemon:
        with daemon.client.events(timeout=20) as events:
            job = daemon.client.submit("orders", {"n": 1})
            assert any(event.kind == "job.attempted" for event in events)  # and its outcome is recorded
        assert daemon.wait_line("invalid_client")
        why = daemon.client.why(job.id)
        assert why["state"] == "pending"
        assert any("invalid_client" in block["detail"] for block in why["blocked_by"]), why
        assert srv.requests == []
        daemon.secret("client", SECRET)  # its file is watched
        assert daemon.client.wait(job.id, 20).delivered, daemon.tail()


def test_a_token_is_fetched_anew_after_a_restart_and_kept_over_a_reload(
    make: MakeDaemon, srv: ThreadedServer, token_server: ThreadedServer
) -> None:
    tokens = Tokens(token_server)
    srv.answer(tokens.admit)
    daemon = make(to=srv.url)
    configured(daemon, token_server)
    with daemon:
        for restart in (False, False, True):
            if restart:
                daemon.kill9()
                daemon.start()
            else:
                daemon.hup()
            assert daemon.client.wait(daemon.client.submit("orders", {"n": 1}).id, 20).delivered
        assert len(token_server.requests) == 2


def test_a_user_secret_that_is_stored_while_its_job_waits_lets_it_go(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(settings={"access": {"adhoc": "any", "adhoc_deny": []}}) as daemon:
        client = daemon.client
        client.run(secrets.put("token", "value-of-before", ["https://elsewhere.example"]))
        job = client.post(f"{srv.url}/x", {"n": 1}, headers={"Authorization": "Bearer {secret:token}"})
        assert [block["kind"] for block in client.why(job.id)["blocked_by"]] == ["secret"]
        daemon.restart()
        assert srv.connections == 0
        daemon.client.run(secrets.put("token", "value-of-now", [srv.url]))
        assert daemon.client.wait(job.id, 20).delivered
        assert srv.requests[0].header("Authorization") == b"Bearer value-of-now"


def test_74_a_folder_of_secrets_that_others_may_enter_stops_the_start(make: MakeDaemon) -> None:
    daemon = make()
    daemon.state.mkdir(mode=0o700)
    (daemon.state / "secrets").mkdir(mode=0o755)
    (daemon.state / "secrets").chmod(0o755)
    ended = run_to_end(daemon)
    assert ended.code == 74
    assert "chmod 700" in ended.err
