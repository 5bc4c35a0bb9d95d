"""The verdict on every answer, in every context that matters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kurir.domain.job import ErrorKind
from kurir.domain.outcome import (
    Answer,
    Attempt,
    Conflict,
    Done,
    Fault,
    Hold,
    HoldDestination,
    Reject,
    RetryLater,
    Unreachable,
    Verdict,
    VerifyFirst,
    judge,
    judge_fault,
    unmet,
    words,
)
from kurir.domain.policy import DAY, Classify, Expect

STATUSES = [*range(100, 600), 600, 999, 99]
POST = Attempt(method="POST")
PUT = Attempt(method="PUT", versioned=True)
DELETE = Attempt(method="DELETE")


def answer(status: int, *, body: bytes = b"", **headers: str) -> Answer:
    return Answer(status, tuple((name.replace("_", "-"), value) for name, value in headers.items()), body)


def summary(verdict: Verdict) -> str:
    """A verdict in the words of the tables below."""
    match verdict:
        case HoldDestination(hold=hold):
            return f"hold {hold}"
        case RetryLater(sick=sick, kind=kind):
            return f"retry {'sick' if sick else 'well'} {kind}"
        case Reject(kind=kind):
            return f"dead {kind}"
        case VerifyFirst(otherwise=otherwise):
            return f"verify, else {summary(otherwise)}"
    return type(verdict).__name__.lower()


SINGLE = {
    401: "hold unauthorized",
    407: "hold unauthorized",
    408: "retry well http_status",
    410: "hold gone",
    413: "dead too_large",
    421: "retry well http_status",
    423: "retry well http_status",
    425: "retry well http_status",
    429: "hold retry_after",
    501: "dead http_status",
    505: "dead http_status",
    511: "hold portal",
}


def default(status: int) -> str:
    """The table of the contract for a plain POST."""
    if status in SINGLE:
        return SINGLE[status]
    hundred = status // 100
    by_hundred = {2: "done", 3: "dead redirect", 4: "dead http_status"}
    return by_hundred.get(hundred, "retry sick http_status")


@pytest.mark.parametrize("status", STATUSES)
def test_f1_each_status_has_the_verdict_of_the_contract(status: int) -> None:
    verdict = judge(answer(status), POST)
    assert summary(verdict) == default(status)
    assert isinstance(verdict, Done) or verdict.status == status  # type: ignore[union-attr] # VerifyFirst is not among them


def test_f1_the_method_and_an_ambiguous_past_change_only_what_they_are_about() -> None:
    for status in STATUSES:
        changed: dict[tuple[str, bool, bool], dict[int, str]] = {
            ("POST", False, True): {409: "retry well http_status", 412: "verify, else dead http_status"},
            ("PUT", True, False): {409: "conflict", 412: "conflict"},
            ("PUT", True, True): {409: "retry well http_status", 412: "verify, else conflict"},
            ("DELETE", False, False): {},
            ("DELETE", False, True): {
                404: "done",
                410: "done",
                409: "retry well http_status",
                412: "verify, else dead http_status",
            },
            ("DELETE", True, True): {
                404: "done",
                410: "done",
                409: "retry well http_status",
                412: "verify, else conflict",
            },
        }
        for (method, versioned, ambiguous), differences in changed.items():
            attempt = Attempt(method=method, versioned=versioned, ambiguous=ambiguous)
            assert summary(judge(answer(status), attempt)) == differences.get(status, default(status)), attempt


def test_f9_no_4xx_speaks_against_the_health_of_its_destination() -> None:
    for status in STATUSES:
        for attempt in (POST, PUT, DELETE, replace(PUT, ambiguous=True)):
            verdict = judge(answer(status, Retry_After="5"), attempt)
            if isinstance(verdict, RetryLater):
                assert verdict.sick is not (400 <= status <= 499)


@pytest.mark.parametrize("meaning", list(Classify))
def test_f1_an_operator_may_say_what_a_status_means(meaning: Classify) -> None:
    for status in STATUSES:
        verdict = judge(answer(status), replace(POST, classify={status: meaning}))
        if status == 511:
            assert summary(verdict) == "hold portal"
            continue
        expected = {
            Classify.DONE: "done",
            Classify.RETRY: f"retry {'sick' if status >= 500 else 'well'} http_status",
            Classify.DEAD: "dead http_status",
            Classify.HOLD: "hold classified",
            Classify.CONFLICT: "conflict",
        }
        assert summary(verdict) == expected[meaning]


def test_f9_413_with_a_pause_is_temporary() -> None:
    verdict = judge(answer(413, Retry_After="7"), POST)
    assert isinstance(verdict, RetryLater)
    assert (verdict.kind, verdict.not_before, verdict.sick) == (ErrorKind.TOO_LARGE, 7_000, False)


@pytest.mark.parametrize("status", [401, 407])
def test_f2_a_refused_credential_holds_the_destination_unless_configured_otherwise(status: int) -> None:
    assert summary(judge(answer(status), POST)) == "hold unauthorized"
    assert summary(judge(answer(status), replace(POST, hold_unauthorized=False))) == "dead unauthorized"


@pytest.mark.parametrize(
    ("reply", "pause"),
    [
        (answer(429, Retry_After="120"), 120_000),
        (answer(429, body=b'{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":4103}'), 4_103),
        (answer(429, body=b'{"retry_after_ms":4103}', Retry_After="9"), 9_000),
        (answer(429, retry_after="0"), 0),
        (answer(429, Retry_After="soon"), None),
        (answer(429, body=b"<html>"), None),
        (answer(429), None),
        (answer(429, Retry_After="99999999999999999999"), DAY),
        (
            answer(429, Retry_After="Tue, 21 Jul 2026 10:02:00 GMT", Date="Tue, 21 Jul 2026 10:00:30 GMT"),
            90_000,
        ),
    ],
)
def test_f16_429_holds_the_destination_for_as_long_as_it_asks(reply: Answer, pause: int | None) -> None:
    verdict = judge(reply, POST)
    assert isinstance(verdict, HoldDestination)
    assert (verdict.hold, verdict.duration) == (Hold.RETRY_AFTER, pause)


def test_e10_a_pause_counts_although_the_error_page_is_broken() -> None:
    verdict = judge(answer(503, body=b"\x1f\x8b\x00broken", Content_Encoding="gzip", Retry_After="7"), POST)
    assert isinstance(verdict, RetryLater)
    assert verdict.not_before == 7_000


def test_f16_the_body_of_another_status_asks_for_nothing() -> None:
    verdict = judge(answer(503, body=b'{"retry_after_ms":4103}'), POST)
    assert isinstance(verdict, RetryLater)
    assert verdict.not_before is None


def test_d3_where_a_portal_is_suspected_its_usual_answers_decide_nothing() -> None:
    for status in [s for s in STATUSES if s != 511]:
        suspected = replace(POST, portal_suspected=True)
        portal_like = status // 100 == 3 or status in (401, 403, 407)
        assert summary(judge(answer(status), suspected)) == ("hold portal" if portal_like else default(status))
        html = answer(status, Content_Type="Text/HTML; charset=utf-8", body=b"<form>")
        assert summary(judge(html, suspected)) == "hold portal"
        assert summary(judge(html, POST)) == default(status)


def test_d2_with_rules_of_success_every_answer_that_breaks_them_is_a_portals_where_one_is_suspected() -> None:
    for status in STATUSES:
        attempt = Attempt(
            method="POST", portal_suspected=True, expect=Expect(status=(201,), header={"X-Api": "orders"})
        )
        assert summary(judge(answer(status), attempt)) == "hold portal"
        kept = judge(answer(status, X_Api="orders"), attempt)
        assert summary(kept) == ("done" if status == 201 else "hold portal")


@pytest.mark.parametrize("attempt", [POST, replace(POST, portal_suspected=True), replace(DELETE, ambiguous=True)])
def test_d3_511_is_always_a_portal(attempt: Attempt) -> None:
    everything = dict.fromkeys(range(100, 600), Classify.DONE)
    for each in (attempt, replace(attempt, classify=everything), replace(attempt, expect=Expect(status=(511,)))):
        assert summary(judge(answer(511), each)) == "hold portal"


def test_d2_a_success_that_breaks_a_rule_is_tried_again() -> None:
    attempt = replace(POST, expect=Expect(status=(201, 202)))
    assert summary(judge(answer(200), attempt)) == "retry sick unexpected_response"
    assert summary(judge(answer(202), attempt)) == "done"
    assert summary(judge(answer(503), attempt)) == "retry sick http_status"
    assert summary(judge(answer(400), attempt)) == "dead http_status"


def test_f8_an_empty_success_is_none_where_the_operator_says_so() -> None:
    attempt = replace(POST, expect=Expect(non_empty=True))
    assert summary(judge(answer(200), attempt)) == "retry sick unexpected_response"
    assert summary(judge(answer(200, body=b"ok"), attempt)) == "done"


def test_f8_a_missing_thing_may_be_told_to_hold_the_destination() -> None:
    assert summary(judge(answer(404), replace(POST, classify={404: Classify.HOLD}))) == "hold classified"


@pytest.mark.parametrize(
    ("expect", "reply", "fails"),
    [
        (Expect(), answer(200), False),
        (Expect(content_type="application/json"), answer(200, Content_Type="Application/JSON; charset=utf-8"), False),
        (Expect(content_type="application/json"), answer(200, Content_Type="application/json-seq"), True),
        (Expect(content_type="application/json"), answer(200), True),
        (Expect(header={"x-api": "orders"}), answer(200, X_API="orders"), False),
        (Expect(header={"X-Api": "orders"}), answer(200, X_Api="Orders"), True),
        (Expect(json={"ok": True}), answer(200, body=b'{"ok":true,"more":[]}'), False),
        (Expect(json={"ok": True}), answer(200, body=b'{"ok":1}'), True),
        (Expect(json={"n": 1}), answer(200, body=b'{"n":1.0}'), False),
        (Expect(json={"n": 1}), answer(200, body=b'{"n":true}'), True),
        (Expect(json={"ok": True}), answer(200, body=b'{"ok":false}'), True),
        (Expect(json={"ok": True}), answer(200, body=b"[1]"), True),
        (Expect(json={"ok": True}), answer(200, body=b"<html>"), True),
        (Expect(json={"ok": True}), answer(200, body=b"\xff"), True),
        (Expect(json={"ok": True}), answer(200, body=b"[" * 100_000), True),
        (Expect(json={"ok": True}), answer(200, body=b'{"ok":' + b"9" * 5_000 + b"}"), True),
        (Expect(json={"ok": None}), answer(200, body=b"{}"), True),
        (Expect(json={"ok": None}), answer(200, body=b'{"ok":null}'), False),
    ],
)
def test_d2_the_rules_of_success(expect: Expect, reply: Answer, fails: bool) -> None:
    assert (unmet(expect, reply) is not None) is fails


FAULTS = [kind for kind in ErrorKind if kind is not ErrorKind.BODY_MISSING]


@pytest.mark.parametrize("kind", FAULTS)
def test_e3_a_fault_after_the_first_byte_is_ambiguous_and_one_before_is_no_attempt(kind: ErrorKind) -> None:
    after = judge_fault(Fault(kind, "why", wrote=True))
    assert isinstance(after, RetryLater)
    assert after.ambiguous
    assert after.sick
    assert judge_fault(Fault(kind, "why", wrote=False)) == Unreachable(kind, "why")


def test_a_job_whose_body_is_gone_waits_for_a_person() -> None:
    for wrote in (True, False):
        assert summary(judge_fault(Fault(ErrorKind.BODY_MISSING, "gone", wrote))) == "dead body_missing"


def test_what_the_server_said_is_one_short_line_without_html() -> None:
    assert words(answer(400, body=b"bad\r\n value \xff\n")) == "answered 400: bad value \ufffd"
    assert words(answer(400, body=b"<html>no", Content_Type="text/html")) == "answered 400"
    assert len(words(answer(400, body=b"a" * 10_000))) < 400


def test_what_the_server_said_holds_no_control_characters() -> None:
    said = words(answer(400, body=b"\x1b[31mred\x00\x07\x7f \xc2\x9b2J"))
    assert said.isprintable()
    where = judge(answer(301, Location="https://h/\x1b[31m"), POST)
    assert isinstance(where, Reject)
    assert where.detail.isprintable()


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.sampled_from(["Retry-After", "Date", "Content-Type", "Location"]), st.text()), max_size=4),
    st.binary(max_size=200),
    st.builds(
        Attempt,
        method=st.sampled_from(["POST", "PUT", "DELETE"]),
        versioned=st.booleans(),
        ambiguous=st.booleans(),
        portal_suspected=st.booleans(),
        expect=st.sampled_from([Expect(), Expect(json={"a": 1}), Expect(non_empty=True)]),
        hold_unauthorized=st.booleans(),
    ),
)
def test_no_answer_whatever_is_without_a_verdict(
    status: int, headers: list[tuple[str, str]], body: bytes, attempt: Attempt
) -> None:
    verdict = judge(Answer(status, tuple(headers), body), attempt)
    assert verdict is not None
    pause = getattr(verdict, "not_before", None) or getattr(verdict, "duration", None) or 0
    assert 0 <= pause <= DAY
    if not 200 <= status <= 299 and isinstance(verdict, Done):
        assert attempt.method == "DELETE"
        assert attempt.ambiguous
    assert not (isinstance(verdict, Conflict) and not attempt.versioned)
