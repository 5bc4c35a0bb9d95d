"""kurirctl work against the real daemon: commands as workers, killed and restarted on both sides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.command import KURIRCTL, Ended, environment, kurirctl
from kurir.client import Clash, Client, Job, KurirError
from support.daemon import PATIENCE, Daemon, MakeDaemon
from support.process import ends_within, readable, wakeups

TOPICS: dict[str, Any] = {
    "thumbs": {
        "consumer": "local",
        "lease": "60s",
        "retry": {"base": "100ms", "cap": "200ms", "jitter": "none", "max_attempts": 3},
    }
}


class Work:
    """A kurirctl work that runs."""

    def __init__(self, daemon: Daemon, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*KURIRCTL, "work", "thumbs", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(KURIR_SOCKET=str(daemon.socket)),
        )

    def end(self, number: int = signal.SIGTERM) -> Ended:
        self.process.send_signal(number)
        return self.ended()

    def close(self) -> None:
        """End it whatever it does."""
        self.process.kill()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def ended(self) -> Ended:
        out, err = self.process.communicate(timeout=PATIENCE)
        return Ended(self.process.returncode, out.decode(), err.decode())


@pytest.fixture
def daemon(make: MakeDaemon) -> Daemon:
    one = make(settings={"topics": TOPICS})
    one.start()
    return one


@pytest.fixture
def start(daemon: Daemon) -> Iterator[Callable[..., Work]]:
    with ExitStack() as stack:

        def begin(*arguments: str) -> Work:
            work = Work(daemon, *arguments)
            stack.callback(work.close)
            return work

        yield begin


@contextmanager
def fifo(path: Path) -> Iterator[int]:
    """A place where commands report; reading it waits for them."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def heard(descriptor: int, lines: int = 1, timeout: float = PATIENCE) -> list[str]:
    """The next so many lines that commands reported."""
    said, end = b"", time.monotonic() + timeout
    while said.count(b"\n") < lines:
        assert readable([descriptor], end - time.monotonic()), f"only {said!r}"
        said += os.read(descriptor, 65536)
    return said.decode().splitlines()


def gone(pid: int, timeout: float = PATIENCE) -> bool:
    """Whether a process ends (or has ended) in time."""
    return ends_within(pid, timeout)


def until(job: Job, state: str, client: Client) -> Job:
    """The job once it is in that state, by its events."""
    with client.events(job=job.id, timeout=PATIENCE) as stream:
        while (now := client.get(job.id)).state != state:
            assert next(stream, None) is not None, f"it is still {now.state}"
    return now


def once(daemon: Daemon, *command: str, options: tuple[str, ...] = ()) -> Ended:
    return kurirctl(daemon.socket, "work", "thumbs", "--once", *options, "--", *command)


def test_the_payload_is_on_standard_input_byte_for_byte(daemon: Daemon, tmp_path: Path) -> None:
    raw = b'{ "a" : 1, "a":2.50, "big": 123456789012345678901234567890 }'
    for body, kind in ((raw, "application/json"), (b"\x00\xff" * 200_000, "image/png"), (b"", "text/plain")):
        job = daemon.client.submit("thumbs", body, content_type=kind)
        assert once(daemon, "sh", "-c", f"cat > {tmp_path}/got").code == 0
        assert (tmp_path / "got").read_bytes() == body
        assert daemon.client.get(job.id).delivered


def test_what_a_command_should_know_is_in_its_environment(daemon: Daemon, tmp_path: Path) -> None:
    job = daemon.client.submit("thumbs", {"n": 1}, ordering_key="k é", idempotency_key="mine", priority=3)
    ended = once(daemon, "sh", "-c", f"env > {tmp_path}/env")
    assert (ended.code, ended.err) == (0, "")
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    expected = {
        "KURIR_JOB_ID": job.id,
        "KURIR_TOPIC": "thumbs",
        "KURIR_ATTEMPT": "1",
        "KURIR_IDEMPOTENCY_KEY": "mine",
        "KURIR_ORDERING_KEY": "k é",
        "KURIR_CONTENT_TYPE": "application/json",
        "KURIR_PRIORITY": "3",
        "KURIR_OWNER": str(os.getuid()),
        "KURIR_CORRELATION_ID": job.id,
        "KURIR_SOCKET": str(daemon.socket),
    }
    assert {name: env.get(name) for name in expected} == expected
    bare = daemon.client.submit("thumbs", {"n": 1})
    once(daemon, "sh", "-c", f"env > {tmp_path}/env")
    assert "KURIR_ORDERING_KEY" not in (tmp_path / "env").read_text()
    assert f"KURIR_IDEMPOTENCY_KEY={bare['idempotency_key']}" in (tmp_path / "env").read_text()


def test_0_acknowledges_75_retries_and_anything_else_is_a_dead_letter_with_the_last_words(daemon: Daemon) -> None:
    done, later, dead = (daemon.client.submit("thumbs", text) for text in ("0", "75", "3"))
    killed = daemon.client.submit("thumbs", "kill -SEGV $$; sleep 60")
    program = 'read -r word; word=$(echo "$word" | tr -d \'"\'); case $word in kill*) eval "$word";; esac\n'
    program += "echo noise >&2; echo no such picture >&2; exit $word"
    ended = once(daemon, "sh", "-c", program)
    assert ended.code == 1
    assert daemon.client.get(done.id).delivered
    tried = daemon.client.get(later.id)
    assert (tried.state, tried["last_error"]["kind"]) == ("pending", "rejected_by_consumer")
    assert "exit code 75" in tried["last_error"]["detail"]
    letter = daemon.client.get(dead.id)
    assert (letter.state, letter["last_error"]["kind"]) == ("dead", "rejected_by_consumer")
    assert letter["last_error"]["detail"] == "exit code 3: noise\nno such picture"
    assert "killed by SIGSEGV" in daemon.client.get(killed.id)["last_error"]["detail"]
    assert "no such picture" in ended.err


def test_what_a_dead_letter_says_is_bounded(daemon: Daemon) -> None:
    job = daemon.client.submit("thumbs", 1)
    once(daemon, "sh", "-c", "seq 1 100000 >&2; exit 1")
    detail = daemon.client.get(job.id)["last_error"]["detail"]
    assert len(detail) < 3000
    assert detail.endswith("99999\n100000")


def test_a_job_that_is_retried_too_often_is_dead(daemon: Daemon, start: Callable[..., Work]) -> None:
    job = daemon.client.submit("thumbs", 1)
    start("--", "sh", "-c", "exit 75")
    dead = until(job, "dead", daemon.client)
    assert (dead["attempts"], dead["charged"]) == (3, 3)
    assert [one["verdict"] for one in daemon.client.attempts(job.id)["attempts"]] == ["retry", "retry", "dead"]


def test_max_ends_after_so_many_and_concurrency_runs_so_many_at_once(daemon: Daemon, tmp_path: Path) -> None:
    for number in range(5):
        daemon.client.submit("thumbs", number)
    with fifo(tmp_path / "began") as began:
        script = f"echo $$ > {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
        work = Work(daemon, "--max", "3", "-c", "2", "--", "sh", "-c", script)
        assert len(heard(began, 2)) == 2
        assert daemon.client.status()["jobs"]["leased"] == 2
        (tmp_path / "go").touch()
        assert work.ended().code == 0
    counts = daemon.client.status()["jobs"]
    assert (counts["done"], counts["pending"], counts["leased"]) == (3, 2, 0)


def test_once_goes_on_with_what_its_own_jobs_let_go(daemon: Daemon) -> None:
    jobs = [daemon.client.submit("thumbs", number, ordering_key="k") for number in range(4)]
    assert once(daemon, "true", options=("-c", "3")).code == 0
    assert all(daemon.client.get(job.id).delivered for job in jobs)
    assert once(daemon, "true").code == 0


def test_a_waiting_worker_takes_a_job_as_soon_as_it_is_submitted_and_sigterm_ends_it(
    daemon: Daemon, start: Callable[..., Work]
) -> None:
    work = start("--", "true")
    for _ in range(3):
        until(daemon.client.submit("thumbs", 1), "done", daemon.client)
    ended = work.end()
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_o6_a_worker_that_waits_is_never_woken(daemon: Daemon, start: Callable[..., Work]) -> None:
    work = start("--", "true")
    until(daemon.client.submit("thumbs", 1), "done", daemon.client)
    seen = []
    for _ in range(4):  # the end of the job may fall into the first window
        before = wakeups(work.process.pid)
        assert not gone(work.process.pid, 3)
        seen.append(wakeups(work.process.pid) - before)
        if seen[-1] == 0:
            return
    raise AssertionError(f"wake-ups in each 3 s: {seen}")


def test_the_lease_is_extended_while_the_command_runs(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    job = daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "began") as began:
        start("--lease", "1s", "--", "sh", "-c", f"echo x > {tmp_path}/began; sleep 3")
        heard(began)
        ended = until(job, "done", daemon.client)
    assert (ended["attempts"], ended["charged"]) == (1, 0)


def test_the_command_and_its_children_are_killed_when_the_lease_is_lost(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    job = daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "pids") as pids:
        # The grandchild does not listen to SIGTERM.
        stubborn = f"trap '' TERM; echo $$ > {tmp_path}/pids; sleep 600"
        script = f'sh -c "$0" & echo $$ > {tmp_path}/pids; wait'
        work = start("--lease", "1s", "--grace", "300ms", "--", "sh", "-c", script, stubborn)
        leader, grandchild = (int(pid) for pid in heard(pids, 2))
        assert daemon.client.cancel(job.id).state == "cancelled"
        assert gone(leader)
        assert gone(grandchild)
        ended = work.end()
    assert "lost" in ended.err
    assert daemon.client.get(job.id).state == "cancelled"


def test_sigterm_ends_the_command_with_its_children_and_gives_the_job_back(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    job = daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "pids") as pids:
        script = f"sleep 600 & echo $! > {tmp_path}/pids; echo $$ > {tmp_path}/pids; wait"
        work = start("--", "sh", "-c", script)
        running = [int(pid) for pid in heard(pids, 2)]
        ended = work.end()
        assert all(gone(pid) for pid in running)
    assert ended.code == 0
    back = daemon.client.get(job.id)
    assert (back.state, back["reason"], back["last_error"]) == ("pending", "interrupted", None)
    assert once(daemon, "true").code == 0
    done = daemon.client.get(job.id)
    assert (done.delivered, done["attempts"], done["charged"]) == (True, 2, 0)


@pytest.mark.parametrize("end", ["exit 75", "exit 1", "kill -TERM $$"])
def test_a_run_that_the_end_of_the_worker_interrupts_is_not_held_against_the_job_however_it_ends(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path, end: str
) -> None:
    job = daemon.client.submit("thumbs", 1)
    for n in range(1, TOPICS["thumbs"]["retry"]["max_attempts"] + 2):
        with fifo(tmp_path / f"began-{n}") as began:
            script = f"trap 'trap - TERM; {end}' TERM; echo x > {tmp_path}/began-{n}; while :; do sleep 0.01; done"
            work = start("--", "sh", "-c", script)
            heard(began)
            assert work.end().code == 0
        back = daemon.client.get(job.id)
        assert (back.state, back["attempts"], back["charged"]) == ("pending", n, 0)


def test_a_command_that_does_not_listen_to_sigterm_is_killed_after_the_grace(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "pids") as pids:
        script = f"trap '' TERM; echo $$ > {tmp_path}/pids; while :; do sleep 1; done"
        work = start("--grace", "200ms", "--", "sh", "-c", script)
        (pid,) = (int(pid) for pid in heard(pids))
        assert work.end(signal.SIGINT).code == 130
        assert gone(pid)


def test_a_second_signal_waits_for_no_grace(daemon: Daemon, start: Callable[..., Work], tmp_path: Path) -> None:
    daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "pids") as pids:
        script = f"trap 'echo asked > {tmp_path}/pids' TERM; echo $$ > {tmp_path}/pids; while :; do sleep 0.05; done"
        work = start("--grace", "10m", "--", "sh", "-c", script)
        (pid,) = (int(pid) for pid in heard(pids))
        work.process.send_signal(signal.SIGINT)
        assert heard(pids) == ["asked"]
        assert work.end(signal.SIGINT).code == 130
        assert gone(pid)


def test_a_command_that_ends_well_although_the_worker_was_stopped_is_acknowledged(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    job = daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "pids") as pids:
        work = start("--", "sh", "-c", f"trap 'exit 0' TERM; echo $$ > {tmp_path}/pids; while :; do sleep 0.01; done")
        heard(pids)
        assert work.end().code == 0
    assert daemon.client.get(job.id).delivered


def test_b1_a_kill_of_the_daemon_ends_no_work_and_the_job_is_done_once(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    job = daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "began") as began:
        script = f"echo x > {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
        work = start("--lease", "5s", "--", "sh", "-c", script)
        heard(began)
        daemon.kill9()
        daemon.start()
        assert daemon.client.get(job.id).state == "leased"
        (tmp_path / "go").touch()
        done = until(job, "done", daemon.client)
        assert (done["attempts"], done["charged"]) == (1, 0)
        another = daemon.client.submit("thumbs", 2)  # it has found the daemon again
        heard(began)
        until(another, "done", daemon.client)
        assert work.end().code == 0
    assert daemon.ledger()["done"] == 2


def test_a_waiting_worker_keeps_no_daemon_from_stopping_and_finds_the_next_one(
    daemon: Daemon, start: Callable[..., Work]
) -> None:
    work = start("--", "true")
    until(daemon.client.submit("thumbs", 1), "done", daemon.client)
    began = time.monotonic()
    assert daemon.term() == 0
    assert time.monotonic() - began < 5  # the grace that attempts would have
    daemon.start()
    until(daemon.client.submit("thumbs", 2), "done", daemon.client)
    assert "it is tried again" in work.end().err


def test_work_once_goes_on_with_the_next_daemon_when_the_first_one_stops_in_the_middle_of_it(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    jobs = [daemon.client.submit("thumbs", n) for n in range(3)]
    with fifo(tmp_path / "began") as began:
        script = f"echo x > {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
        work = start("--once", "--", "sh", "-c", script)
        heard(began)
        assert daemon.term() == 0
        (tmp_path / "go").touch()
        daemon.start()
        assert work.ended().code == 0
    assert all(daemon.client.get(job.id).delivered for job in jobs)


def test_an_outcome_is_told_to_a_daemon_that_comes_back_while_the_lease_lasts(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    job = daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "began") as began:
        script = (
            f"echo x > {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo x > {tmp_path}/began"
        )
        start("--", "sh", "-c", script)
        heard(began)
        assert daemon.term() == 0
        (tmp_path / "go").touch()
        heard(began)
        daemon.start()
        assert until(job, "done", daemon.client)["attempts"] == 1


def test_b1_a_killed_worker_costs_one_lease_and_another_one_has_the_job_then(daemon: Daemon, tmp_path: Path) -> None:
    job = daemon.client.submit("thumbs", 1, idempotency_key="k")
    with fifo(tmp_path / "pids") as pids:
        work = Work(daemon, "--lease", "1s", "--", "sh", "-c", f"echo $$ > {tmp_path}/pids; exec sleep 600")
        (pid,) = (int(pid) for pid in heard(pids))
        work.process.kill()
        os.kill(pid, signal.SIGKILL)  # nobody can do that for a worker that is killed but who supervises it
        work.ended()
        again = Work(
            daemon, "--max", "1", "--", "sh", "-c", f"echo $KURIR_ATTEMPT $KURIR_IDEMPOTENCY_KEY > {tmp_path}/pids"
        )
        assert heard(pids) == ["2 k"]
        assert again.ended().code == 0
    assert [one["verdict"] for one in daemon.client.attempts(job.id)["attempts"]] == ["retry", "done"]


def test_b5_a_consumer_that_was_stopped_beyond_its_lease_changes_nothing_when_it_goes_on(daemon: Daemon) -> None:
    job = daemon.client.submit("thumbs", 1)
    (first,) = daemon.client.lease("thumbs", lease="500ms")
    (second,) = daemon.client.lease("thumbs", lease="60s", wait="20s")
    with pytest.raises(Clash) as caught:
        daemon.client.ack(first.token)
    assert caught.value.code == "lease_lost"
    assert first["idempotency_key"] == second["idempotency_key"]
    daemon.client.ack(second.token)
    done = daemon.client.get(job.id)
    assert (done.state, done["attempts"]) == ("done", 2)
    assert "kurir_leases_lost_total 1.0" in daemon.get("/metrics").decode()


def test_b5_a_worker_that_slept_beyond_its_lease_ends_its_command_and_changes_nothing(
    daemon: Daemon, start: Callable[..., Work], tmp_path: Path
) -> None:
    job = daemon.client.submit("thumbs", 1)
    with fifo(tmp_path / "pids") as pids:
        asleep = start("--lease", "1s", "--", "sh", "-c", f"echo $$ > {tmp_path}/pids; exec sleep 600")
        (pid,) = (int(pid) for pid in heard(pids))
        for process in (asleep.process.pid, pid):
            os.kill(process, signal.SIGSTOP)
        once_more = start("--max", "1", "--", "true")
        assert once_more.ended().code == 0
        for process in (asleep.process.pid, pid):
            os.kill(process, signal.SIGCONT)
        assert gone(pid)
        ended = asleep.end()
    assert (ended.code, "lost" in ended.err, "Traceback" in ended.err) == (0, True, False)
    done = daemon.client.get(job.id)
    assert (done.state, done["attempts"]) == ("done", 2)


def test_b1_kills_of_the_daemon_at_any_moment_lose_no_job(daemon: Daemon, start: Callable[..., Work]) -> None:
    start("--lease", "2s", "-c", "4", "--", "true")
    until(daemon.client.submit("thumbs", "it has begun"), "done", daemon.client)
    jobs = []
    for number in range(60):
        jobs.append(daemon.client.submit("thumbs", number, idempotency_key=f"n{number}"))
        if number % 15 == 14:
            daemon.kill9()
            daemon.start()
    daemon.drained(60)
    assert {daemon.client.get(job.id).state for job in jobs} == {"done"}
    ledger = daemon.ledger()
    assert (ledger["accepted"], ledger["done"]) == (61, 61)


def test_json_is_a_line_per_job_and_the_commands_own_output_does_not_disturb_it(daemon: Daemon) -> None:
    good, bad = daemon.client.submit("thumbs", "good"), daemon.client.submit("thumbs", "bad")
    ended = once(daemon, "sh", "-c", "echo chatter; grep -q good", options=("--json",))
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [(line["job"], line["outcome"], line["code"]) for line in lines] == [
        (good.id, "done", 0),
        (bad.id, "dead", 1),
    ]
    assert ended.err.count("chatter") == 2


def test_refusals_end_it_with_their_codes(daemon: Daemon, tmp_path: Path) -> None:
    def code(*arguments: str) -> int:
        return kurirctl(daemon.socket, "work", *arguments).code

    assert code("orders", "--", "true") == 65
    assert code("nowhere", "--", "true") == 65
    assert code("thumbs") == 64
    assert code("thumbs", "--", "no-such-command-anywhere") == 64
    assert code("thumbs", "--max", "0", "--", "true") == 64
    assert kurirctl(tmp_path / "none.sock", "work", "thumbs", "--once", "--", "true").code == 69


def test_a_command_that_cannot_be_run_any_more_costs_one_try_and_ends_the_work(daemon: Daemon, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    jobs = [daemon.client.submit("thumbs", number) for number in range(3)]
    ended = once(daemon, str(program))
    assert ended.code == 64
    assert "could not be started" in ended.err
    assert sorted(daemon.client.get(job.id)["attempts"] for job in jobs) == [0, 0, 1]


def test_tokens_are_in_no_line_of_the_log(make: MakeDaemon) -> None:
    daemon = make(settings={"topics": TOPICS, "daemon": {"log_level": "debug"}})
    daemon.start()
    daemon.client.submit("thumbs", 1)
    (job,) = daemon.client.lease("thumbs")
    daemon.client.extend(job.token, "30s")
    daemon.client.progress(job.token, 50, "half")
    daemon.client.nack(job.token, "not today", retry=False)
    with pytest.raises(KurirError):
        daemon.client.ack(job.token)
    daemon.wait_line("rejected_by_consumer")
    daemon.term()
    assert not [line for line in daemon.lines() if job.token in line]
    (line,) = daemon.events("attempt")[-1:]
    assert (line["topic"], line["verdict"], line["error"], line["attempt"]) == ("thumbs", "dead", "not today", 1)


def test_show_and_why_tell_who_has_a_job_and_until_when(daemon: Daemon) -> None:
    job = daemon.client.submit("thumbs", 1)
    assert "no consumer has leased it" in kurirctl(daemon.socket, "why", job.id).out
    assert daemon.client.why(job.id)["blocked_by"] == [{"kind": "consumer", "detail": "no consumer has leased it"}]
    daemon.client.lease("thumbs", lease="5h")
    (line,) = (line for line in kurirctl(daemon.socket, "show", job.id).out.splitlines() if "leased until" in line)
    assert line.endswith("(in 5 h)")
    assert daemon.client.why(job.id) == {"state": "leased", "blocked_by": [], "next_attempt_at": None}


def test_attempts_of_consumers_are_counted_as_local(daemon: Daemon) -> None:
    daemon.client.submit("thumbs", 1)
    (job,) = daemon.client.lease("thumbs")
    daemon.client.ack(job.token)
    text = daemon.get("/metrics").decode()
    assert 'kurir_attempts_total{destination="local",topic="thumbs",verdict="done"} 1.0' in text
    assert 'kurir_finished_total{state="done",topic="thumbs"} 1.0' in text
    assert 'kurir_attempt_seconds_count{destination="local"} 1.0' in text
