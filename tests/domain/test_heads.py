"""Method, headers and keys of a job."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain import heads
from kurir.domain.errors import Refused


def check(*pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return heads.check_headers(pairs, configured={"Authorization"}, idempotency_header="Idempotency-Key")


def test_headers_are_kept_in_their_order_without_the_blanks_around_their_values() -> None:
    given_ = (("X-B", " b\t"), ("x-a", ""), ("Title", "päckchen 📦"), ("X-C", "a\tb"), ("X-B", "again"))
    assert check(*given_) == (("X-B", "b"), ("x-a", ""), ("Title", "päckchen 📦"), ("X-C", "a\tb"), ("X-B", "again"))


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\n", "\ra", "a\x00b", "a\x1b[1m", "a\x7f", "a\x85b", "\x0b"])
def test_e13_a_control_character_in_a_value_is_refused_with_the_field_named(value: str) -> None:
    with pytest.raises(Refused) as refusal:
        check(("X-A", value))
    assert (refusal.value.code, refusal.value.field) == ("invalid", "headers.X-A")


@pytest.mark.parametrize(
    "name", ["", "X A", "X:", "X\r\nEvil", "X\x00", "Ä", "X(", " X", "X\n", "\ud83d", "a" * 3 + "@"]
)
def test_e13_a_name_that_is_no_token_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refusal:
        check((name, "1"))
    assert (refusal.value.code, refusal.value.field) == ("invalid", "headers")
    refusal.value.detail.encode()


@pytest.mark.parametrize("value", ["\ud83d", "a\udfff"])
def test_p1_half_a_surrogate_pair_in_a_value_or_key_is_refused(value: str) -> None:
    with pytest.raises(Refused) as header:
        check(("X-A", value))
    with pytest.raises(Refused) as key:
        heads.check_key(value, "idempotency_key")
    assert (header.value.field, key.value.field) == ("headers.X-A", "idempotency_key")


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "Connection",
        "Keep-Alive",
        "TE",
        "Trailer",
        "Upgrade",
        "EXPECT",
        "Proxy-Authorization",
        "proxy-x",
        "Kurir-Attempt",
        "KURIR-X",
        "idempotency-key",
    ],
)
def test_a_header_of_framing_or_of_ours_is_never_settable(name: str) -> None:
    with pytest.raises(Refused) as refusal:
        check((name, "1"))
    assert (refusal.value.code, refusal.value.field) == ("invalid", f"headers.{name}")


def test_the_idempotency_header_of_the_destination_is_the_one_that_is_reserved() -> None:
    assert heads.check_headers([("Idempotency-Key", "1")], idempotency_header="X-Key") == (("Idempotency-Key", "1"),)
    with pytest.raises(Refused):
        heads.check_headers([("x-key", "1")], idempotency_header="X-Key")


def test_a_configured_header_wins_over_a_job() -> None:
    with pytest.raises(Refused) as refusal:
        check(("authorization", "Bearer mine"))
    assert (refusal.value.code, refusal.value.field) == ("override_forbidden", "headers.authorization")


def test_headers_have_a_limit_of_number_and_of_size() -> None:
    assert len(check(*((f"X-{n}", "") for n in range(heads.MAX_HEADERS)))) == heads.MAX_HEADERS
    with pytest.raises(Refused):
        check(*((f"X-{n}", "") for n in range(heads.MAX_HEADERS + 1)))
    room = heads.MAX_HEADER_BYTES - len("X") - 4
    assert check(("X", "a" * room))
    with pytest.raises(Refused):
        check(("X", "a" * (room + 1)))
    with pytest.raises(Refused):
        check(("X", "ä" * (room // 2 + 1)))


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=3))
def test_headers_that_pass_cannot_end_a_line(headers: dict[str, str]) -> None:
    try:
        kept = heads.check_headers(headers.items())
    except Refused:
        return
    head = "".join(f"{name}: {value}\r\n" for name, value in kept).encode()
    assert len(re.findall(rb"[\r\n\x00]", head)) == 2 * len(kept)


@pytest.mark.parametrize("key", ["a", "a" * 255, "8f5f1d95-1e8b-4b51-9f53-2c6bb7d2e4b1", "ключ", "📦" * 255, " "])
def test_a_key_has_up_to_255_characters(key: str) -> None:
    assert heads.check_key(key, "ordering_key") == key


@pytest.mark.parametrize("key", ["", "a" * 256, "a\n", "\x00", "a\x7f", "a\x9f"])
def test_a_key_that_is_empty_long_or_holds_controls_is_refused(key: str) -> None:
    with pytest.raises(Refused) as refusal:
        heads.check_key(key, "ordering_key")
    assert (refusal.value.code, refusal.value.field) == ("invalid", "ordering_key")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND", "M-SEARCH", "REPORT"])
def test_a_method_is_a_word_in_capitals(method: str) -> None:
    assert heads.check_method(method) == method


@pytest.mark.parametrize(
    "method", ["", "get", "Post", "CONNECT", "TRACE", "P T", "POST\r\n", "PÖST", "A" * 33, "POST\n"]
)
def test_a_method_that_delivers_nothing_or_is_none_is_refused(method: str) -> None:
    with pytest.raises(Refused) as refusal:
        heads.check_method(method)
    assert (refusal.value.code, refusal.value.field) == ("invalid", "method")
