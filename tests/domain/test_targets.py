"""Where a request may go: paths, queries, joining, origins, and URLs that a job carries itself."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurir.domain import targets
from kurir.domain.errors import Refused

BASE = "https://api.example.com/v2"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/x",
        "/x/",
        "/a//b",
        "/p%28a%29%2Fb",
        "/%252e%252e/x",
        "/...",
        "/a/..b/b../.c",
        "/%2e%2e%2e",
        "/a;b=c/..x",
        "/x%20y%E2%82%AC",
        "/~!$&'()*+,;=:@",
        "/%zz",
        "/.well-known/x",
        "/a%5Cb",
    ],
)
def test_e12_a_path_that_stays_below_its_base_is_kept_byte_for_byte(path: str) -> None:
    assert targets.check_path(path) == path
    assert targets.join(BASE, path) == BASE + path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "x",
        "//evil.example/x",
        "/..",
        "/.",
        "/../x",
        "/a/../b",
        "/a/./b",
        "/a/..",
        "/%2e%2e/x",
        "/%2E%2e/x",
        "/.%2e/x",
        "/%2e/x",
        "/..%2fx",
        "/a%2F..%2Fx",
        "/a%2f%2e%2e",
        "/..%5cx",
        "/a%5C%2e%2E%5Cx",
        "/..;/x",
        "/..;a=b/x",
        "/%2e%2e;/x",
        "/a\\b",
        "/\\evil.example",
        "/a b",
        "/a\tb",
        "/a\r\nEvil: 1",
        "/a\x00",
        "/a\x7f",
        "/ä",
        "/\ud83d",
        "/x?y",
        "/x#y",
        "/" + "a" * targets.MAX_TARGET,
    ],
)
def test_a_path_that_could_leave_its_base_or_break_the_request_line_is_refused(path: str) -> None:
    with pytest.raises(Refused) as refusal:
        targets.check_path(path)
    assert (refusal.value.code, refusal.value.field) == ("invalid", "path")


@given(st.text(alphabet="./\\%2eEfF5cC;a", max_size=12))
def test_no_path_that_passes_has_a_dot_segment_after_decoding_once(rest: str) -> None:
    path = "/" + rest
    try:
        targets.check_path(path)
    except Refused:
        return
    assert not {".", ".."} & set(re.split(r"[/\\]", unquote(path)))


@given(st.text(max_size=40))
def test_no_path_that_passes_has_a_character_that_ends_a_request_target(rest: str) -> None:
    try:
        path = targets.check_path("/" + rest)
    except Refused:
        return
    assert re.fullmatch(r"[!-~]+", path)
    assert urlsplit(targets.join(BASE, path)).path == "/v2" + path
    targets.verify(BASE, targets.join(BASE, path))


@pytest.mark.parametrize("query", ["", "a=b", "sig=a%2Fb%7E&x=(1)", "next=/a?b=c", "a=../..", "q=\\"])
def test_e12_a_query_is_kept_byte_for_byte(query: str) -> None:
    assert targets.check_query(query) == query
    assert targets.join(BASE, "/x", query) == f"{BASE}/x?{query}"


@pytest.mark.parametrize("query", ["?a=b", "a#b", "a b", "a\nb", "a=ä", "a=\ud800", "a" * (targets.MAX_TARGET + 1)])
def test_a_query_that_is_none_is_refused(query: str) -> None:
    with pytest.raises(Refused) as refusal:
        targets.check_query(query)
    assert (refusal.value.code, refusal.value.field) == ("invalid", "query")


@pytest.mark.parametrize(
    ("base", "path", "query", "url"),
    [
        ("https://h/v2", "/x", None, "https://h/v2/x"),
        ("https://h/v2/", "/x", None, "https://h/v2/x"),
        ("https://h", "/x", None, "https://h/x"),
        ("https://h/", "/x", None, "https://h/x"),
        ("https://h/v2", "", None, "https://h/v2"),
        ("https://h/v2/", "", None, "https://h/v2/"),
        ("https://h", "", None, "https://h/"),
        ("https://h", "", "a=1", "https://h/?a=1"),
        ("https://h/v2", "/x", "", "https://h/v2/x?"),
        ("https://H:8443/v2", "/x", "a=b", "https://H:8443/v2/x?a=b"),
    ],
)
def test_a_path_is_appended_to_the_base_of_its_destination(base: str, path: str, query: str | None, url: str) -> None:
    assert targets.join(base, path, query) == url
    targets.verify(base, url)


def test_a_base_with_a_query_cannot_be_joined() -> None:
    with pytest.raises(Refused):
        targets.join("https://h/v2?key=1", "/x")


def test_what_was_joined_at_full_length_still_passes_at_send_time() -> None:
    longest = "/" + "a" * (targets.MAX_TARGET - 1)
    targets.verify(BASE, targets.join(BASE, longest, "a" * targets.MAX_TARGET))


@pytest.mark.parametrize(
    ("base", "url"),
    [
        (BASE, "https://api.example.com/v2"),
        (BASE, "https://api.example.com/v2?x"),
        (BASE, "https://API.example.com:443/v2/x"),
        (BASE + "/", "https://api.example.com/v2/x"),
    ],
)
def test_a_url_within_its_destination_may_be_sent(base: str, url: str) -> None:
    targets.verify(base, url)


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v2/x",
        "https://api.example.com:8443/v2/x",
        "https://api.example.com.evil.example/v2/x",
        "https://api.example.com@evil.example/v2/x",
        "https://evil.example/v2/x",
        "https://api.example.com/v2x",
        "https://api.example.com/v3/x",
        "https://api.example.com/",
        "https://api.example.com",
        "https://api.example.com/v2/../admin",
        "https://api.example.com/v2/%2e%2e/admin",
        "https://api.example.com/v2/x\r\nEvil: 1",
        "https://api.example.com/v2/x#y",
        "/v2/x",
    ],
)
def test_a_url_that_has_left_its_destination_is_not_sent(url: str) -> None:
    with pytest.raises(Refused):
        targets.verify(BASE, url)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://H.Example.com/x", "https://h.example.com"),
        ("HTTPS://h:443", "https://h"),
        ("http://h:80/", "http://h"),
        ("http://h:443/", "http://h:443"),
        ("https://h:0443/", "https://h"),
        ("https://h:08443/", "https://h:8443"),
        ("http://[::1]:8080/x", "http://[::1]:8080"),
        ("https://[2001:DB8:0:0::1]/", "https://[2001:db8::1]"),
        ("http://127.0.0.1/", "http://127.0.0.1"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example"),
        ("https://my_host/", "https://my_host"),
        ("https://h.example./", "https://h.example."),
    ],
)
def test_an_origin_has_one_spelling(url: str, origin: str) -> None:
    assert targets.origin(url) == origin


BAD_URLS = [
    "",
    "h",
    "https:",
    "https://",
    "https:///x",
    "https:/h/x",
    "https://:443/",
    "https://user@h/",
    "https://user:pass@h/",
    "https://@h/",
    "https://h:/",
    "https://h:0/",
    "https://h:65536/",
    "https://h:99999999999/",
    "https://h:-1/",
    "https://h:4a/",
    "https://h:1:2/",
    "https://h/x#y",
    "https://h#",
    "https://h/ x",
    "https://h/\n",
    "https://h\\x/",
    "https://h\\@evil/",
    "https://bücher.example/",
    "https://h%2eexample/",
    "https://[::1/",
    "https://::1/",
    "https://[::1]x/",
    "https://[h]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://a..b/",
    "https://.a/",
    "https://-a/",
    "https://" + "a" * 64 + "/",
    "https://" + "a." * 130 + "b/",
    "https://2130706433/",
    "https://127.1/",
    "https://0x7f.0.0.1/",
    "https://0x7f000001/",
    "https://256.1.1.1/",
    "https://01.2.3.4/",
    "https://h/../x",
    "https://h//x",
    "ftp://h/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "unix:/run/x",
    "https://h/" + "a" * targets.MAX_TARGET,
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_of_a_job_that_is_odd_in_any_way_is_refused(url: str) -> None:
    with pytest.raises(Refused) as refusal:
        targets.check_adhoc_url(url, "any")
    assert (refusal.value.code, refusal.value.field) == ("invalid", "url")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://H/x?sig=a%2Fb%7E", ("https://h", "/x?sig=a%2Fb%7E")),
        ("https://h", ("https://h", "/")),
        ("https://h?a=1", ("https://h", "/?a=1")),
        ("https://h/x?", ("https://h", "/x?")),
        ("https://h:8443/p%28a%29", ("https://h:8443", "/p%28a%29")),
    ],
)
def test_e12_the_url_of_a_job_is_split_into_origin_and_exact_target(url: str, parts: tuple[str, str]) -> None:
    assert targets.check_adhoc_url(url, "https") == parts
    targets.verify(parts[0], "".join(parts))


def test_the_operator_decides_whether_jobs_may_carry_urls() -> None:
    assert targets.check_adhoc_url("http://h/x", "any") == ("http://h", "/x")
    with pytest.raises(Refused) as plain:
        targets.check_adhoc_url("http://h/x", "https")
    with pytest.raises(Refused) as none:
        targets.check_adhoc_url("https://h/x", "none")
    assert (plain.value.code, none.value.code) == ("invalid", "forbidden")


@given(st.text(max_size=60) | st.from_regex(r"https?://[a-z0-9.:@\[\]\\%-]{0,20}[/?#]?[!-~]{0,20}", fullmatch=True))
def test_no_url_that_passes_is_read_differently_by_another_parser(url: str) -> None:
    try:
        origin, target = targets.check_adhoc_url(url, "any")
    except Refused:
        return
    other = urlsplit(origin + target)
    assert other.hostname is not None
    assert other.hostname in origin
    assert other.username is None
    assert other.fragment == ""
    assert other.path + ("?" + other.query if "?" in target else "") == target
    assert targets.origin(origin) == origin


def passes(url: str) -> bool:
    try:
        targets.verify(BASE, url)
    except Refused:
        return False
    return True


@given(st.text(alphabet="/.%2eEfF5cC;?#\\@: aä", max_size=10))
def test_a_url_is_judged_alike_however_its_host_is_spelled(rest: str) -> None:
    assert passes(BASE + rest) is passes("https://API.example.com:443/v2" + rest)
    assert passes(BASE + "/" + rest) is passes("https://API.example.com:443/v2/" + rest)
