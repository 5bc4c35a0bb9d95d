"""What a token server's answer means: a token for so long, a definite no, or something that may pass."""

from __future__ import annotations

import json

import pytest

from kurir.domain.outcome import Answer
from kurir.domain.policy import DAY, SECOND
from kurir.domain.token_answer import LONGEST, Bought, NoToken, judge

TOKEN = {"access_token": "abc", "token_type": "Bearer"}


def answer(status: int, document: object, *headers: tuple[str, str]) -> Answer:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Answer(status, (("Content-Type", "application/json"), *headers), body)


@pytest.mark.parametrize(
    ("expires_in", "life"),
    [
        (3600, 3540 * SECOND),
        (600, 540 * SECOND),
        (100, 90 * SECOND),
        (10, 9 * SECOND),
        (1, SECOND),
        (0, SECOND),
        (0.5, SECOND),
        ("3600", 3540 * SECOND),
        (1e300, 365 * DAY - 60 * SECOND),
        (2**63, 365 * DAY - 60 * SECOND),
        ("9" * 40, 365 * DAY - 60 * SECOND),
        (-1, None),
        (True, None),
        (None, None),
        ("soon", None),
        ("", None),
        ([], None),
    ],
)
def test_a_token_is_used_for_less_time_than_it_is_good_for(expires_in: object, life: int | None) -> None:
    assert judge(answer(200, {**TOKEN, "expires_in": expires_in})) == Bought("abc", life)


def test_a_token_without_a_type_or_a_life_is_one() -> None:
    assert judge(answer(200, {"access_token": "abc"})) == Bought("abc", None)
    assert judge(answer(200, {**TOKEN, "token_type": "bEARER"})) == Bought("abc", None)
    assert judge(answer(200, {"access_token": "a" * LONGEST})) == Bought("a" * LONGEST, None)


@pytest.mark.parametrize(
    "document",
    [
        {}, [], "abc", 5, None, b"", b"\xff", b"[" * 100_000, b"{", b"NaN",
        {"access_token": ""}, {"access_token": None}, {"access_token": ["abc"]}, {"access_token": "a\nb"},
        {"access_token": "\u00e9"}, {"access_token": "a" * (LONGEST + 1)}, {**TOKEN, "token_type": "mac"},
        {**TOKEN, "token_type": 5},
    ],
)  # fmt: skip
def test_a_200_that_holds_no_token_for_a_header_is_none_and_may_pass(document: object) -> None:
    found = judge(answer(200, document))
    assert isinstance(found, NoToken)
    assert not found.definite
    assert "abc" not in found.detail


@pytest.mark.parametrize(
    ("status", "document", "definite", "code"),
    [
        (400, {"error": "invalid_grant"}, True, "invalid_grant"),
        (400, {"error": "invalid_client"}, True, "invalid_client"),
        (401, {"error": "invalid_client"}, True, "invalid_client"),
        (403, {"error": "unauthorized_client"}, True, "unauthorized_client"),
        (400, {"error": "invalid_scope"}, True, "invalid_scope"),
        (401, b"who are you", True, "invalid_client"),
        (400, {"error": "temporarily_unavailable"}, False, ""),
        (400, {"error": 5}, False, ""),
        (400, b"<html>", False, ""),
        (403, b"no", False, ""),
        (404, {"error": "invalid_client"}, False, ""),
        (500, {"error": "invalid_client"}, False, ""),
        (503, b"", False, ""),
        (307, b"", False, ""),
        (204, b"", False, ""),
        (511, b"<html>", False, ""),
    ],
)
def test_only_the_standards_own_words_are_a_definite_no(
    status: int, document: object, definite: bool, code: str
) -> None:
    found = judge(answer(status, document))
    assert isinstance(found, NoToken)
    assert (found.definite, found.code) == (definite, code)
    assert str(status) in found.detail


def test_what_a_server_says_is_one_line_and_a_pause_that_it_asks_for_is_kept() -> None:
    found = judge(answer(400, {"error": "invalid_scope", "error_description": "a\x1b[31m\r\nb" + "c" * 1000}))
    assert isinstance(found, NoToken)
    assert found.detail.isprintable()
    assert len(found.detail) < 300
    asked = judge(answer(503, b"", ("Retry-After", "7")))
    assert isinstance(asked, NoToken)
    assert asked.pause == 7 * SECOND


def test_a_token_is_in_no_representation() -> None:
    assert "abc" not in repr(judge(answer(200, TOKEN)))
