"""Schedules in a real process: kills while slots become jobs, alarms of the real clocks, reloads, a clock in doubt."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kurir.client import Client, schedules
from kurir.domain.schedule import slot_key
from support.daemon import Daemon, MakeDaemon
from support.server import ThreadedServer

SEED = int(os.environ.get("KURIR_SEED", str(int(time.time()))))
MINUTE = 60_000
COUNT, SLOTS, KILLS = 40, 20, 8
ALWAYS = {"clock": {"trust": "always"}}


@contextmanager
def _store(daemon: Daemon) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(daemon.state / "queue.db")) as conn:
        yield conn
        conn.commit()


def _keys(daemon: Daemon) -> list[str]:
    with _store(daemon) as conn:
        return [key for (key,) in conn.execute("SELECT wire_key FROM jobs ORDER BY id")]


def _names(client: Client) -> list[str]:
    return [one["id"] for one in client.run(schedules.listing())["schedules"]]


@pytest.mark.timeout(300)
def test_kills_while_slots_are_enqueued_leave_exactly_one_job_per_slot(make: MakeDaemon, srv: ThreadedServer) -> None:
    print(f"KURIR_SEED={SEED}")
    chance = random.Random(SEED)
    daemon = make(to=srv.url, settings={**ALWAYS, "limits": {"crash_limit": 1000}})
    daemon.start()
    for number in range(COUNT):
        options: Any = {"cron": "* * * * *", "timezone": "UTC", "missed": "all", "overlap": "queue"}
        daemon.client.run(schedules.put(f"s{number}", "orders", {"s": number}, **options))
    daemon.term()
    # As if it had been off since then: so many slots are due at the start, a transaction for each schedule.
    off_since = int(time.time()) // 60 * MINUTE - SLOTS * MINUTE
    with _store(daemon) as conn:
        conn.execute("UPDATE schedules SET position = ?", (off_since,))
        clocks = dict(conn.execute("SELECT name, identity FROM schedules"))
        already = {key for (key,) in conn.execute("SELECT wire_key FROM jobs")}

    seen = []
    for _ in range(KILLS):
        daemon.start()
        assert not daemon.ends_within(chance.uniform(0, 0.1))
        daemon.kill9()
        seen.append(len(_keys(daemon)))
    daemon.start()
    srv.wait_for(lambda: len({request.header("Idempotency-Key") for request in srv.requests}) >= COUNT * SLOTS, 60)
    daemon.drained(60)
    daemon.term()

    print(f"jobs on disk at each kill: {seen}")
    assert any(0 < count < COUNT * SLOTS for count in seen), "no kill came in the middle"
    with _store(daemon) as conn:
        reached = dict(conn.execute("SELECT name, position FROM schedules"))
        assert dict(conn.execute("SELECT name, identity FROM schedules")) == clocks
    due = {
        slot_key(clocks[name], slot)
        for name, end in reached.items()
        for slot in range(off_since + MINUTE, end + 1, MINUTE)
    }
    keys = [key for key in _keys(daemon) if key not in already]
    assert len(keys) == len(set(keys)), "a slot was doubled"
    assert set(keys) == due, "a slot was lost, or was none"
    bodies: dict[bytes | None, set[bytes]] = {}
    for request in srv.requests:
        if request.complete:  # a kill cuts what is being sent
            bodies.setdefault(request.header("Idempotency-Key"), set()).add(request.body)
    assert all(len(one) == 1 for one in bodies.values())


def test_every_runs_by_the_alarm_of_the_real_clock_again_and_again(make: MakeDaemon, srv: ThreadedServer) -> None:
    schedule = {"topic": "orders", "every": "10s", "payload": '{"kind": "beat"}'}
    with make(to=srv.url, settings={"schedules": {"beat": schedule}, "clock": {"trust": "never"}}) as daemon:
        first, second = srv.wait_requests(2, 60)[:2]
        assert (first.body, second.body) == (b'{"kind": "beat"}',) * 2
        assert first.header("Idempotency-Key") != second.header("Idempotency-Key")
        assert second.at - first.at == pytest.approx(10, abs=5)
        shown = daemon.client.run(schedules.show("beat"))
        assert (shown["configured"], shown["owner"], shown["runs"] >= 2) == (True, os.geteuid(), True)


def test_a_cron_schedule_does_not_run_and_says_why_while_the_clock_is_not_trusted(make: MakeDaemon) -> None:
    schedule = {"topic": "orders", "cron": "* * * * *", "missed": "all"}
    daemon = make(settings={"schedules": {"beat": schedule}, "clock": {"trust": "never"}})
    daemon.start()
    daemon.term()
    with _store(daemon) as conn:  # even where many runs would be due
        conn.execute("UPDATE schedules SET position = 0")
    daemon.start()
    assert daemon.client.ready()
    shown = daemon.client.run(schedules.show("beat"))
    assert (shown["next_run_at"], shown["runs"]) == (None, 0)
    assert [block["kind"] for block in shown["blocked_by"]] == ["clock_untrusted"]
    assert daemon.ledger().get("accepted", 0) == 0
    daemon.configure(ALWAYS)
    daemon.restart()
    ran = daemon.client.wait(_last_job(daemon, "beat"), 0)
    assert ran["topic"] == "orders"


def _last_job(daemon: Daemon, name: str) -> str:
    """The last job of a schedule that is about to run."""
    with daemon.client.events(timeout=20) as events:
        while (last := daemon.client.run(schedules.show(name))["last_job"]) is None:
            next(events)
    return str(last)


def test_a_reload_takes_over_changed_schedules_and_a_bad_one_keeps_the_old_ones(make: MakeDaemon) -> None:
    beat = {"topic": "orders", "every": "1h"}
    with make(settings={"schedules": {"beat": beat, "old": beat}}) as daemon:
        client = daemon.client
        client.run(schedules.put("mine", "orders", every="1h"))
        before = client.run(schedules.show("beat"))
        daemon.configure(
            {"schedules": {"old": None, "new": {"topic": "orders", "cron": "0 0 * * *", "timezone": "UTC"}}}
        )
        daemon.hup()
        assert sorted(_names(client)) == ["beat", "mine", "new"]
        after = client.run(schedules.show("beat"))
        assert _rounded(after["next_run_at"]) == _rounded(before["next_run_at"])
        daemon.configure({"schedules": {"new": {"cron": "61 * * * *"}}})
        daemon.hup()
        assert "schedules.new.cron" in daemon.wait_line("cannot reload")
        assert client.run(schedules.show("new"))["cron"] == "0 0 * * *"


def _rounded(instant: str) -> str:
    """An estimate of the wall clock differs by a millisecond each time."""
    return instant[:18]


def test_schedules_and_their_clocks_survive_a_kill_and_a_restart(make: MakeDaemon) -> None:
    with make(settings=ALWAYS) as daemon:
        put = daemon.client.run(schedules.put("mine", "orders", {"n": 1}, cron="0 0 1 1 *", spread="1h"))
        daemon.kill9()
        daemon.start()
        assert daemon.client.run(schedules.show("mine"))["next_run_at"] == put["next_run_at"]
        daemon.restart()
        shown = daemon.client.run(schedules.show("mine"))
        assert (shown["next_run_at"], shown["payload"]) == (put["next_run_at"], {"n": 1})


def test_a_topic_that_is_gone_is_one_line_of_the_log_and_no_crash(make: MakeDaemon) -> None:
    topics = {"other": {"destination": "api"}}
    daemon = make(settings={**ALWAYS, "topics": topics})
    daemon.start()
    daemon.client.run(schedules.put("mine", "other", cron="* * * * *", timezone="UTC"))
    daemon.term()
    with _store(daemon) as conn:
        conn.execute("UPDATE schedules SET position = position - 600000")
    daemon.configure({"topics": {"other": None}})
    daemon.start()
    line = json.loads(daemon.wait_line("schedule cannot run"))
    assert (line["schedule"], line["code"]) == ("mine", "unknown_topic")
    assert daemon.client.ready()
    shown = daemon.client.run(schedules.show("mine"))
    assert [block["kind"] for block in shown["blocked_by"]] == ["unknown_topic"]


def test_a_copy_of_the_store_holds_the_schedules(make: MakeDaemon, tmp_path: Path) -> None:
    with make(settings=ALWAYS) as daemon:
        daemon.client.run(schedules.put("mine", "orders", {"n": 1}, every="1h"))
        copy = Path(daemon.client.backup("b")["path"])
        with closing(sqlite3.connect(copy / "queue.db")) as conn:
            assert conn.execute("SELECT name FROM schedules").fetchall() == [("mine",)]
