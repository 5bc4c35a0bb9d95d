"""The outbox of a whole daemon: kept over kills, parked when its destination is gone, counted under its own name."""

from __future__ import annotations

import json
import socket
from functools import partial

from kurir.client import calls
from support.daemon import PATIENCE, Daemon, MakeDaemon
from support.server import Reply, ThreadedServer
from support.toml_document import toml

switch = partial(calls.switch, kind="topics", name="outbox:api")
NOWHERE = "http://127.0.0.1:9"


def relayed(daemon: Daemon, target: str, body: bytes, **headers: str) -> dict[str, object]:
    """Say it as a program would that knows a base URL only; the job that came of it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(daemon.socket))
        lines = [f"PUT /v1/outbox/api{target} HTTP/1.1", "Host: kurir", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}"])
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 202 "), answer
    return dict(json.loads(content))


def test_what_the_outbox_accepted_survives_a_kill_in_its_order(make: MakeDaemon, srv: ThreadedServer) -> None:
    with make(to=NOWHERE) as daemon:
        bodies = [b"%06d" % n * (1 if n % 10 else 20_000) for n in range(30)]  # some of them are files
        for number, body in enumerate(bodies):
            relayed(daemon, "/doc?v=1", body, Idempotency_Key=f"k-{number}")
        daemon.kill9()
        daemon.configure({"destinations": {"api": {"url": srv.url}}})
        daemon.start()
        assert relayed(daemon, "/doc?v=1", bodies[0], Idempotency_Key="k-0")["seq"] == 1
        daemon.drained(60)
        assert [request.body for request in srv.requests] == bodies
        assert {request.target for request in srv.requests} == {"/doc?v=1"}
        assert daemon.ledger()["accepted"] == len(bodies)


def test_a_relayed_job_is_parked_while_its_destination_is_gone_and_its_topic_survives_reloads(
    make: MakeDaemon, srv: ThreadedServer
) -> None:
    with make(to=NOWHERE) as daemon:
        complete = daemon.config.read_text()
        daemon.client.run(switch("pause"))
        job = relayed(daemon, "/x", b"1")
        empty = {name: table for name, table in daemon._settings.items() if name not in ("destinations", "topics")}
        daemon.write(toml(empty))
        daemon.hup()
        parked = daemon.client.get(str(job["id"]))
        assert (parked.state, parked["reason"]) == ("pending", "parked"), daemon.tail()
        assert daemon.client.why(parked.id)["blocked_by"][0]["kind"] == "parked"
        assert 'topic="other"' in daemon.get("/metrics").decode(), "an unknown name folds"
        daemon.write(complete.replace(NOWHERE, srv.url))
        daemon.hup()
        assert daemon.client.get(str(job["id"]))["reason"] == "new"
        assert daemon.client.why(parked.id)["blocked_by"][0]["kind"] == "paused"
        assert 'kurir_jobs{state="pending",topic="outbox:api"} 1.0' in daemon.get("/metrics").decode()
        daemon.restart()
        assert daemon.client.why(parked.id)["blocked_by"][0]["kind"] == "paused"
        daemon.client.run(switch("resume"))
        srv.answer(Reply(200))
        assert daemon.client.wait(parked.id, PATIENCE).delivered
        (request,) = srv.requests
        assert (request.method, request.target) == ("PUT", "/x")
        assert 'kurir_ledger{kind="accepted",topic="outbox:api"} 1.0' in daemon.get("/metrics").decode()
